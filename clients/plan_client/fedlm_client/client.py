"""A device's part in a run by plans: checks in, trains when it is selected and allowed to, and answers with an update.

What leaves the device is the messages of docs/protocol.md and nothing else. Text stays in this process; batches of its
tokens go to the process with limits that runs the plan, and that has no other connection than to this one.
"""

import hashlib
import math
import random
import secrets
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

from fedlm_client import messages_pb2 as messages
from fedlm_client.artifacts import Assembly
from fedlm_client.batches import batch_of, batch_rows, random_words, sequences_of
from fedlm_client.confined import Trainer
from fedlm_client.errors import ClientError, GoneError, PlanError, TransportError, WrongServerError
from fedlm_client.http_channel import Channel
from fedlm_client.limits import Limits
from fedlm_client.manifest import Batches, Manifest, check_limits, check_model, read_manifest
from fedlm_client.own_participation import OwnParticipation
from fedlm_client.signature import check_signature
from fedlm_client.text_examples import ExampleCut, LineError, examples_of, read_lines, with_tokens
from fedlm_client.tokenizer import WordPiece

VERSION = "0.1"
PROTOCOL = 2
_SOONEST, _LATEST = 0.02, 24 * 3600.0
_SOON, _SOON_FOR = 3.0, 120.0  # seconds
_Outcome = messages.UploadHeader
_WHY_NOT = {
    _Outcome.NO_EXAMPLES: "it has no text to train on",
    _Outcome.NOT_FINITE: "training gave numbers that are not finite",
    _Outcome.NOT_ALLOWED: "it may not take part now",
    _Outcome.TOO_SLOW: "training would not end in time",
}


@dataclass(frozen=True)
class Settings:
    """How a device takes part."""

    data: Path  # JSON Lines of {"text": ...}
    keys: list[Ed25519PublicKey]  # whose plans it runs
    limits: Limits = Limits()  # noqa: RUF009
    notice: Callable[[str], None] = lambda words: None
    allowed: Callable[[], bool] = lambda: True  # whether the device may train now


class _Ended(Exception):  # noqa: N818
    def __init__(self, outcome: "messages.UploadHeader.Outcome"):
        super().__init__(outcome)
        self.outcome = outcome


class _Ready(NamedTuple):
    """A plan that was checked and loaded."""

    offered: bytes  # digest of the manifest's artifact
    manifest: Manifest
    trainer: Trainer


class Client:
    """One device."""

    def __init__(self, channel: Channel, settings: Settings, participation: OwnParticipation):
        """Prepare; nothing is sent before `run`."""
        self._channel, self._settings, self._participation = channel, settings, participation
        self._ready: _Ready | None = None
        self._tokenizer: tuple[str, WordPiece] | None = None
        self._sequences: tuple[object, NDArray[np.int32]] | None = None
        self._model: Assembly | None = None
        self._failures, self._answered, self._began = 0, False, 0.0
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Check in no more; a round under way goes on to its end. Call it from any thread."""
        self._stopped.set()

    def run(self) -> bool:
        """Take part until the run is over, this client's part in it, or `stop`; returns whether it is over for all.

        Raises:
          ClientError: the server turns this client away, or asks for what it does not allow.
        """
        self._began = time.monotonic()
        try:
            self._examples_version()
            while not self._stopped.is_set():
                wait = self._once()
                if isinstance(wait, bool):
                    return wait
                self._stopped.wait(wait)
            return False
        finally:
            self._channel.close()
            self._close_plan()

    def _once(self) -> float | bool:
        """Check in once, and take part if selected; returns how long to wait or, at the end, whether for everybody."""
        try:
            reply = self._check_in()
            if PROTOCOL not in (list(reply.protocols) or [1]):
                raise ClientError(
                    f"the server speaks other versions of the protocol than {PROTOCOL}; update one of the two"
                )
            self._answered = True
            if reply.WhichOneof("answer") == "selected":
                return self._take_part(reply.selected)
            # Not where it was selected: what fails after that would be tried as often as if it were the first.
            self._failures = 0
            answer = reply.come_back
            if answer.done and not answer.finished:
                self._settings.notice(_printable(answer.reason))
            return answer.finished if answer.finished or answer.done else _seconds(answer.seconds)
        except TransportError as error:
            wait = self._backoff()
            self._settings.notice(f"the server cannot be reached: {error}; trying again in {wait:.1f} seconds")
            return wait
        except WrongServerError as error:
            if not self._answered:
                raise
            # The server was there before: what answers now may be a network's own page, or a server that is mended.
            wait = self._settings.limits.longest_backoff
            self._settings.notice(f"{error}; trying again in {wait:.1f} seconds")
            return wait
        except GoneError:
            return self._backoff()

    def _check_in(self) -> "messages.CheckInReply":
        version = f"fedlm-client {VERSION}"
        request = messages.CheckInRequest(protocol=PROTOCOL, client_version=version, needs_plan=True)
        try:
            return self._channel.check_in(request)
        except GoneError as error:
            raise WrongServerError(
                f"what answers knows of no check-in ({error}); dial the address of a server"
            ) from error

    def _backoff(self) -> float:
        limits = self._settings.limits
        # Who begins before the server does has it soon.
        soon = not self._answered and time.monotonic() - self._began < _SOON_FOR
        most = min(limits.longest_backoff, _SOON) if soon else limits.longest_backoff
        longest = min(limits.first_backoff * 2.0**self._failures, most)
        self._failures = min(self._failures + 1, 30)
        return longest * random.uniform(0.5, 1.5)

    def _take_part(self, asked: "messages.RoundConfiguration") -> float:
        deadline = time.monotonic() + _seconds(asked.seconds)
        if not asked.HasField("plan"):
            raise ClientError(
                "the server makes no plans, which this client needs; its operator gives it a key for them"
            )
        header = _Outcome(attempt=asked.attempt, upload_id=secrets.token_bytes(16))
        examples, upload = self._examples_version(), b""
        try:
            if reason := self._participation.may(asked, examples):
                self._settings.notice(f"round {asked.round_number}: it does not take part, since {reason}")
                raise _Ended(_Outcome.NOT_ALLOWED)
            ready = self._plan(asked.plan)
            tokenizer = self._tokenizer_of(asked.vocabulary, ready.manifest)
            values = self._download_model(asked.parameters, ready.manifest)
            texts = read_examples(self._settings.data, ready.manifest.examples)
            if not texts:
                raise _Ended(_Outcome.NO_EXAMPLES)
            # A plan chooses whether training ends, in time and in numbers, and how long its tokenizer takes: each says
            # something of the text, so that nothing is asked of the server from here until there is an update.
            self._participation.tell(asked, examples)
            sequences = self._examples(texts, tokenizer, ready.manifest, examples)
            if not len(sequences):
                raise _Ended(_Outcome.NO_EXAMPLES)
            upload = self._train(asked, ready, values, sequences, deadline, header)
        except _Ended as ended:
            header.outcome = ended.outcome
        header.size = len(upload)
        reply = self._send(header, upload, lambda: self._participation.take(asked, examples), deadline)
        known = reply.status in messages.UploadReply.Status.values()
        status = messages.UploadReply.Status.Name(reply.status) if known else str(reply.status)
        did = _WHY_NOT.get(header.outcome, "")
        did = did and f"it declined, since {did}; the server's answer: "
        self._settings.notice(f"round {asked.round_number}: {did}{status} {_printable(reply.reason)}".strip())
        return _seconds(reply.come_back_seconds)

    def _plan(self, offered: "messages.Plan") -> _Ready:
        """Fetch, check and load a plan; the one that is loaded where it is the same."""
        if self._ready is not None and self._ready.offered == offered.manifest.digest:
            return self._ready
        limits = self._settings.limits
        described = bytes(self._fetch(offered.manifest, "plan_bytes"))
        check_signature(described, offered.signature, self._settings.keys)
        manifest = read_manifest(described)
        check_limits(manifest, limits)
        model = self._fetch_named(offered.model, manifest.model_bytes, "plan_bytes")
        check_model(manifest, model)
        self._close_plan()
        self._settings.notice(f"plan {manifest.digest[:12]}: {_printable(manifest.about)}")
        self._ready = _Ready(offered.manifest.digest, manifest, Trainer(manifest, described, model))
        return self._ready

    def _close_plan(self) -> None:
        if self._ready is not None:
            self._ready.trainer.close()
            self._ready = None

    def _fetch(self, description: "messages.Artifact", limit: str) -> bytearray:
        assembly = Assembly(description, self._settings.limits, limit)
        self._channel.download(assembly)
        return assembly.content

    def _fetch_named(self, description: "messages.Artifact", size: int, limit: str) -> bytes:
        """Fetch what a manifest names; nothing, which has no such digest, where the server's size is another."""
        return bytes(self._fetch(description, limit)) if description.size == size else b""

    def _download_model(self, description: "messages.Artifact", manifest: Manifest) -> NDArray[np.float32]:
        """Fetch the server's tensors, going on where the last try broke off."""
        check_values(description.size, description.encoding, manifest.download_values)
        if self._model is None or self._model.digest != description.digest:
            self._model = Assembly(description, self._settings.limits, "largest_download")
        if not self._model.complete:
            self._channel.download(self._model)
        return values_of(self._model.content, description.encoding, manifest.download_values)

    def _examples_version(self) -> str:
        try:
            found = self._settings.data.stat()
        except OSError as error:
            raise ClientError(
                f"{self._settings.data}: cannot be read ({error}); give the file of this device's text"
            ) from error
        return repr((found.st_mtime_ns, found.st_size))

    def _tokenizer_of(self, description: "messages.Artifact", manifest: Manifest) -> WordPiece:
        """Fetch the tokenizer that a plan names; the one that is there where it is the same."""
        if self._tokenizer is None or self._tokenizer[0] != manifest.tokenizer:
            content = self._fetch_named(description, manifest.tokenizer_bytes, "largest_download")
            if hashlib.sha256(content).hexdigest() != manifest.tokenizer:
                raise PlanError("the server's tokenizer is not the one that the plan names")
            self._tokenizer = manifest.tokenizer, WordPiece(content)
        return self._tokenizer[1]

    def _examples(self, texts: list[str], tokenizer: WordPiece, manifest: Manifest, version: str) -> NDArray[np.int32]:
        key = (manifest.tokenizer, manifest.batches, manifest.examples, version)
        if self._sequences is None or self._sequences[0] != key:
            if 4 * len(texts) * (manifest.batches.length + 1) > manifest.memory_bytes:
                raise PlanError(
                    f"{len(texts)} examples of the plan's {manifest.batches.length} tokens take more than its memory "
                    f"of {manifest.memory_bytes:,} bytes"
                )
            encoded = with_tokens(tokenizer.encode(text) for text in texts)
            self._sequences = key, sequences_of(encoded, manifest.batches)
        return self._sequences[1]

    def _train(
        self,
        asked: "messages.RoundConfiguration",
        ready: _Ready,
        values: NDArray[np.float32],
        sequences: NDArray[np.int32],
        deadline: float,
        header: "messages.UploadHeader",
    ) -> bytes:
        rate, limits = asked.learning_rate, self._settings.limits
        if not (rate > 0 and math.isfinite(rate)):
            raise ClientError(f"the server asks for the learning rate {rate}")
        deadline = min(deadline, time.monotonic() + limits.max_training_seconds)
        batches, stream = ready.manifest.batches, (asked.seed, asked.round_number, asked.client_index)
        try:
            ready.trainer.begin(values)
            for number, rows in enumerate(batch_rows(len(sequences), batches, limits.max_batches, *stream)):
                if time.monotonic() > deadline:
                    raise _Ended(_Outcome.TOO_SLOW)
                if not self._settings.allowed():
                    raise _Ended(_Outcome.NOT_ALLOWED)
                tokens, weight = batch_of(sequences, rows, batches.pad)
                ready.trainer.step(tokens, weight, random_words(batches, *stream, number), rate)
            sums, finite, body = ready.trainer.finish(*stream)
        except PlanError:
            self._close_plan()
            raise
        if not finite:
            raise _Ended(_Outcome.NOT_FINITE)
        header.outcome, header.num_examples = _Outcome.TRAINED, kept_examples(len(sequences), batches)
        header.loss, header.tokens, header.gradient_norm = sums
        return upload_of(ready.manifest, body)

    def _send(
        self, header: "messages.UploadHeader", upload: bytes, before: Callable[[], None], deadline: float
    ) -> "messages.UploadReply":
        """Upload, again where the connection broke, under the same id so that it counts once."""
        while True:
            reply = None
            try:
                reply = self._channel.upload(header, upload, before)
            except TransportError as error:
                self._settings.notice(f"the upload broke off: {error}")
            if reply is not None and reply.status != messages.UploadReply.DAMAGED:
                self._failures = 0
                return reply
            wait = self._backoff()
            if time.monotonic() + wait > deadline:
                raise TransportError("the upload did not get through while the round was open")
            time.sleep(wait)


def upload_of(manifest: Manifest, body: bytes) -> bytes:
    """Make an upload of what the signature finish gave: header, body and checksum."""
    whole = manifest.header + body
    return whole + zlib.crc32(whole).to_bytes(4, "little")


def values_of(content: bytes | bytearray, encoding: str, count: int) -> NDArray[np.float32]:
    """Read the tensors of a download, float32 [count], end to end; raises PlanError where it is another model's."""
    check_values(len(content), encoding, count)
    if encoding == "float32":
        return np.frombuffer(content, "<f4")
    return (np.frombuffer(content, "<u2").astype(np.uint32) << 16).view(np.float32)


def check_values(size: int, encoding: str, count: int) -> None:
    """Refuse, with `PlanError`, a download of so many bytes that does not have the plan's values."""
    if encoding not in ("float32", "bfloat16") or size != count * (4 if encoding == "float32" else 2):
        raise PlanError(f"the download has {size} bytes of {encoding[:16]!r}, but the plan has {count} values")


def kept_examples(count: int, batches: Batches) -> int:
    """Count the examples that a device trains on in an epoch."""
    return count if batches.max_examples is None else min(count, batches.max_examples)


def read_examples(path: Path, cut: ExampleCut) -> list[str]:
    """Read a device's text, cut into examples; raises ClientError where it cannot be read, or a line is none."""
    try:
        lines = read_lines(path.read_bytes())
    except (OSError, LineError) as error:
        raise ClientError(f'{path}: expected lines of {{"text": "..."}} in UTF-8, but {error}') from error
    return [example for line in lines for example in examples_of(line.text, cut)]


def _seconds(seconds: float) -> float:
    return min(max(seconds, _SOONEST), _LATEST) if math.isfinite(seconds) else _LATEST


def _printable(text: str) -> str:
    return "".join(one for one in text[:500] if one.isprintable())
