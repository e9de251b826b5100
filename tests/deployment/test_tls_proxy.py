"""TLS may end at a proxy that is known by its certificate or socket; nobody else speaks for another client."""

import asyncio
import base64
import contextlib
import socket
import stat
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from fedlm.commands.cli import main
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import RefusedError
from fedlm.fedlm_client.link.credentials import client_tls, read_certificate
from fedlm.fedlm_client.link.protocol import CHECK_IN, CLIENT_CERTIFICATE, CLIENT_NAME, PROTOCOL
from fedlm.fl_core.deployment.security.certificates import certificate_pem
from fedlm.fl_core.deployment.security.forwarded_certificates import ForwardedCertificates
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.errors import ConfigurationError
from tests.support.serving import Handlers, serving

BODY = messages.CheckInRequest(protocol=PROTOCOL).SerializeToString()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("proxy")
    authority = Authority.create(made / "keys")
    authority.make_server(["127.0.0.1"])
    for name in ("ann", "ben", "gone", "edge"):
        authority.make_client(name)
    authority.revoke("gone")
    Authority.create(made / "others").make_client("ann")
    return made


def field(path):
    return f"{CLIENT_CERTIFICATE}: {quote(path.read_text(), safe='')}"


def call(connected, *fields, host="fl.example.org"):
    """The status of a check-in with some fields."""
    head = [f"POST {CHECK_IN} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(BODY)}", *fields, "", ""]
    connected.sendall("\r\n".join(head).encode() + BODY)
    return int(connected.recv(1 << 12).split()[1])


@contextlib.contextmanager
def dialled(folder, caller, port):
    """A connection of a caller who has a certificate."""
    context = client_tls(folder / "keys" / "clients" / caller)
    with (
        socket.create_connection(("127.0.0.1", port), 20) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
    ):
        yield encrypted


@contextlib.contextmanager
def opened(path):
    """A connection to a socket."""
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(20)
        connected.connect(str(path))
        yield connected


def asked(folder, caller, *calls, tls_proxy="edge"):
    """The statuses of check-ins, each with some fields and over a connection of its own, and whose they were.

    The caller has a certificate, or is the path of a socket that it opens.
    """

    def ask(port):
        for fields in calls:
            with opened(caller) if tls_proxy == f"unix:{caller}" else dialled(folder, caller, port) as connected:
                yield call(connected, *fields)

    async def go():
        handlers = Handlers()
        async with serving(handlers, folder / "keys", tls_proxy=tls_proxy) as server:
            return await asyncio.to_thread(lambda: list(ask(server.port))), handlers.peers

    return asyncio.run(asyncio.wait_for(go(), 30))


NOT_BELIEVED = {
    "others/clients/ann/client.pem": "the authority did not make the certificate",
    "keys/clients/gone/client.pem": "gone was revoked",
    "keys/server.pem": "the authority did not make the certificate",
    "keys/ca.pem": "not a client's certificate",
}
NO_CERTIFICATES = ["", "?", "%2D%2D", "-----BEGIN CERTIFICATE-----", "caf%C3%A9"]


@pytest.mark.parametrize("kind", ["certificate", "socket"])
def test_a_proxy_calls_in_the_name_of_the_client_whose_certificate_it_passes_on(folder, tmp_path, caplog, kind):
    path = tmp_path / "proxy"
    caller, named = ("edge", "edge") if kind == "certificate" else (path, f"unix:{path}")
    ann, ben = (field(folder / f"keys/clients/{name}/client.pem") for name in ("ann", "ben"))
    refused = [
        *(((field(folder / path),), 401, why) for path, why in NOT_BELIEVED.items()),
        *(((f"{CLIENT_CERTIFICATE}: {sent}",), 401, "") for sent in NO_CERTIFICATES),
        ((), 401, ""),
        ((ann, ben), 400, ""),
        ((f"{ann}, {ben.partition(': ')[2]}",), 401, ""),
    ]
    statuses, peers = asked(folder, caller, (ann,), *(fields for fields, _, _ in refused), tls_proxy=named)
    assert (statuses, peers) == ([200, *(status for _, status, _ in refused)], ["ann"])
    logged = [record.fields["why"] for record in caplog.records if record.message == "call_refused"]
    assert all(why in one for (_, _, why), one in zip(refused, logged, strict=True)), logged


def test_a_certificate_with_any_byte_changed_is_refused_or_says_the_same(folder):
    read = ForwardedCertificates(folder / "keys").read
    certificate = read_certificate(folder / "keys/clients/ann/client.pem")
    content = certificate.public_bytes(Encoding.DER)
    honest = read(quote(certificate_pem(certificate)))
    for place, byte in enumerate(content):
        for other in {15, byte ^ 1} - {byte}:
            damaged = content[:place] + bytes([other]) + content[place + 1 :]
            encoded = base64.encodebytes(damaged).decode()
            with contextlib.suppress(RefusedError):
                # The signature has more than one encoding.
                assert read(quote(f"-----BEGIN CERTIFICATE-----\n{encoded}-----END CERTIFICATE-----\n")) == honest


@pytest.mark.parametrize("tls_proxy", ["edge", "unix:", None])
def test_nobody_else_speaks_for_another_client(folder, tmp_path, tls_proxy):
    tls_proxy = f"unix:{tmp_path / 'proxy'}" if tls_proxy == "unix:" else tls_proxy
    of_ann = field(folder / "keys/clients/ann/client.pem")
    assert asked(folder, "ben", (), (of_ann,), tls_proxy=tls_proxy) == ([200, 401], ["ben"])


async def test_in_plain_text_nobody_speaks_for_another_client(folder):
    def ask(port):
        with socket.create_connection(("127.0.0.1", port), 20) as plain:
            ann = field(folder / "keys/clients/ann/client.pem")
            return call(plain, f"{CLIENT_NAME}: ben", ann, host="127.0.0.1")

    handlers = Handlers()
    async with serving(handlers) as server:
        assert (await asyncio.to_thread(ask, server.port), handlers.peers) == (401, [])


def served_at(folder, path, during=lambda: None):
    """What is found while a server listens at a socket."""

    async def go():
        async with serving(Handlers(), folder / "keys", tls_proxy=f"unix:{path}"):
            return await asyncio.to_thread(during)

    return asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.parametrize(("of_folder", "of_socket"), [(0o700, 0o600), (0o755, 0o600), (0o2750, 0o660)])
def test_a_proxys_socket_is_for_its_owner_or_the_group_of_its_folder(folder, tmp_path, of_folder, of_socket):
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(of_folder)
    path = tmp_path / "run" / "proxy"
    assert served_at(folder, path, lambda: stat.S_IMODE(path.stat().st_mode)) == of_socket
    assert not path.exists()


def test_a_socket_in_a_folder_where_everybody_can_write_is_refused(folder, tmp_path):
    tmp_path.chmod(0o1777)
    with pytest.raises(ConfigurationError, match="everybody can write there"):
        served_at(folder, tmp_path / "proxy")


def test_a_socket_takes_the_place_of_one_that_was_left_and_of_nothing_else(folder, tmp_path):
    path = tmp_path / "proxy"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    served_at(folder, path)
    path.write_text("mine")
    with pytest.raises(ConfigurationError, match="cannot listen at the proxy's socket"):
        served_at(folder, path)
    assert path.read_text() == "mine"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(ConfigurationError, match="another server listens there"):
            served_at(folder, path)
    assert path.is_socket()


@pytest.mark.parametrize("path", ["absent/proxy", "x" * 200])
def test_a_socket_that_cannot_be_had_is_a_mistake(folder, tmp_path, path):
    with pytest.raises(ConfigurationError, match=f"cannot listen at the proxy's socket .*{path}"):
        served_at(folder, tmp_path / path)


@pytest.mark.parametrize("option", [("balancers", "127.0.0.1"), ("tls-proxy", "edge"), ("tls-proxy", "unix:proxy")])
def test_nobody_passes_on_clients_to_a_server_that_speaks_plain_text(capsys, option):
    name, value = option
    usual = ["serve", "--model", "cifg_tiny", "--vocabulary", "absent", "--out", "absent", "--insecure"]
    assert main([*usual, f"--{name}", value]) == 2
    assert f"--{name} passes on clients of other machines" in capsys.readouterr().err
