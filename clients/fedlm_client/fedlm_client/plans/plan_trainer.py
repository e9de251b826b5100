"""Trains by plans, models of LiteRT that a server sends, in a process with limits.

Text stays in this process; batches of its tokens go to the one with limits, which has no other connection than to this.
"""

import hashlib
import math
import zlib
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

from .. import messages_pb2 as messages
from ..client import VERSION, Notice
from ..errors import ClientError, PlanError, printable
from ..limits import PlanLimits
from ..text.example_store import Examples
from ..text.text_examples import with_tokens
from ..text.tokenizer import WordPiece
from ..training import EndedError, Fetch, Round, Update, adds_zeros
from .batches import RoundSeed, batch_of, batch_rows, random_words, sequences_of
from .confined import LoadedPlan
from .manifest import Batches, Manifest, check_limits, check_model, read_manifest
from .signature import check_signature

_Outcome = messages.UploadHeader


class Plan(NamedTuple):
    """A plan that was checked."""

    offered: bytes  # digest of the manifest's artifact
    manifest: Manifest
    described: bytes  # the manifest itself
    model: bytes


class Fetched(NamedTuple):
    """What a round needs."""

    plan: Plan
    tokenizer: WordPiece
    content: bytearray  # the server's tensors


class PlanTrainer:
    """A `Trainer` for whom the server makes plans."""

    def __init__(
        self,
        text: Examples,
        keys: list[Ed25519PublicKey],
        limits: PlanLimits = PlanLimits(),  # noqa: B008
        notice: Notice = lambda words: None,
    ):
        """Prepare to train on a text, by plans that one of the keys has signed."""
        self.text, self._keys, self._limits, self._notice = text, keys, limits, notice
        self._plan: Plan | None = None
        self._tokenizer: tuple[str, WordPiece] | None = None
        self._loaded: tuple[Plan, LoadedPlan] | None = None
        self._sequences: tuple[object, NDArray[np.int32]] | None = None

    def introduce(self) -> messages.CheckInRequest:
        return messages.CheckInRequest(client_version=f"fedlm-client {VERSION}", needs_plan=True)

    def depends_on(self, asked: messages.RoundConfiguration, examples: object) -> object:
        return examples

    async def fetch(self, asked: messages.RoundConfiguration, fetch: Fetch) -> Fetched:
        if not asked.HasField("plan"):
            raise ClientError(
                "this client needs plans, and the server makes none; its operator must give it a key for plans"
            )
        plan = await self._fetch_plan(asked.plan, fetch)
        tokenizer = await self._fetch_tokenizer(asked.vocabulary, plan.manifest, fetch)
        check_values(asked.parameters.size, asked.parameters.encoding, plan.manifest.download_values)
        return Fetched(plan, tokenizer, await fetch(asked.parameters))

    def train(self, of_round: Round, fetched: Fetched) -> Update:
        try:
            return self._update(of_round, fetched)
        except EndedError as ended:
            if adds_zeros(ended, of_round.asked):
                return Update.zeros(fetched.plan.manifest.header, fetched.plan.manifest.upload_bytes)
            raise

    def _update(self, of_round: Round, fetched: Fetched) -> Update:
        asked, manifest = of_round.asked, fetched.plan.manifest
        loaded = self._load(fetched.plan)
        values = values_of(fetched.content, asked.parameters.encoding, manifest.download_values)
        if not (texts := self.text.examples(manifest.examples)):
            raise EndedError(_Outcome.NO_EXAMPLES)
        # A plan chooses whether training ends, in time and in numbers, and how long its tokenizer takes: each says
        # something of the text, so that nothing is asked of the server from here until there is an update.
        of_round.tell()
        sequences = self._encode(texts, fetched.tokenizer, manifest, of_round.examples)
        if not len(sequences):
            raise EndedError(_Outcome.NO_EXAMPLES)
        try:
            return _train(loaded, manifest, of_round, values, sequences=sequences)
        except PlanError:
            self.close()
            raise

    def close(self) -> None:
        if self._loaded is not None:
            self._loaded[1].close()
            self._loaded = None

    async def _fetch_plan(self, offered: messages.Plan, fetch: Fetch) -> Plan:
        """Fetch and check a plan; the one that is there where it is the same."""
        if self._plan is not None and self._plan.offered == offered.manifest.digest:
            return self._plan
        most = self._limits.plan_bytes, "plan_bytes"
        described = bytes(await fetch(offered.manifest, *most))
        check_signature(described, offered.signature, self._keys)
        manifest = read_manifest(described)
        check_limits(manifest, self._limits)
        # What a manifest names has another digest where the server's size is another: it is not even downloaded.
        fits = offered.model.size == manifest.model_bytes
        model = bytes(await fetch(offered.model, *most)) if fits else b""
        check_model(manifest, model)
        self._plan = Plan(offered.manifest.digest, manifest, described, model)
        return self._plan

    async def _fetch_tokenizer(self, description: messages.Artifact, manifest: Manifest, fetch: Fetch) -> WordPiece:
        """Fetch the tokenizer that a plan names; the one that is there where it is the same."""
        if self._tokenizer is None or self._tokenizer[0] != manifest.tokenizer:
            fits = description.size == manifest.tokenizer_bytes
            content = bytes(await fetch(description)) if fits else b""
            if hashlib.sha256(content).hexdigest() != manifest.tokenizer:
                raise PlanError("the server's tokenizer is not the one that the plan names")
            self._tokenizer = manifest.tokenizer, WordPiece(content)
        return self._tokenizer[1]

    def _load(self, plan: Plan) -> LoadedPlan:
        if self._loaded is None or self._loaded[0] is not plan:
            self.close()
            self._notice(f"plan {plan.manifest.digest[:12]}: {printable(plan.manifest.about)}")
            self._loaded = plan, LoadedPlan(plan.manifest, plan.described, plan.model)
        return self._loaded[1]

    def _encode(self, texts: list[str], tokenizer: WordPiece, manifest: Manifest, version: object) -> NDArray[np.int32]:
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
    loaded: LoadedPlan,
    manifest: Manifest,
    of_round: Round,
    values: NDArray[np.float32],
    *,
    sequences: NDArray[np.int32],
) -> Update:
    asked, batches = of_round.asked, manifest.batches
    if not (asked.learning_rate > 0 and math.isfinite(asked.learning_rate)):
        raise ClientError(f"the server asks for the learning rate {asked.learning_rate}")
    seed = RoundSeed(asked.seed, asked.round_number, asked.client_index)
    loaded.begin(values)
    for number, rows in enumerate(batch_rows(len(sequences), batches, of_round.max_batches, seed)):
        of_round.before_step()
        tokens, weight = batch_of(sequences, rows, batches.pad)
        loaded.step(tokens, weight, random_words(batches, seed, number), asked.learning_rate)
    sums, finite, body = loaded.finish(*seed)
    if not finite:
        raise EndedError(_Outcome.NOT_FINITE)
    return Update(upload_of(manifest, body), kept_examples(len(sequences), batches), *sums)


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
