"""The client for browsers is served beside calls, and pages from elsewhere make none."""

import asyncio
from types import SimpleNamespace

import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.transport.http_page import Page
from fedlm.fl_core.errors import ConfigurationError
from tests.deployment.test_hostile_http import answer, request
from tests.support.serving import Handlers, serving

CHECK_IN = messages.CheckInRequest(protocol=PROTOCOL).SerializeToString()


@pytest.fixture
def page(tmp_path):
    folder = tmp_path / "page"
    folder.mkdir()
    for name, content in {"index.html": "<p>page", "page.js": "run()", "plan.key": "secret"}.items():
        (folder / name).write_text(content)
    (tmp_path / "beside.js").write_text("secret")
    return folder


def asked(folder, *sent):
    """What a server with a page answers, one connection after another."""

    async def run():
        async with serving(Handlers(), page=folder) as server:
            return [await answer(server.port, one) for one in sent]

    return asyncio.run(run())


def test_a_page_is_served_without_a_name_and_calls_are_not(page):
    first, script, call = asked(
        page,
        request("GET /", name=None),
        request("GET /page.js", name=None),
        request("POST /check-in", body=CHECK_IN, name=None),
    )
    assert (first, script) == ((200, b"<p>page"), (200, b"run()"))
    assert call[0] == 401


def test_nothing_but_the_files_of_a_page_is_served(page):
    names = ("/plan.key", "/../beside.js", "/..%2fbeside.js", "//page.js", "/page.js/", "/page.js?x", "/.")
    assert {found[0] for found in asked(page, *(request(f"GET {name}") for name in names))} == {404}
    assert asked(page, request("POST /page.js")) == [(404, b"there is no POST of /page.js")]
    assert asked(None, request("GET /"))[0][0] == 404


def test_only_the_thread_that_runs_plans_compiles_and_it_does_not_connect(page):
    for name in ("litert.js", "litert.wasm.gz"):
        (page / name).write_text("run()")
    served = Page(page)
    policies = {}

    async def run():
        for name in ("/", "/page.js", "/litert.js", "/litert.wasm.gz"):
            call = SimpleNamespace(head=SimpleNamespace(method="GET", target=name), send=kept)
            assert served.has(call.head)
            await served.send(call)
            policies[name] = set(sent.pop()["Content-Security-Policy"].split("; "))

    sent = []

    async def kept(status, fields, content):
        sent.append(fields)

    asyncio.run(run())
    assert all("default-src 'none'" in one for one in policies.values())
    assert [name for name, one in policies.items() if "wasm-unsafe-eval" in str(one)] == ["/litert.js"]
    assert policies["/litert.js"] == {"default-src 'none'", "script-src 'self' 'wasm-unsafe-eval'"}
    assert {"connect-src 'self'", "script-src 'self'"} < policies["/"] == policies["/page.js"]


def test_pages_from_elsewhere_make_no_calls(page):
    origins = ("http://elsewhere", "http://here:1", "null", "http://[", "http://here.elsewhere")
    refused = asked(
        page, *(request("POST /check-in", f"Origin: {origin}", body=CHECK_IN, name="ann") for origin in origins)
    )
    assert {found[0] for found in refused} == {403}
    own = request("POST /check-in", "Origin: http://localhost:1", body=CHECK_IN, name="ann")
    ((status, body),) = asked(page, own.replace(b"Host: 127.0.0.1", b"Host: localhost:1"))
    assert (status, messages.CheckInReply.FromString(body).come_back.reason) == (200, "ann")


async def test_a_page_is_for_those_with_a_certificate(page, tmp_path):
    authority = Authority.create(tmp_path / "keys")
    authority.make_server(("127.0.0.1",), 1)
    async with serving(Handlers(), tmp_path / "keys", page=page) as server:
        found = await answer(server.port, request("GET /", name=None))
    assert found is None


def test_a_folder_that_is_no_page_is_refused(page, tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Page(tmp_path / "nowhere")
    (page / "index.html").unlink()
    with pytest.raises(ConfigurationError, match=r"no index\.html"):
        Page(page)
