"""Enrolment over the network: devices believe one authority alone; what is no request gets an answer and a log line."""

import asyncio
import contextlib
import ssl

import pytest

from fedlm.clients.device.enrolment import enrol_device
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import KeysError
from fedlm.fedlm_client.link.credentials import client_name
from fedlm.fl_core.deployment.security.certificates import make_request, new_key
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.transport import http_listener
from fedlm.fl_core.deployment.transport.http_enrolment import EnrolmentServer
from fedlm.fl_core.errors import ConfigurationError


@contextlib.asynccontextmanager
async def enrolment(folder):
    authority = Authority.create(folder / "keys")
    authority.make_server(["127.0.0.1"])
    server = EnrolmentServer(authority.enrol, "127.0.0.1:0", folder / "keys")
    await server.start()
    try:
        async with asyncio.timeout(60):
            yield authority, server.port
    finally:
        await server.stop(0)


async def test_a_device_gets_its_certificate_from_the_right_server_alone(tmp_path):
    async with enrolment(tmp_path) as (authority, port):
        token, other, address = (
            authority.make_token("alice"),
            Authority.create(tmp_path / "other"),
            f"127.0.0.1:{port}",
        )
        ours, theirs = tmp_path / "keys/ca.pem", tmp_path / "other/ca.pem"
        with pytest.raises(KeysError, match="is not the server that the authority signed for"):
            await asyncio.to_thread(enrol_device, address, theirs, token, tmp_path / "alice")
        # The key of the try that failed is used again, and the token was not spent by it.
        await asyncio.to_thread(enrol_device, address, ours, token, tmp_path / "alice")
        with pytest.raises(ConfigurationError, match="has credentials already"):
            await asyncio.to_thread(enrol_device, address, ours, token, tmp_path / "alice")
        with pytest.raises(KeysError, match=r"refuses: .*the token is not known"):
            await asyncio.to_thread(enrol_device, address, ours, "0" * 64, tmp_path / "mallory")
        assert not other.issued()
    assert client_name(tmp_path / "alice") == "alice"
    assert sorted(path.name for path in (tmp_path / "alice").iterdir()) == ["ca.pem", "client.key", "client.pem"]


async def say_slowly(writer, pause):
    with contextlib.suppress(ConnectionError):
        while True:
            await asyncio.sleep(pause)
            writer.write(b"x")
            await writer.drain()


async def test_a_stranger_who_says_nothing_or_little_after_the_handshake_is_shut_out(tmp_path, monkeypatch):
    monkeypatch.setattr(http_listener, "_STRANGERS_SECONDS", 0.3)

    async def meet(port, said, pause):
        tls = ssl.create_default_context(cafile=str(tmp_path / "keys/ca.pem"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        writer.write(said)
        trickling = asyncio.create_task(say_slowly(writer, pause))
        heard = b""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(10):
                heard = await reader.read()
        trickling.cancel()
        writer.transport.abort()
        return bool(heard)

    async with enrolment(tmp_path) as (_, port):
        # One says nothing, also after a refusal; the other sends a message byte by byte.
        strangers = ((b"", 9), (sent(b""), 9), (sent(b"", length=1000), 0.05))
        assert await asyncio.gather(*(meet(port, *one) for one in strangers)) == [False, True, False]


def sent(body, line="POST /enrol", length=None):
    return f"{line} HTTP/1.1\r\nHost: h\r\nContent-Length: {length or len(body)}\r\n\r\n".encode() + body


async def test_what_is_no_request_is_refused_and_logged(tmp_path, caplog):
    request = messages.EnrolRequest(token="0" * 64, request=make_request(new_key()))
    attempts = {
        sent(b"\xff\xff"): (400, "no EnrolRequest"),
        sent(b"", length=1 << 20): (413, "more than any message has"),
        sent(request.SerializeToString()): (401, "token is not known"),
        sent(b""): (401, "token is not known"),
        sent(b"", "GET /keys/ca.key"): (404, "nothing else"),
        # A head without an end, in many pieces or in one, costs the server no more than its longest.
        b"POST /enrol HTTP/1.1\r\n" + b"x: y\r\n" * 100_000: (431, "too long"),
        b"POST /enrol HTTP/1.1\r\nx: " + b"y" * 1_000_000: (431, "too long"),
        # HTTP/2, with which a head could be continued for ever.
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": (505, "HTTP/1.1"),
    }

    async def answer(port, content):
        tls = ssl.create_default_context(cafile=str(tmp_path / "keys/ca.pem"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        try:
            writer.write(content)
            return int((await asyncio.wait_for(reader.readline(), 20)).split()[1])
        finally:
            writer.transport.abort()

    async with enrolment(tmp_path) as (_, port):
        assert await asyncio.gather(*(answer(port, content) for content in attempts)) == [
            status for status, _ in attempts.values()
        ]
    logged = " ".join(record.fields["why"] for record in caplog.records if record.message == "call_refused")
    assert all(why in logged for _, why in attempts.values()), logged
