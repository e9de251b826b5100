"""A device of a population: a client's connection and conditions, as slow and unreliable as the population has them."""

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

from fedlm.clients.fleet.population import Dropout, Population
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import TransportError
from fedlm.fedlm_client.limits import Conditions
from fedlm.fedlm_client.link.calls import Chunk, DownloadRequest
from fedlm.fedlm_client.training import Channel


@dataclasses.dataclass
class Tally:
    """What devices have done together.

    Attributes:
      check_ins: that were answered.
      selected: participations that they were asked for.
      dropped: of these, how often one went away.
      unreachable: calls that the server did not answer.
      answers: to reports, by status.
      rounds: numbers of the rounds that any was selected for.
      bytes_down: received.
      bytes_up: sent.
    """

    check_ins: int = 0
    selected: int = 0
    dropped: int = 0
    unreachable: int = 0
    answers: Counter[str] = dataclasses.field(default_factory=Counter)
    rounds: set[int] = dataclasses.field(default_factory=set)
    bytes_down: int = 0
    bytes_up: int = 0


class VirtualDevice:
    """One device, in the event loop's thread; `available` may be asked from any.

    Attributes:
      number: of the device.
      tally: where what it does is counted.
      traits: that it was drawn with.
      dropout: how it will go away in the round that it takes part in; None where it stays.
      gone: whether it has gone for good; then training ends at its next step.
    """

    def __init__(self, population: Population, number: int, tally: Tally, clock: Callable[[], float] = time.time):
        """Draw a device; `clock` is that of `Population.expected_availability`."""
        self.number, self.tally = number, tally
        self._population, self._clock = population, clock
        self.traits = population.traits(number)
        self._attempt, self._participations = b"", 0
        self._away_until = 0.0
        self.dropout: Dropout | None = None
        self.gone = False

    def available(self) -> bool:
        """Say whether the device is there, and may train."""
        if self.gone:
            return False
        now = self._clock()
        return now >= self._away_until and self._population.is_available(self.number, now, self.traits.shift)

    def conditions(self) -> Conditions:
        """Make a client's conditions: all at once."""
        return Conditions(idle=self.available)

    def selected(self, configuration: messages.RoundConfiguration) -> None:
        """Note what the device is asked for; another attempt is another participation."""
        if configuration.attempt == self._attempt:
            return
        self._attempt = configuration.attempt
        self.dropout = self._population.dropout_of(self.number, self._participations)
        self._participations += 1
        self.tally.selected += 1
        self.tally.rounds.add(configuration.round_number)

    def cut(self, during: str, share: float) -> bool:
        """Say whether the device is to go away now, with this share done of what it does."""
        dropout = self.dropout
        return dropout is not None and dropout.during == during and share >= dropout.share

    def drop(self) -> None:
        """Go away for a while; always raises `TransportError`."""
        assert self.dropout is not None
        self._away_until = self._clock() + self.dropout.away
        self.tally.dropped += 1
        self.dropout = None
        raise TransportError("the device has gone away")

    def check_reachable(self) -> None:
        """Raise `TransportError` while the device is away."""
        if self._clock() < self._away_until:
            raise TransportError("the device is away")

    async def transfer(self, size: int) -> None:
        """Take the time that so many bytes take on the device's link."""
        await asyncio.sleep(size / self.traits.link)

    async def train(self, examples: int) -> None:
        """Take the time that training on so many examples takes on the device."""
        await asyncio.sleep(examples / self.traits.speed)


class VirtualLink:
    """A `fedlm.fedlm_client.training.Channel` as good as a device's."""

    def __init__(self, inner: Channel, device: VirtualDevice, checking_in: asyncio.Semaphore):
        """Give a device a connection; `checking_in` says how many devices of this process check in at once.

        A thousand that dial together get so little of its time each that a server's patience with all of them ends.
        """
        self._inner, self._device, self._checking_in = inner, device, checking_in
        self._model, self._chunks = b"", 1

    async def check_in(self, request: messages.CheckInRequest) -> messages.CheckInReply:
        self._device.check_reachable()
        try:
            async with self._checking_in:
                reply = await self._inner.check_in(request)
        except TransportError:
            self._device.tally.unreachable += 1
            raise
        self._device.tally.check_ins += 1
        if reply.WhichOneof("answer") == "selected":
            self._device.selected(reply.selected)
            self._model = reply.selected.parameters.digest
            self._chunks = len(reply.selected.parameters.chunk_digests)
        return reply

    async def download(self, request: DownloadRequest) -> AsyncIterator[Chunk]:
        device = self._device
        device.check_reachable()
        async for chunk in self._inner.download(request):
            await device.transfer(len(chunk.data))
            device.tally.bytes_down += len(chunk.data)
            if request.digest == self._model and device.cut("download", (chunk.number + 1) / self._chunks):
                device.drop()
            yield chunk

    async def secure_sum(self, request: messages.SecureRequest) -> messages.SecureReply:
        return await self._inner.secure_sum(request)

    async def log(self, request: messages.LogRequest) -> messages.LogReply:
        return await self._inner.log(request)

    async def upload(self, header: messages.UploadHeader, pieces: AsyncIterator[bytes]) -> messages.UploadReply:
        device = self._device
        device.check_reachable()
        if header.asks:
            return await self._inner.upload(header, pieces)
        cut = device.cut("upload", 1.0)
        # A device trains before it calls; the server waits for no header that long.
        await device.train(header.num_examples)
        reply = await self._inner.upload(header, self._slowed(header.size - header.offset, pieces))
        if cut:
            device.drop()
        device.tally.answers[messages.UploadReply.Status.Name(reply.status).lower()] += 1
        return reply

    async def _slowed(self, size: int, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        device, sent = self._device, 0
        async for piece in pieces:
            await device.transfer(len(piece))
            sent += len(piece)
            if device.cut("upload", sent / max(size, 1)):
                return
            device.tally.bytes_up += len(piece)
            yield piece

    async def close(self) -> None:
        await self._inner.close()
