"""A virtual link loses what its population says that it loses, and nothing else."""

import asyncio
from typing import NamedTuple

import pytest

from fedlm.clients.fleet.population import Dropout, Population
from fedlm.clients.fleet.virtual_device import Tally, VirtualDevice, VirtualLink
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import TransportError
from fedlm.fedlm_client.link.calls import Chunk, DownloadRequest
from tests.support.uploads import pieces_of

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


def upload(link):
    return link.upload(HEADER, pieces_of(bytes(SIZE), CHUNK))


def make(population=PERFECT):
    now = [0.0]
    device = VirtualDevice(population, 0, Tally(), lambda: now[0])
    link = VirtualLink(inner := Perfect(), device, asyncio.Semaphore(1))
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


async def test_a_perfect_device():
    _, device, link, _ = make()
    await check_in(link, device)
    assert await fetch(link) == list(range(10))
    assert (await upload(link)).status == messages.UploadReply.ACCEPTED
    tally = device.tally
    assert (tally.check_ins, tally.selected, tally.dropped) == (1, 1, 0)
    assert (tally.bytes_down, tally.bytes_up, tally.answers) == (SIZE, SIZE, {"accepted": 1})


async def test_a_device_that_goes_away_during_the_download():
    now, device, link, _ = make()
    await check_in(link, device, Dropout("download", 0.35, 60.0))
    with pytest.raises(TransportError):
        await fetch(link)
    # The fourth chunk is what makes it more than the share.
    assert device.tally.bytes_down == 4 * CHUNK
    assert not device.available()
    now[0] = 59.0
    for call in (
        link.check_in(messages.CheckInRequest()),
        fetch(link, 3),
        upload(link),
    ):
        with pytest.raises(TransportError, match="away"):
            await call
    now[0] = 60.0
    assert device.available()
    # The same attempt again is the same participation, and it goes on.
    await link.check_in(messages.CheckInRequest())
    assert await fetch(link, 3) == list(range(3, 10))
    assert (device.tally.selected, device.tally.dropped) == (1, 1)


async def test_a_device_that_goes_away_during_the_upload():
    _, device, link, inner = make()
    await check_in(link, device, Dropout("upload", 0.55, 60.0))
    assert len(await fetch(link)) == 10
    with pytest.raises(TransportError):
        await upload(link)
    assert inner.received == 500
    assert device.tally.dropped == 1
    assert not device.tally.answers


def test_no_more_devices_of_a_process_check_in_at_once_than_the_server_hears_in_time():
    there = []

    class Counted(Perfect):
        async def check_in(self, request):
            there.append(there[-1] + 1 if there else 1)
            await asyncio.sleep(0)
            there.append(there[-1] - 1)
            return messages.CheckInReply()

    async def all_at_once():
        at_once = asyncio.Semaphore(2)
        links = [VirtualLink(Counted(), VirtualDevice(PERFECT, one, Tally()), at_once) for one in range(9)]
        await asyncio.gather(*(link.check_in(messages.CheckInRequest()) for link in links))

    asyncio.run(all_at_once())
    assert (max(there), there[-1]) == (2, 0)
