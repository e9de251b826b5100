"""A client sends no byte of its update before the server wants it."""

import asyncio

import pytest

from fl_core.transport import messages_pb2 as messages
from fl_core.transport.grpc_client import GrpcChannel
from fl_core.transport.grpc_server import GrpcServer
from fl_core.transport.interface import RefusedError

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
def test_what_follows_the_header_is_sent_when_it_is_wanted(wanted):
    sent = []

    async def parts():
        yield messages.UploadPart(header=messages.UploadHeader(size=20000))
        for piece in PIECES:
            sent.append(piece)
            yield messages.UploadPart(data=piece)

    async def run():
        handlers = Uploads(wanted, sent)
        server = GrpcServer(handlers, "127.0.0.1:0", 1 << 16)
        await server.start()
        channel = GrpcChannel(f"127.0.0.1:{server.port}", "client")
        try:
            async with asyncio.timeout(20):
                return handlers, await channel.upload(parts())
        finally:
            await channel.close()
            await server.stop(0)

    handlers, reply = asyncio.run(run())
    assert reply.status == messages.UploadReply.LATE
    assert handlers.too_early == []
    assert handlers.read == PIECES[:wanted]


def test_a_refused_upload_says_why():
    """Also where its refusal and what the client would send next meet."""

    class Refusing:
        async def upload(self, peer, upload):
            await upload.header()
            raise RefusedError("revoked")

    async def parts():
        yield messages.UploadPart(header=messages.UploadHeader(size=20000))
        for piece in PIECES:
            yield messages.UploadPart(data=piece)

    async def run():
        server = GrpcServer(Refusing(), "127.0.0.1:0", 1 << 16)
        await server.start()
        channel = GrpcChannel(f"127.0.0.1:{server.port}", "client")
        try:
            async with asyncio.timeout(30):
                # A refusal is held back for a moment, so many are waited for at once.
                uploads = [channel.upload(parts()) for _ in range(10)]
                return await asyncio.gather(*uploads, return_exceptions=True)
        finally:
            await channel.close()
            await server.stop(0)

    ends = asyncio.run(run())
    assert [(type(end), str(end)) for end in ends] == [(RefusedError, "PERMISSION_DENIED: revoked")] * 10
