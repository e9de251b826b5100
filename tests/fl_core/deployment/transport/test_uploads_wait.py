"""A client sends no byte of its update before the server wants it."""

import asyncio

import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import RefusedError
from tests.fl_core.deployment.transport.test_http_calls import connected

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
def test_what_follows_the_header_is_sent_when_it_is_wanted(wanted):
    sent = []

    async def pieces():
        for piece in PIECES:
            sent.append(piece)
            yield piece

    async def run():
        handlers = Uploads(wanted, sent)
        async with connected(handlers) as (_, channel):
            return handlers, await channel.upload(HEADER, pieces())

    handlers, reply = asyncio.run(run())
    assert reply.status == messages.UploadReply.LATE
    assert handlers.too_early == []
    # Pieces may arrive in others than they were sent in.
    assert b"".join(handlers.read)[: 1000 * wanted] == b"".join(PIECES)[: 1000 * wanted]
    assert len(b"".join(handlers.read)) >= 1000 * wanted


def test_a_refused_upload_says_why():
    """Also where its refusal and what the client would send next meet."""

    class Refusing:
        async def upload(self, peer, upload):
            await upload.header()
            raise RefusedError("revoked")

    async def pieces():
        for piece in PIECES:
            yield piece

    async def run():
        async with connected(Refusing()) as (_, channel):
            # A refusal is held back for a moment, so many are waited for at once.
            uploads = [channel.upload(HEADER, pieces()) for _ in range(10)]
            return await asyncio.gather(*uploads, return_exceptions=True)

    ends = asyncio.run(run())
    assert [type(end) for end in ends] == [RefusedError] * 10
    assert all(str(end).endswith(": revoked") for end in ends)
