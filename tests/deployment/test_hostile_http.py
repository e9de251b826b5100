"""Hostile clients of the HTTP transport: whatever their bytes, each is refused, and honest ones finish their rounds."""

import asyncio
import base64
import contextlib
import ssl

import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import RefusedError, TransportError, UnknownArtifactError, WrongServerError
from fedlm.fedlm_client.link.calls import DownloadRequest
from fedlm.fedlm_client.link.credentials import client_name, client_tls
from fedlm.fedlm_client.link.http_channel import HttpChannel
from fedlm.fedlm_client.link.protocol import CLIENT_NAME, PROTOCOL, UPLOAD_HEADER
from fedlm.fl_core.composed_settings import with_changes
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.transport import http_connections
from tests.deployment import small_deployment as small
from tests.deployment.uploads import SETTINGS, SIZE, content_of, header_of
from tests.support.uploads import pieces_of

Status = messages.UploadReply.Status
READY = messages.CheckInRequest(protocol=PROTOCOL)
HONEST = SETTINGS.cohort_size


def request(line, *fields, body=b"", name="eve", length=None):
    """The bytes of a request."""
    lines = [f"{line} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [] if name is None else [f"{CLIENT_NAME}: {name}"]
    lines += (
        [f"Content-Length: {len(body) if length is None else length}"]
        if "Transfer-Encoding: chunked" not in fields
        else []
    )
    return "\r\n".join([*lines, *fields, "", ""]).encode() + body


def upload(header, body=b"", length=None, **others):
    field = f"{UPLOAD_HEADER}: {base64.b64encode(header.SerializeToString()).decode()}"
    return request("PUT /upload", field, body=body, length=length, **others)


async def answer(port, sent):
    """The status and the body of the answer to some bytes; None where the server hangs up without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
        return int(head.split()[1]), await asyncio.wait_for(reader.readexactly(length), 20)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    finally:
        writer.close()


REFUSED = {
    "garbage": (b"\xff\xff\r\n\r\n", 400),
    "another protocol": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "a head without end": (b"GET / HTTP/1.1\r\nx: " + 20_000 * b"y", 431),
    "many fields": (request("POST /check-in", *(f"x{n}: y" for n in range(5000))), 431),
    "no declared length": (request("POST /check-in", "Transfer-Encoding: chunked"), 411),
    "two lengths": (request("POST /check-in", "Content-Length: 7"), 400),
    "a length that is none": (request("POST /check-in", length="-5"), 400),
    "ten gigabytes": (request("POST /check-in", length=10**10), 413),
    "no message": (request("POST /check-in", body=b"\xff" * 50), 400),
    "no name": (request("POST /check-in", name=None), 401),
    "a name too long": (request("POST /check-in", name=1000 * "x"), 401),
    "another path": (request("GET /etc/passwd"), 404),
    "another method": (request("DELETE /upload"), 404),
    "no digest": (request("GET /artifacts/../../keys"), 400),
    "an unknown digest": (request("GET /artifacts/abcd"), 404),
    "no chunk": (request("GET /artifacts/abcd?first_chunk=-1"), 400),
    "a target that is none": (request("GET http://["), 400),
    "a header beyond ASCII": (request("PUT /upload", f"{UPLOAD_HEADER}: caf\xe9"), 400),
    "no base64": (request("PUT /upload", f"{UPLOAD_HEADER}: ???"), 400),
    "no upload header": (request("PUT /upload", f"{UPLOAD_HEADER}: /////w=="), 400),
}


@pytest.mark.long
async def test_what_is_no_call_is_refused(tmp_path, caplog):
    async with (
        asyncio.timeout(small.PATIENCE),
        small.Server(small.task(SETTINGS), tmp_path / "run") as server,
    ):
        # Refusals are held back for a moment, so all are waited for at once.
        came = await asyncio.gather(*(answer(server.port, sent) for sent, _ in REFUSED.values()))
    found = dict(zip(REFUSED, came, strict=True))
    assert {what: None if one is None else one[0] for what, one in found.items()} == {
        what: status for what, (_, status) in REFUSED.items()
    }
    logged = [record for record in caplog.records if record.message == "call_refused"]
    assert len(logged) == len(REFUSED) - 1, "all but the unknown digest, which an honest client may ask for"


async def select(channel):
    while True:
        reply = await channel.check_in(READY)
        if reply.WhichOneof("answer") == "selected":
            return reply.selected
        await asyncio.sleep(0.1)


async def reported(port, name, configuration, body, length=None, **header):
    """The status of an upload that comes without being asked for."""
    made = header_of(configuration, **header)
    status, content = await answer(port, upload(made, body, length, name=name))
    assert status == 200, (status, content)
    reply = messages.UploadReply.FromString(content)
    return Status.Name(reply.status), reply.reason


@pytest.mark.long
async def test_hostile_uploads_are_refused_while_honest_clients_finish(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(http_connections, "_HEAD_SECONDS", 0.3)
    server = small.Server(small.task(SETTINGS), tmp_path / "run", linger=0.5)
    async with asyncio.timeout(small.PATIENCE), server:
        port, address = server.port, f"127.0.0.1:{server.port}"
        eve = HttpChannel(address, "eve")
        asked, honest = await select(eve), content_of()
        wrong_plan = content_of(plan=b"FLU2\0\0\0\0")
        assert await reported(port, "eve", asked, honest[:-1] + b"?") == (
            "DAMAGED",
            "the upload's checksum does not match: it was damaged on the way; send it again",
        )
        # More than a header promises, or less, is no upload at all.
        for body in (honest + b"?", honest[:-1]):
            assert (await answer(port, upload(header_of(asked), body, name="eve")))[0] == 400
        # One that breaks off is not counted; the client may send it again.
        cut = upload(header_of(asked), honest[:-10], SIZE, name="eve")
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(cut)
        await writer.drain()
        writer.close()
        status, reason = await reported(port, "eve", asked, b"", 10**10, size=10**10)
        assert (status, "declared to have 10000000000 bytes" in reason) == ("INVALID", True)
        for name, body, said in (
            ("mallory", wrong_plan, "another compression"),
            ("nan", content_of(step=float("nan")), "finite"),
        ):
            configuration = await select(HttpChannel(address, name))
            status, reason = await reported(port, name, configuration, body)
            assert (status, said in reason) == ("INVALID", True), reason
        # Two requests at once: what follows an answer is not taken for another request of the same client.
        two = request("POST /check-in", body=READY.SerializeToString()) * 2
        assert (await answer(port, two))[0] == 200
        # A head that takes too long, and an upload that drips.
        slow_reader, slow = await asyncio.open_connection("127.0.0.1", port)
        slow.write(b"POST /check-in HTT")
        assert await asyncio.wait_for(slow_reader.read(), 10) == b""
        configuration = await select(HttpChannel(address, "drip"))
        drip_reader, drip = await asyncio.open_connection("127.0.0.1", port)
        drip.write(upload(header_of(configuration), b"", SIZE, name="drip"))

        async def dripping():
            with contextlib.suppress(ConnectionError):
                for byte in honest:
                    drip.write(bytes([byte]))
                    await asyncio.sleep(0.05)

        drips = asyncio.create_task(dripping())
        clients = [small.make_client(port, tmp_path, one) for one in range(HONEST)]
        async with small.running(clients):
            head = await asyncio.wait_for(drip_reader.readuntil(b"\r\n\r\n"), 60)
            assert b" 200 " in head
            assert await server.over
        drips.cancel()
        await eve.close()
    rows = server.rows
    assert [row["clients"] - row["clients_dropped"] for row in rows] == [HONEST] * SETTINGS.rounds
    logged = [(record.message, record.fields) for record in caplog.records if hasattr(record, "fields")]
    assert any(message == "too_slow" for message, _ in logged)
    refused = [fields["why"] for message, fields in logged if message == "report_refused"]
    for why in ("checksum", "the connection ended", "another compression", "declared to have", "finite"):
        assert any(why in one for one in refused), (why, refused)


@pytest.mark.long
async def test_strangers_and_the_revoked_do_not_get_in(tmp_path, caplog):
    authority = Authority.create(tmp_path / "keys")
    authority.make_server(["127.0.0.1"])
    ann = authority.make_client("ann")
    eve = Authority.create(tmp_path / "other").make_client("eve")

    def strange():
        """One believes the server, but has no certificate, or one of another authority."""
        believes = ssl.create_default_context(cafile=str(tmp_path / "keys" / "ca.pem"))
        yield believes
        other = ssl.create_default_context(cafile=str(tmp_path / "keys" / "ca.pem"))
        other.load_cert_chain(eve / "client.pem", eve / "client.key")
        yield other
        # The server's own certificate names no client.
        server = ssl.create_default_context(cafile=str(tmp_path / "keys" / "ca.pem"))
        server.load_cert_chain(tmp_path / "keys" / "server.pem", tmp_path / "keys" / "server.key")
        yield server
        # Plain text where TLS is spoken, and one that does not believe the server.
        yield None
        yield client_tls(eve)

    what = small.task(with_changes(SETTINGS, rounds=1, cohort_size=1, minimum_reports=1))
    server = small.Server(what, tmp_path / "run", linger=2.0, keys=tmp_path / "keys")
    async with asyncio.timeout(small.PATIENCE), server:
        address = f"127.0.0.1:{server.port}"
        for tls in strange():
            with pytest.raises((TransportError, RefusedError, WrongServerError)):
                await HttpChannel(address, "ann", tls).check_in(READY)
        # The name is the certificate's, whatever the client calls itself.
        channel = HttpChannel(address, tls=client_tls(ann))
        channel._always.append((CLIENT_NAME, "somebody else"))
        asked = await select(channel)

        with pytest.raises(UnknownArtifactError):
            async for _ in channel.download(DownloadRequest(digest=b"?")):
                pass
        assert (await channel.upload(header_of(asked), pieces_of(content_of()))).status == Status.ACCEPTED
        authority.revoke("ann")
        with pytest.raises(RefusedError, match="revoked"):
            await channel.check_in(READY)
        await channel.close()
        assert server.rounds.registry.number_of(client_name(ann)) is not None
        assert server.rounds.registry.number_of("somebody else") is None
    logged = [(record.message, record.fields) for record in caplog.records if hasattr(record, "fields")]
    assert any(message == "handshake_failed" for message, _ in logged)
    assert any("ann was revoked" in fields["why"] for message, fields in logged if message == "call_refused")
