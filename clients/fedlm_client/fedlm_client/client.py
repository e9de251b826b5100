"""A device's life in a run: it checks in, trains when it is selected and allowed to, and answers with an update.

What leaves the device is the messages of `messages.proto` and nothing else.
"""

import asyncio
import contextlib
import functools
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from . import messages_pb2 as messages
from .errors import (
    ClientError,
    RefusedError,
    TransportError,
    UnknownArtifactError,
    UnsafeSumError,
    WrongServerError,
    printable,
)
from .limits import Conditions, Limits
from .link.artifacts import ArtifactAssembly
from .link.calls import DownloadRequest, in_pieces
from .link.protocol import PROTOCOL
from .own_participation import OwnParticipation
from .secure_aggregation.device import PATIENCE_SECONDS, SecureSums, take_on, why_unsafe
from .training import Channel, EndedError, Round, Trainer, Update
from .uploading import send_upload
from .waits import Waits, told_seconds

VERSION = "0.1.0"
_Outcome = messages.UploadHeader
_Reply = messages.UploadReply

_WHY_NOT = {
    _Outcome.NO_EXAMPLES: "it has no text to train on",
    _Outcome.NOT_FINITE: "training gave numbers that are not finite",
    _Outcome.NOT_ALLOWED: "it may not take part now",
    _Outcome.TOO_SLOW: "training would not end in time",
}

Notice = Callable[[str], None]
"""Told, in a few words without any text of the user's, what the client does."""


class Client:
    """One device's part in a run."""

    def __init__(
        self,
        dial: Callable[[], Channel],
        trainer: Trainer,
        *,
        conditions: Conditions = Conditions(),  # noqa: B008
        limits: Limits = Limits(),  # noqa: B008
        notice: Notice = lambda words: None,
        workers: Executor | None = None,
        participation: OwnParticipation | None = None,
        sums: SecureSums | None = None,
    ):
        """Prepare; nothing is sent before `run`.

        Args:
          dial: makes the connection.
          trainer: trains on the device's text, and is closed when `run` ends.
          conditions: when the device trains.
          limits: what it allows.
          notice: see `Notice`.
          workers: where training runs; threads of the event loop's where None.
          participation: what the device has taken part in; where None, it knows of this process alone.
          sums: for a device that takes part in secure sums alone; where None, it does in none.
        """
        self._dial, self._trainer, self._workers = dial, trainer, workers
        self._conditions, self._limits = conditions, limits
        # What may be a server's words has nothing that a terminal takes for commands, or a log for another line.
        self._notice: Notice = lambda words: notice(printable(words))
        self._participation = OwnParticipation() if participation is None else participation
        self._sums = sums
        self._download: ArtifactAssembly | None = None
        self._waits = Waits(limits)
        self._stopped = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def run(self) -> bool:
        """Take part until the run is over, or this client's part in it; see `run_async`."""
        return asyncio.run(self.run_async())

    def stop(self) -> None:
        """Check in no more; a round under way goes on to its end. Call it from any thread."""
        self._stopped = True
        if self._running is not None:
            loop, stop = self._running
            loop.call_soon_threadsafe(stop.set)

    async def run_async(self) -> bool:
        """Take part until the run is over, this client may take part no more, or `stop` was called.

        Returns:
          Whether the run is over for everybody.

        Raises:
          ClientError: the server turns this client away, or asks for what it does not allow; or the device's text
            cannot be read.
        """
        try:
            # Before a server selects a device whose text cannot be read.
            self._trainer.text.version()
            channel = self._dial()
            try:
                return await self._take_part(channel)
            finally:
                await channel.close()
        except RefusedError as error:
            raise ClientError(printable(f"the server turns this client away: {error}")) from error
        except WrongServerError as error:
            raise WrongServerError(printable(str(error))) from error
        finally:
            self._running = None
            self._trainer.close()

    async def _take_part(self, channel: Channel) -> bool:
        stop, self._waits = asyncio.Event(), Waits(self._limits)
        self._running = asyncio.get_running_loop(), stop
        while not self._stopped:
            wait = await self._once(channel)
            if isinstance(wait, bool):
                return wait
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), wait)
        return False

    async def _once(self, channel: Channel) -> float | bool:
        """Check in once, and take part if selected; returns how long to wait or, at the end, whether for everybody."""
        if not self._conditions.met():
            return self._limits.recheck_seconds
        try:
            reply = await self._check_in(channel)
            self._waits.answered = True
            if reply.WhichOneof("answer") == "selected":
                await self._participation.log.confirm(channel, reply.selected)
                return await self._take_part_in(channel, reply.selected)
            # Not where it was selected: what fails after that would be tried as often as if it were the first.
            self._waits.worked()
            return self._told_to_come_back(reply.come_back)
        except TransportError as error:
            wait = self._waits.after_failure()
            self._notice(f"the server cannot be reached: {error}; trying again in {wait:.1f} seconds")
            return wait
        except WrongServerError as error:
            if not self._waits.answered:
                raise
            # The server was there before: what answers now may be a network's own page, or a server that is mended.
            self._notice(f"{error}; trying again in {self._limits.longest_backoff:.1f} seconds")
            return self._limits.longest_backoff
        except UnknownArtifactError:
            # The round is over.
            return self._waits.after_failure()

    async def _check_in(self, channel: Channel) -> messages.CheckInReply:
        request = self._trainer.introduce()
        request.protocol, request.secure_sums = PROTOCOL, self._sums is not None
        request.log_sizes.extend(self._participation.log.ask())
        request.populations.extend(self._participation.belongs_to())
        try:
            reply = await channel.check_in(request)
        except UnknownArtifactError as error:
            raise WrongServerError(
                f"the program at this address does not know check-ins ({error}); dial the address of a server"
            ) from error
        # Servers of the first version did not say which one they spoke.
        if PROTOCOL not in (spoken := list(reply.protocols) or [1]):
            raise RefusedError(
                f"it speaks version {', '.join(map(str, spoken))} of the protocol, but this client speaks {PROTOCOL}; "
                "update the older of the two"
            )
        self._participation.log.see(reply)
        return reply

    def _told_to_come_back(self, answer: messages.ComeBack) -> float | bool:
        if answer.finished:
            return True
        if answer.done:
            self._notice(answer.reason)
            return False
        return told_seconds(answer.seconds)

    async def _take_part_in(self, channel: Channel, asked: messages.RoundConfiguration) -> float:
        deadline = time.monotonic() + told_seconds(asked.seconds)
        take_on(asked, self._sums, by_plan=self._trainer.introduce().needs_plan)
        examples = self._trainer.text.version()
        device = self._trainer.depends_on(asked, examples)
        header = _Outcome(attempt=asked.attempt, upload_id=secrets.token_bytes(16))
        try:
            if reason := why_unsafe(self._sums, asked) or self._participation.may(asked, device):
                self._notice(f"round {asked.round_number}: it does not take part, since {reason}")
                raise EndedError(_Outcome.NOT_ALLOWED)
            update: Update | None = await self._train(channel, asked, examples, deadline)
            header.outcome = _Outcome.TRAINED
        except EndedError as ended:
            update, header.outcome = None, ended.outcome
        if not self._limits.keep_model:
            self._download = None
        take = functools.partial(self._participation.take, asked, device)

        async def send(upload: bytes) -> messages.UploadReply:
            header.size = len(upload)
            # A masked vector is sent after training, when the server waits for it.
            masked = self._sums is not None and header.outcome == _Outcome.TRAINED
            until = time.monotonic() + PATIENCE_SECONDS if masked else deadline
            pieces = functools.partial(in_pieces, upload, take)
            return await send_upload(channel, header, pieces, until, waits=self._waits, notice=self._notice)

        if update is not None and self._sums is not None:
            try:
                # It lets the update go once it has integers: many clients may share a machine's memory.
                giving, update = self._sums.give(channel, asked, update, send), None
                reply = await giving
            except UnsafeSumError as error:
                self._notice(f"round {asked.round_number}: its update is in no sum, since {error}")
                return self._waits.after_failure()
        else:
            reply = await send(b"" if update is None else update.declared_in(header))
        self._tell_owner(asked.round_number, header.outcome, reply)
        return told_seconds(reply.come_back_seconds)

    def _tell_owner(self, number: int, outcome: "messages.UploadHeader.Outcome", reply: messages.UploadReply) -> None:
        why = _WHY_NOT.get(outcome)
        did = f"it declined, since {why}; the server's answer: " if why else ""
        # A server of a later version may know others.
        status = _Reply.Status.Name(reply.status) if reply.status in _Reply.Status.values() else str(reply.status)
        self._notice(f"round {number}: {did}{status} {reply.reason}".strip())

    async def _train(
        self, channel: Channel, asked: messages.RoundConfiguration, examples: object, deadline: float
    ) -> Update:
        async def fetch(
            description: messages.Artifact, largest: int | None = None, option: str = "largest_download"
        ) -> bytearray:
            most = self._limits.largest_download if largest is None else largest
            return await self._fetch(channel, description, most, option)

        fetched: Any = await self._trainer.fetch(asked, fetch)
        device = self._trainer.depends_on(asked, examples)

        def train() -> Update:
            until = min(deadline, time.monotonic() + self._limits.max_training_seconds)
            of_round = Round(
                asked,
                examples,
                self._limits.max_batches,
                lambda: self._participation.tell(asked, device),
                lambda: self._before_step(until),
            )
            return self._trainer.train(of_round, fetched)

        return await asyncio.get_running_loop().run_in_executor(self._workers, train)

    def _before_step(self, until: float) -> None:
        if time.monotonic() > until:
            raise EndedError(_Outcome.TOO_SLOW)
        # Who is interrupted waits for no more than the local step under way.
        if self._running is None or not self._conditions.met():
            raise EndedError(_Outcome.NOT_ALLOWED)

    async def _fetch(self, channel: Channel, description: messages.Artifact, largest: int, option: str) -> bytearray:
        """Download, going on where the last try broke off."""
        if self._download is None or self._download.description.digest != description.digest:
            self._download = ArtifactAssembly(description, largest, option)
        assembly = self._download
        if not assembly.complete:
            request = DownloadRequest(digest=description.digest, first_chunk=assembly.next_chunk)
            async for chunk in channel.download(request):
                assembly.add(chunk)
        if not assembly.complete:
            raise TransportError("a download ended before its last chunk")
        return assembly.content
