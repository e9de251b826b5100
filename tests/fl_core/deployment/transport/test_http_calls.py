"""What connections carry, with handlers of a few lines; a client sends no byte of its update before it is wanted."""

import asyncio
import contextlib

import pytest

from fedlm.clients.device.dialling import dialling
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import RefusedError, TransportError, UnknownArtifactError
from fedlm.fedlm_client.link.artifacts import ArtifactAssembly
from fedlm.fedlm_client.link.calls import DownloadRequest
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fl_core.deployment.protocol.errors import TooManyCallsError
from fedlm.fl_core.deployment.transport import http_server
from tests.support.serving import ARTIFACT, CONTENT, Handlers, serving
from tests.support.uploads import pieces_of


@contextlib.asynccontextmanager
async def connected(handlers, port=0):
    async with serving(handlers, address=f"127.0.0.1:{port}") as server:
        channel = dialling(f"127.0.0.1:{server.port}", None)("ann")
        try:
            async with asyncio.timeout(30):
                yield server, channel
        finally:
            await channel.close()


async def fetch(channel, first_chunk=0):
    request = DownloadRequest(digest=ARTIFACT.description.digest, first_chunk=first_chunk)
    return [chunk async for chunk in channel.download(request)]


async def send(channel, body, outcome="TRAINED"):
    return await channel.upload(messages.UploadHeader(outcome=outcome, size=len(body)), pieces_of(body, 1000))


async def test_calls_reach_the_handlers_in_the_name_of_the_client():
    handlers = Handlers()
    async with connected(handlers) as (_, channel):
        for _ in range(3):
            reply = await channel.check_in(messages.CheckInRequest(protocol=PROTOCOL))
            assert (reply.come_back.seconds, reply.come_back.reason) == (PROTOCOL, "ann")
        assembly = ArtifactAssembly(ARTIFACT.description, 1 << 20)
        for chunk in await fetch(channel):
            assembly.add(chunk)
        assert assembly.content == CONTENT
        assert [chunk.number for chunk in await fetch(channel, first_chunk=2)] == [2, 3]
        for body, outcome in ((CONTENT, "TRAINED"), (b"", "NO_EXAMPLES")):
            reply = await send(channel, body, outcome)
            assert reply.reason == f"{len(body)} {hash(body)}"
    assert handlers.peers == ["ann"] * 3


async def test_calls_at_the_same_time_do_not_mix():
    async with connected(Handlers()) as (_, channel):
        bodies = [bytes([number]) * 1000 * number for number in range(1, 9)]
        replies = await asyncio.gather(*(send(channel, body) for body in bodies))
        assert [reply.reason for reply in replies] == [f"{len(body)} {hash(body)}" for body in bodies]
        for chunks in await asyncio.gather(*(fetch(channel) for _ in range(4))):
            assert b"".join(chunk.data for chunk in chunks) == CONTENT


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (RefusedError("no"), RefusedError),
        (TooManyCallsError("no"), TransportError),
        (UnknownArtifactError("no"), UnknownArtifactError),
    ],
)
async def test_what_handlers_raise_reaches_the_client(fault, seen):
    async with connected(Handlers(fault)) as (_, channel):
        calls = [channel.check_in(messages.CheckInRequest()), send(channel, CONTENT)]
        for end in await asyncio.gather(*calls, return_exceptions=True):
            assert type(end) is seen
            assert "no" in str(end)


async def test_a_download_that_ends_early_is_no_whole_one(monkeypatch):
    monkeypatch.setattr(http_server, "_BYTES_AT_ONCE", 4096)
    async with connected(Handlers(UnknownArtifactError("withdrawn"))) as (_, channel):
        with pytest.raises((TransportError, UnknownArtifactError)):
            await fetch(channel)


async def test_a_server_that_went_away_is_found_when_it_comes_back():
    async with connected(Handlers()) as (server, channel):
        await channel.check_in(messages.CheckInRequest())
        await server.stop(0)
        with pytest.raises(TransportError):
            await channel.check_in(messages.CheckInRequest())
        async with connected(Handlers(), server.port):
            while True:
                with contextlib.suppress(TransportError):
                    await channel.check_in(messages.CheckInRequest())
                    break
                await asyncio.sleep(0.1)


async def test_connections_of_http_are_used_again():
    async with connected(Handlers()) as (server, channel):
        for _ in range(5):
            await channel.check_in(messages.CheckInRequest())
            await fetch(channel)
            await send(channel, CONTENT)
        assert len(server._serving) == 1


HEADER = messages.UploadHeader(size=20000)
PIECES = [bytes([number]) * 1000 for number in range(20)]


class Uploads:
    """Handlers that read so many pieces, and notice what was sent before they wanted it."""

    def __init__(self, wanted, sent):
        self.wanted, self.sent, self.read, self.too_early = wanted, sent, [], None

    async def upload(self, peer, upload):
        assert (await upload.header()).size == 20000
        await asyncio.sleep(0.3)
        self.too_early = list(self.sent)
        space = memoryview(bytearray(5000))
        while len(self.read) < self.wanted and (size := await upload.read_into(space)):
            self.read.append(bytes(space[:size]))
        return messages.UploadReply(status=messages.UploadReply.LATE)


@pytest.mark.parametrize("wanted", [0, 1, 20])
async def test_what_follows_the_header_is_sent_when_it_is_wanted(wanted):
    sent = []

    async def pieces():
        for piece in PIECES:
            sent.append(piece)
            yield piece

    handlers = Uploads(wanted, sent)
    async with connected(handlers) as (_, channel):
        reply = await channel.upload(HEADER, pieces())
    assert reply.status == messages.UploadReply.LATE
    assert handlers.too_early == []
    # Pieces may arrive in others than they were sent in.
    assert b"".join(handlers.read)[: 1000 * wanted] == b"".join(PIECES)[: 1000 * wanted]
    assert len(b"".join(handlers.read)) >= 1000 * wanted


async def test_a_refused_upload_says_why():
    """Also where its refusal and what the client would send next meet."""

    class Refusing:
        async def upload(self, peer, upload):
            await upload.header()
            raise RefusedError("revoked")

    async with connected(Refusing()) as (_, channel):
        uploads = [channel.upload(HEADER, pieces_of(bytes(20000), 1000)) for _ in range(10)]
        ends = await asyncio.gather(*uploads, return_exceptions=True)
    assert [type(end) for end in ends] == [RefusedError] * 10
    assert all(str(end).endswith(": revoked") for end in ends)
