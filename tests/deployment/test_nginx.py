"""The lines for nginx on the page of deployments do what the page says."""

import asyncio
import contextlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import RefusedError, TransportError
from fedlm.fedlm_client.link.calls import DownloadRequest
from fedlm.fedlm_client.link.credentials import client_tls
from fedlm.fedlm_client.link.http_channel import HttpChannel
from fedlm.fedlm_client.link.protocol import CLIENT_CERTIFICATE
from fedlm.fl_core.deployment.security.keys import Authority
from tests.deployment import small_deployment as small
from tests.deployment.test_tls_proxy import call, dialled, field
from tests.support.processes import held_port
from tests.support.serving import CONTENT, Handlers, serving
from tests.support.uploads import pieces_of

NGINX = shutil.which("nginx", path="/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin")
STREAM = next(Path("/").glob("usr/lib*/nginx/modules/ngx_stream_module.so"), None)
PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"

pytestmark = [pytest.mark.long, pytest.mark.skipif(NGINX is None, reason="nginx is not installed")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("nginx")
    authority = Authority.create(made / "keys")
    authority.make_server(["127.0.0.1", "fl.example.org"])
    for name in ("client0", "client1", "gone", "edge"):
        authority.make_client(name)
    authority.revoke("gone")
    return made


def boxes():
    """The page's lines for a balancer, for a proxy with a socket, and what takes their place for one elsewhere."""
    return re.findall(r"^```nginx\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def lines_for(kind, port, server_port, folder):
    """What nginx is to do, from the page, with the ports and files of a test."""
    stream, socket_server, elsewhere = boxes()
    lines = {
        "balancer": stream,
        "socket": "http {\n" + socket_server + "}\n",
        "certificate": "http {\n" + re.sub(r" *proxy_pass http://unix.*\n", elsewhere, socket_server) + "}\n",
    }[kind]
    for said, here in {
        "listen 8470": f"listen 127.0.0.1:{port}",
        "10.0.0.7:8470": f"127.0.0.1:{server_port}",
        "10.0.0.7:8471": f"127.0.0.1:{server_port}",
        "keys/": f"{folder}/keys/",
        "edge/": f"{folder}/keys/clients/edge/",
        "/run/fedlm/": f"{folder}/",
    }.items():
        lines = lines.replace(said, here)
    return lines


@contextlib.asynccontextmanager
async def nginx(kind, server_port, folder, place):
    """Run nginx with the page's lines until what is inside is over; yields its port."""
    place.mkdir()
    paths = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{name}_temp_path {place}/{name};\n" for name in paths)
    with held_port() as port:
        lines = lines_for(kind, port, server_port, folder)
        lines = lines.replace("http {\n", f"http {{\naccess_log off;\n{temporary}", 1)
        module = f"load_module {STREAM};\n" if kind == "balancer" and STREAM else ""
        (place / "nginx.conf").write_text(
            f"{module}daemon off;\nmaster_process off;\npid {place}/pid;\nerror_log {place}/log;\nevents {{}}\n{lines}"
        )
        command = [NGINX, "-p", str(place), "-c", str(place / "nginx.conf"), "-e", str(place / "log")]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                while not (place / "pid").exists() or not (place / "pid").read_text():
                    assert process.poll() is None, process.stderr.read()
                    await asyncio.sleep(0.01)
                yield port
            finally:
                process.terminate()


KINDS = {
    "balancer": lambda folder: {"balancers": ("127.0.0.1",)},
    "socket": lambda folder: {"tls_proxy": f"unix:{folder}/proxy.sock"},
    "certificate": lambda folder: {"tls_proxy": "edge"},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def has_what_is_needed(kind):
    """Skip where this nginx lacks what a kind of proxy needs."""
    built = subprocess.run([NGINX, "-V"], capture_output=True, text=True, check=True).stderr
    if kind == "balancer" and STREAM is None and not re.search(r"--with-stream(\s|$)", built):
        pytest.skip("this nginx has no streams (libnginx-mod-stream)")
    if kind != "balancer" and "--with-http_ssl_module" not in built:
        pytest.skip("this nginx has no TLS")


@contextlib.asynccontextmanager
async def behind(kind, folder, place, handlers):
    """Serve behind nginx; yields the port of nginx."""
    async with (
        asyncio.timeout(small.PATIENCE),
        serving(handlers, folder / "keys", **KINDS[kind](folder)) as server,
        nginx(kind, server.port, folder, place) as port,
    ):
        yield port


@kinds
async def test_models_and_updates_pass_whole_and_refusals_as_they_are(kind, folder, tmp_path):
    has_what_is_needed(kind)
    body = bytes(range(256)) * 20_000

    async def upload(channel):
        return await channel.upload(messages.UploadHeader(outcome=1, size=len(body)), pieces_of(body, 1 << 18))

    handlers = Handlers()
    async with behind(kind, folder, tmp_path / "nginx", handlers) as port:
        channel = HttpChannel(f"127.0.0.1:{port}", tls=client_tls(folder / "keys/clients/client0"))
        gone = HttpChannel(f"127.0.0.1:{port}", tls=client_tls(folder / "keys/clients/gone"))
        request = DownloadRequest(digest=bytes(32))
        assert b"".join([chunk.data async for chunk in channel.download(request)]) == CONTENT
        assert (await upload(channel)).reason == f"{len(body)} {hash(body)}"
        handlers.fault = RefusedError("not you")
        with pytest.raises((RefusedError, TransportError)) as refused:
            await upload(channel)
        with pytest.raises(RefusedError, match="not you"):
            await channel.check_in(messages.CheckInRequest())
        with pytest.raises(RefusedError, match="gone was revoked"):
            await gone.check_in(messages.CheckInRequest())
        await channel.close()
        await gone.close()
    assert isinstance(refused.value, RefusedError) or kind != "balancer"


@pytest.mark.parametrize("kind", ["socket", "certificate"])
async def test_through_nginx_a_client_is_who_its_certificate_says(kind, folder, tmp_path):
    has_what_is_needed(kind)

    def calls(port):
        other = field(folder / "keys/clients/client1/client.pem")
        loud = other.replace(CLIENT_CERTIFICATE, CLIENT_CERTIFICATE.upper())
        for fields in ([], [other], [other, loud]):
            with dialled(folder, "client0", port) as connected:
                yield call(connected, *fields)

    handlers = Handlers()
    async with behind(kind, folder, tmp_path / "nginx", handlers) as port:
        assert await asyncio.to_thread(lambda: list(calls(port))) == [200, 200, 200]
    assert handlers.peers == ["client0"] * 3
