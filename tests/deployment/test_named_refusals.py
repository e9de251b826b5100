"""Whatever a client with a certificate is refused for, the line of the log says its name."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from fedlm.fedlm_client.errors import RefusedError
from fedlm.fedlm_client.link.credentials import client_tls
from fedlm.fl_core.deployment.security import callers
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.transport import http_connections, http_listener
from fedlm.fl_core.deployment.transport.connection_limits import ConnectionLimits
from tests.deployment.test_hostile_http import READY, request
from tests.support.serving import Handlers, serving

CALL = request("POST /check-in", body=READY.SerializeToString(), name=None)
REFUSED = {
    "a head that is none": (b"\xff\xff\r\n\r\n", "call_refused"),
    "another path": (request("GET /etc/passwd", name=None), "call_refused"),
    "a message that is none": (request("POST /check-in", body=b"\xff" * 50, name=None), "call_refused"),
    "a head that takes too long": (b"POST /check-in HTT", "too_slow"),
    "a body that takes too long": (CALL[:-1], "too_slow"),
}


@pytest.fixture
def keys(tmp_path):
    Authority.create(tmp_path / "keys").make_server(["127.0.0.1"])
    return tmp_path / "keys"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(http_connections, "_HEAD_SECONDS", 0.1)
    monkeypatch.setattr(http_listener, "_BODY_SECONDS", 0.1)


async def say(port, credentials, sent):
    """Send bytes over a connection of its own, and wait until the server has hung up or answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_tls(credentials))
    try:
        writer.write(sent)
        await reader.read(100)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def logged(keys, caplog, act, limits=ConnectionLimits()):  # noqa: B008
    """What a server with keys logs of clients while something acts on its port."""

    async def go():
        async with asyncio.timeout(30), serving(Handlers(), keys, limits=limits) as server:
            await act(server.port)

    asyncio.run(go())
    lines = [(record.message, record.fields) for record in caplog.records if hasattr(record, "fields")]
    return [(message, fields.get("client")) for message, fields in lines if message != "fewer_connections"]


def test_a_known_client_is_named_also_if_it_was_revoked(keys, caplog):
    ann = Authority(keys).make_client("ann")

    async def act(port):
        for sent, _ in REFUSED.values():
            await say(port, ann, sent)
        Authority(keys).revoke("ann")
        await say(port, ann, CALL)

    expected = [*(event for _, event in REFUSED.values()), "call_refused"]
    assert logged(keys, caplog, act) == [(event, "ann") for event in expected]


def test_a_refusal_is_held_back_for_a_second(monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(callers, "asyncio", SimpleNamespace(sleep=sleep))
    asyncio.run(callers.Refusals().note("ann", "127.0.0.1", RefusedError("no")))
    assert slept == [1.0]


def test_a_client_with_too_many_connections_is_named(keys, caplog):
    ann = Authority(keys).make_client("ann")

    async def twice(port):
        _, first = await asyncio.open_connection("127.0.0.1", port, ssl=client_tls(ann))
        first.write(CALL[:20])
        await asyncio.sleep(0.05)
        with contextlib.suppress(OSError):
            await say(port, ann, CALL)
        first.close()

    assert ("connection_shut", "ann") in logged(keys, caplog, twice, ConnectionLimits(of_identity=1))
