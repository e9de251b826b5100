"""A virtual link loses what its population says that it loses, and nothing else."""

import asyncio
from typing import NamedTuple

import pytest

from fedlm.clients.fleet.population import Dropout, Population
from fedlm.clients.fleet.virtual_device import Tally, VirtualDevice, VirtualLink
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import TransportError
from fedlm.fedlm_client.link.calls import Chunk, DownloadRequest

SIZE, CHUNK = 1000, 100
PERFECT = Population(dropout=0.0, availability=1.0, diurnal=0.0, link_bytes=float("inf"), speeds=(1e9,) * 3)


class Perfect:
    """A channel that selects, and takes everything."""

    def __init__(self):
        self.received, self.called = 0, 0.0

    async def check_in(self, request):
        artifact = messages.Artifact(digest=b"m", chunk_digests=[b"c"] * (SIZE // CHUNK))
        return messages.CheckInReply(selected=messages.RoundConfiguration(attempt=b"a", parameters=artifact))

    async def download(self, request):
        for number in range(request.first_chunk, SIZE // CHUNK):
            yield Chunk(number=number, data=bytes(CHUNK))

    async def upload(self, header, pieces):
        self.called = asyncio.get_running_loop().time()
        async for piece in pieces:
            self.received += len(piece)
        whole = self.received == SIZE
        return messages.UploadReply(status=messages.UploadReply.ACCEPTED if whole else messages.UploadReply.DAMAGED)


HEADER = messages.UploadHeader(size=SIZE, num_examples=10)


async def pieces():
    for _ in range(SIZE // CHUNK):
        yield bytes(CHUNK)


def make(population=PERFECT):
    now = [0.0]
    device = VirtualDevice(population, 0, Tally(), lambda: now[0])
    link = VirtualLink(inner := Perfect(), device)
    return Made(now, device, link, inner)


class Made(NamedTuple):
    now: list
    device: VirtualDevice
    link: VirtualLink
    inner: Perfect


async def fetch(link, first=0):
    request = DownloadRequest(digest=b"m", first_chunk=first)
    return [chunk.number async for chunk in link.download(request)]


async def check_in(link, device, dropout=None):
    await link.check_in(messages.CheckInRequest())
    device.dropout = dropout


def test_a_perfect_device():
    async def run():
        _, device, link, _ = make()
        await check_in(link, device)
        assert await fetch(link) == list(range(10))
        assert (await link.upload(HEADER, pieces())).status == messages.UploadReply.ACCEPTED
        return device.tally

    tally = asyncio.run(run())
    assert (tally.check_ins, tally.selected, tally.dropped) == (1, 1, 0)
    assert (tally.bytes_down, tally.bytes_up, tally.answers) == (SIZE, SIZE, {"accepted": 1})


def test_a_device_that_goes_away_during_the_download():
    async def run():
        now, device, link, _ = make()
        await check_in(link, device, Dropout("download", 0.35, 60.0))
        with pytest.raises(TransportError):
            await fetch(link)
        # The fourth chunk is what makes it more than the share.
        assert device.tally.bytes_down == 4 * CHUNK
        assert not device.available()
        now[0] = 59.0
        for call in (link.check_in(messages.CheckInRequest()), fetch(link, 3), link.upload(HEADER, pieces())):
            with pytest.raises(TransportError, match="away"):
                await call
        now[0] = 60.0
        assert device.available()
        # The same attempt again is the same participation, and it goes on.
        await link.check_in(messages.CheckInRequest())
        assert await fetch(link, 3) == list(range(3, 10))
        assert (device.tally.selected, device.tally.dropped) == (1, 1)

    asyncio.run(run())


def test_a_device_that_goes_away_during_the_upload():
    async def run():
        _, device, link, inner = make()
        await check_in(link, device, Dropout("upload", 0.55, 60.0))
        assert len(await fetch(link)) == 10
        with pytest.raises(TransportError):
            await link.upload(HEADER, pieces())
        assert inner.received == 500
        assert device.tally.dropped == 1
        assert not device.tally.answers

    asyncio.run(run())


def test_bytes_and_training_take_their_time():
    population = Population(dropout=0.0, link_bytes=5000.0, link_spread=0.0, speeds=(50.0,) * 3)

    async def run():
        _, device, link, inner = make(population)
        await check_in(link, device)
        begun = asyncio.get_running_loop().time()
        await fetch(link)
        fetched = asyncio.get_running_loop().time()
        await link.upload(HEADER, pieces())
        return fetched - begun, inner.called - fetched, asyncio.get_running_loop().time() - inner.called

    down, training, up = asyncio.run(run())
    # The server is not called before the device has trained.
    assert 0.2 <= down < 2.0
    assert 0.2 <= training < 2.0
    assert 0.2 <= up < 2.0
