"""A client of a deployment: checks in, trains when it is selected and allowed to, and answers with an update.

What leaves the device is the messages of `fl_core/deployment/protocol/messages.proto` and nothing else.
"""

import asyncio
import contextlib
import math
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from typing import NamedTuple

import jax
import numpy as np

from fedlm.clients.example_store import Examples
from fedlm.clients.local_training import ClientProgram, ClientReport, train_locally
from fedlm.clients.own_participation import OwnParticipation
from fedlm.clients.server_instructions import Encode, ReadVocabulary, encode, plan_of, program_of
from fedlm.clients.settings import ClientLimits, Conditions
from fedlm.fl_core.client_algorithms.interface import sent_by_server
from fedlm.fl_core.client_algorithms.registry import CLIENT_ALGORITHMS
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.artifacts import ArtifactAssembly
from fedlm.fl_core.deployment.protocol.errors import (
    RefusedError,
    TransportError,
    UnknownArtifactError,
    WrongServerError,
)
from fedlm.fl_core.deployment.protocol.interface import PROTOCOL, Channel
from fedlm.fl_core.deployment.protocol.training_program import read_cut
from fedlm.fl_core.errors import ConfigurationError, UserError
from fedlm.fl_core.updates.update_bytes import WireError, unpack_parameters
from fedlm.models.precision import precision_scope, resolve_precision
from fedlm.models.registry import UnknownModelError

VERSION = "0.1"
_SOONEST_SECONDS, _LATEST_SECONDS = 0.02, 24 * 3600.0
_SOON_SECONDS, _SOON_FOR_SECONDS = 3.0, 120.0
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


class _EndedError(Exception):
    """Training ended before its last step."""

    def __init__(self, outcome: "messages.UploadHeader.Outcome", tells: bool = False):
        """Say how it ended, and whether that tells the server something of the text."""
        super().__init__(outcome)
        self.outcome, self.tells = outcome, tells


class _Warm(NamedTuple):
    """What is kept from round to round."""

    program: messages.TrainingProgram
    vocabulary: bytes
    examples: tuple[int, int]
    runs: ClientProgram
    sequences: np.ndarray
    num_cut: int  # examples that the text was cut into, some of which may have no token


class Client:
    """One device's part in a run."""

    def __init__(
        self,
        dial: Callable[[], Channel],
        examples: Examples,
        read_vocabulary: ReadVocabulary,
        conditions: Conditions = Conditions(),  # noqa: B008
        limits: ClientLimits = ClientLimits(),  # noqa: B008
        notice: Notice = lambda words: None,
        workers: Executor | None = None,
        participation: OwnParticipation | None = None,
    ):
        """Prepare; nothing is sent before `run`.

        Args:
          dial: makes the connection.
          examples: the device's text.
          read_vocabulary: makes the tokenizer of what the server sends.
          conditions: when the device trains.
          limits: what it allows.
          notice: see `Notice`.
          workers: where training runs; threads of the event loop's where None.
          participation: what the device has taken part in; where None, it knows of this process alone.
        """
        self._dial, self._examples, self._read_vocabulary = dial, examples, read_vocabulary
        self._conditions, self._limits, self._notice, self._workers = conditions, limits, _in_print(notice), workers
        self._participation = OwnParticipation() if participation is None else participation
        self._encoders: dict[bytes, Encode] = {}
        self._warm: _Warm | None = None
        self._download: ArtifactAssembly | None = None
        self._failures, self._answered, self._began = 0, False, 0.0
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
          ConfigurationError: the server turns this client away, or asks for what it does not allow.
          DataError: the device's text cannot be read.
        """
        # Before a server selects a device whose text cannot be read.
        self._examples.version()
        channel, stop, self._began = self._dial(), asyncio.Event(), time.monotonic()
        self._running = asyncio.get_running_loop(), stop
        try:
            while not self._stopped:
                wait = await self._once(channel)
                if isinstance(wait, bool):
                    return wait
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), wait)
            return False
        except RefusedError as error:
            raise ConfigurationError(_printable(f"the server turns this client away: {error}")) from error
        except WrongServerError as error:
            raise ConfigurationError(_printable(str(error))) from error
        except (UnknownModelError, WireError) as error:
            raise ConfigurationError(f"the server asks for what this client cannot do: {error}") from error
        finally:
            self._running = None
            await channel.close()

    async def _once(self, channel: Channel) -> float | bool:
        """Check in once, and take part if selected; returns how long to wait or, at the end, whether for everybody."""
        if not self._conditions.met():
            return self._limits.recheck_seconds
        try:
            request = messages.CheckInRequest(
                protocol=PROTOCOL,
                client_version=VERSION,
                models=self._limits.models,
                algorithms=self._limits.algorithms or CLIENT_ALGORITHMS,
            )
            reply = await _check_in(channel, request)
            _check_protocol(reply)
            self._answered = True
            if reply.WhichOneof("answer") == "come_back":
                # Not where it was selected: what fails after that would be tried as often as if it were the first.
                self._failures = 0
                return self._told_to_come_back(reply.come_back)
            return await self._take_part(channel, reply.selected)
        except TransportError as error:
            wait = self._backoff()
            self._notice(f"the server cannot be reached: {error}; trying again in {wait:.1f} seconds")
            return wait
        except WrongServerError as error:
            if not self._answered:
                raise
            # The server was there before: what answers now may be a network's own page, or a server that is mended.
            self._notice(f"{error}; trying again in {self._limits.longest_backoff:.1f} seconds")
            return self._limits.longest_backoff
        except UnknownArtifactError:
            # The round is over.
            return self._backoff()

    def _told_to_come_back(self, answer: messages.ComeBack) -> float | bool:
        if answer.finished:
            return True
        if answer.done:
            self._notice(answer.reason)
            return False
        return _seconds_of(answer.seconds)

    def _backoff(self) -> float:
        """Choose a wait that doubles with each failure, at random so that clients do not all come at once."""
        limits = self._limits
        # Who begins before the server does has it soon.
        soon = not self._answered and time.monotonic() - self._began < _SOON_FOR_SECONDS
        most = min(limits.longest_backoff, _SOON_SECONDS) if soon else limits.longest_backoff
        longest = min(limits.first_backoff * 2.0**self._failures, most)
        self._failures = min(self._failures + 1, 30)
        return longest * random.uniform(0.5, 1.5)

    async def _take_part(self, channel: Channel, configuration: messages.RoundConfiguration) -> float:
        deadline = time.monotonic() + _seconds_of(configuration.seconds)
        report: ClientReport | None = None
        examples = self._examples.version()
        try:
            if reason := self._participation.may(configuration, examples):
                self._notice(f"round {configuration.round_number}: it does not take part, since {reason}")
                raise _EndedError(_Outcome.NOT_ALLOWED)
            await self._read_tokenizer(channel, configuration.vocabulary)
            content = await self._fetch(channel, configuration.parameters)
            loop = asyncio.get_running_loop()
            report = await loop.run_in_executor(self._workers, self._train, configuration, content, deadline)
            outcome = _Outcome.TRAINED if report else _Outcome.NOT_FINITE
            self._participation.tell(configuration, examples)
        except _EndedError as ended:
            outcome = ended.outcome
            if ended.tells:
                self._participation.tell(configuration, examples)
        header = _header(configuration, outcome, report)
        upload, chunk_bytes = report.upload if report else b"", configuration.parameters.chunk_bytes
        parts = _parts(header, upload, chunk_bytes, lambda: self._participation.take(configuration, examples))
        if not self._limits.keep_model:
            self._download = None
        reply = await self._send(channel, parts, deadline)
        did = "" if outcome == _Outcome.TRAINED else f"it declined, since {_WHY_NOT[outcome]}; the server's answer: "
        status = _Reply.Status.Name(reply.status)
        self._notice(f"round {configuration.round_number}: {did}{status} {reply.reason}".strip())
        return _seconds_of(reply.come_back_seconds)

    async def _read_tokenizer(self, channel: Channel, description: messages.Artifact) -> None:
        if description.digest not in self._encoders:
            content = bytes(await self._fetch(channel, description))
            try:
                self._encoders = {description.digest: self._read_vocabulary(content)}
            except (UserError, ValueError, RecursionError) as error:
                raise WireError("its tokenizer cannot be read, or is of another version of this software") from error

    async def _fetch(self, channel: Channel, description: messages.Artifact) -> bytearray:
        """Download, going on where the last try broke off."""
        if self._download is None or self._download.description.digest != description.digest:
            self._download = ArtifactAssembly(description, self._limits.largest_download)
        assembly = self._download
        if not assembly.complete:
            request = messages.DownloadRequest(digest=description.digest, first_chunk=assembly.next_chunk)
            async for chunk in channel.download(request):
                assembly.add(chunk)
        if not assembly.complete:
            raise TransportError("a download ended before its last chunk")
        return assembly.content

    def _train(
        self, configuration: messages.RoundConfiguration, content: bytearray, deadline: float
    ) -> ClientReport | None:
        work = self._prepare(configuration)
        if not len(work.sequences):
            # The tokenizer, which is the server's, chooses in which examples there is a token.
            raise _EndedError(_Outcome.NO_EXAMPLES, tells=work.num_cut > 0)
        model, algorithm = work.runs.model, work.runs.training.algorithm
        like = sent_by_server(algorithm, jax.eval_shape(model.init, jax.random.key(0)))
        server = unpack_parameters(content, configuration.parameters.encoding, like)
        deadline = min(deadline, time.monotonic() + self._limits.max_training_seconds)

        def before_step() -> None:
            if time.monotonic() > deadline:
                raise _EndedError(_Outcome.TOO_SLOW)
            if not self._conditions.met():
                raise _EndedError(_Outcome.NOT_ALLOWED)

        precision = resolve_precision(configuration.program.precision, jax.default_backend())  # type: ignore[arg-type]
        with precision_scope(precision):
            client = configuration.client_index
            return train_locally(work.runs, server, work.sequences, plan_of(configuration), client, before_step)

    def _prepare(self, configuration: messages.RoundConfiguration) -> _Warm:
        program, vocabulary = configuration.program, configuration.vocabulary.digest
        examples = self._examples.version()
        if self._warm is None or self._warm[:3] != (program, vocabulary, examples):
            runs = program_of(program, self._limits)
            cut = self._examples.examples(read_cut(program))
            sequences = encode(cut, self._encoders[vocabulary], program.length)
            self._warm = _Warm(program, vocabulary, examples, runs, sequences, len(cut))
        return self._warm

    async def _send(
        self, channel: Channel, parts: Callable[[], AsyncIterator[messages.UploadPart]], deadline: float
    ) -> messages.UploadReply:
        """Upload, again where the connection broke, under the same id so that it counts once."""
        while True:
            reply = None
            try:
                reply = await channel.upload(parts())
            except TransportError as error:
                self._notice(f"the upload broke off: {error}")
            if reply is not None and reply.status != _Reply.DAMAGED:
                self._failures = 0
                return reply
            wait = self._backoff()
            if time.monotonic() + wait > deadline:
                raise TransportError("the upload did not get through while the round was open")
            await asyncio.sleep(wait)


def _seconds_of(seconds: float) -> float:
    """Take seconds from a server, which may say anything, so that a device neither comes back at once without end nor
    trains without end."""
    return min(max(seconds, _SOONEST_SECONDS), _LATEST_SECONDS) if math.isfinite(seconds) else _LATEST_SECONDS


async def _check_in(channel: Channel, request: messages.CheckInRequest) -> messages.CheckInReply:
    try:
        return await channel.check_in(request)
    except UnknownArtifactError as error:
        raise WrongServerError(f"what answers knows of no check-in ({error}); dial the address of a server") from error


def _in_print(notice: Notice) -> Notice:
    """Say what may be a server's words without what a terminal takes for commands, or a log for another line."""
    return lambda words: notice(_printable(words))


def _printable(words: str) -> str:
    return "".join(one for one in words if one.isprintable())


def _check_protocol(reply: messages.CheckInReply) -> None:
    # Servers of the first version did not say which one they spoke.
    spoken = list(reply.protocols) or [1]
    if PROTOCOL not in spoken:
        raise RefusedError(
            f"it speaks version {', '.join(map(str, spoken))} of the protocol, but this client speaks {PROTOCOL}; "
            "bring the older of the two up to date"
        )


def _header(
    configuration: messages.RoundConfiguration,
    outcome: "messages.UploadHeader.Outcome",
    report: ClientReport | None,
) -> messages.UploadHeader:
    header = messages.UploadHeader(attempt=configuration.attempt, upload_id=secrets.token_bytes(16), outcome=outcome)
    if report is not None:
        header.size, header.num_examples = len(report.upload), report.num_examples
        header.loss, header.tokens, header.gradient_norm = map(float, report.training)
    return header


def _parts(
    header: messages.UploadHeader, upload: bytes, chunk_bytes: int, before_upload: Callable[[], None]
) -> Callable[[], AsyncIterator[messages.UploadPart]]:
    async def parts() -> AsyncIterator[messages.UploadPart]:
        yield messages.UploadPart(header=header)
        # A server that wants nothing of an update is sent nothing.
        if upload:
            before_upload()
        for start in range(0, len(upload), chunk_bytes):
            yield messages.UploadPart(data=upload[start : start + chunk_bytes])

    return parts
