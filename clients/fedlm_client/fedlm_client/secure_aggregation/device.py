"""A device's part in secure sums: who it is, whom it believes, and what it asks for."""

import asyncio
import hashlib
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cryptography import x509

from .. import messages_pb2 as messages
from ..errors import TransportError, UnsafeSumError
from ..link.credentials import AUTHORITY_FILE, CLIENT, read_certificates, read_credentials, read_key
from ..link.protocol import UPLOAD_MAGIC, upload_plan_digest
from ..own_participation import asked_of_all
from ..training import Channel, Update
from .floors import Floors
from .keys import AttemptName, Identity
from .member import Member
from .noised_vector import noised_integers, told_lattice
from .roster import Parameters
from .sum_vector import SumLayout, Told
from .taking_part import Reply, Step, take_part

_HEADER_BYTES, _CHECKSUM_BYTES, _FLOAT32 = 8, 4, 1
PATIENCE_SECONDS = 3600.0
"""How long a step of a secure sum may take."""
_SOONEST_SECONDS, _FIRST_SECONDS, _LATEST_SECONDS = 0.02, 1.0, 60.0
_FAILURES = 5
"""Calls in a row that may fail before this client gives the sum up."""
_States = messages.SecureReply


@dataclass(frozen=True)
class SecureSums:
    """What a device needs for secure sums.

    Attributes:
      identity: its certificate and key.
      authorities: whose certificates of other members it believes.
      floors: what it asks for.
      secret: 32 bytes that nobody else knows. What this client draws in training follows from them and the round, and
        not from a number that a server gives it: of an exact sum, who knew the draws of all could tell some apart.
    """

    identity: Identity
    authorities: tuple[x509.Certificate, ...]
    floors: Floors
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @classmethod
    def read(cls, folder: Path, floors: Floors) -> "SecureSums":
        """Read a client's credentials; raises `KeysError`."""
        identity = Identity(read_credentials(folder, CLIENT), read_key(folder / f"{CLIENT}.key"))
        return cls(identity, tuple(read_certificates(folder / AUTHORITY_FILE)), floors)

    def index(self, asked: messages.RoundConfiguration) -> int:
        """Tell by what number this client draws in a round."""
        return int.from_bytes(hashlib.sha256(self.secret + asked_of_all(asked)).digest()[:4], "big")

    async def give(
        self,
        channel: Channel,
        asked: messages.RoundConfiguration,
        update: Update,
        send: Callable[[bytes], Awaitable[messages.UploadReply]],
    ) -> messages.UploadReply:
        """Add an update to a secure sum.

        Args:
          channel: to the server.
          asked: what the server asks for.
          update: float32 values, as an upload of the first scheme has them.
          send: uploads the masked vector, once it is on disk that this client gives no other for this round.

        Returns:
          The answer to the upload.

        Raises:
          UnsafeSumError: this client refuses, or the server goes on without it.
        """
        integers, told_rules = await asyncio.to_thread(_integers, asked, update)
        del update
        plan = asked.plan.manifest.digest
        member = Member(AttemptName.of(asked), self.identity, self.floors, self.authorities, plan=plan)
        pause, failures, reply = _FIRST_SECONDS, 0, messages.UploadReply()
        asks, until = "", math.inf

        async def ask(step: Step, content: bytes) -> Reply:
            nonlocal pause, reply, failures, asks, until
            if step != asks:
                asks, until = step, time.monotonic() + PATIENCE_SECONDS
            if step == "vector":
                told_rules.check(member.rules)
                reply = await send(content)
                accepted = reply.status == messages.UploadReply.ACCEPTED
                return Reply("ready" if accepted else "over", reason=reply.reason)
            request = messages.SecureRequest(attempt=asked.attempt, step=step, content=content)
            try:
                answer, failures = await channel.secure_sum(request), 0
            except TransportError:
                if (failures := failures + 1) == _FAILURES:
                    raise
                return Reply("wait")
            pause = min(max(_SOONEST_SECONDS, answer.seconds), _LATEST_SECONDS)
            if answer.state == _States.WAIT:
                return Reply("wait")
            return Reply("ready" if answer.state == _States.READY else "over", answer.content, answer.reason)

        async def wait() -> None:
            if time.monotonic() > until:
                raise UnsafeSumError("the server has let this client wait for an hour in one step")
            await asyncio.sleep(pause)

        # A cohort's signatures and masks take seconds, in which connections, of a fleet also those of others, go on.
        taking_part = take_part(member, integers, ask, wait, aside=asyncio.to_thread)
        del integers
        await taking_part
        return reply


def why_unsafe(sums: SecureSums | None, asked: messages.RoundConfiguration) -> str:
    """Say why an update would be seen by itself or without noise, or could not be masked; else empty."""
    if (sums is not None) != asked.HasField("secure_sum"):
        return "the server would see its update by itself" if sums else "it has no keys to mask its update with"
    noised = asked.secure_sum.HasField("noise")
    if sums is not None and not noised and asked.program.dropout != 0:
        return "an exact sum of a model with dropout may tell its members apart"
    if sums is None or asked.HasField("participation") == noised:
        return ""
    if asked.HasField("participation"):
        return "the server shows a plan of privacy, but a sum without noise would be exact"
    return "the server asks for a sum with noise, but shows no plan of how often"


def take_on(asked: messages.RoundConfiguration, sums: SecureSums | None, by_plan: bool) -> None:
    """Put into a request of a secure sum, in place, what is this device's own affair: an index, which repeated attempts
    at one round share and nobody connects with those of other rounds, and no plan if it trains by none."""
    if sums is None:
        return
    asked.client_index = sums.index(asked)
    if not by_plan:
        asked.ClearField("plan")


class _RoundRules(NamedTuple):
    """What the rules of a roster must say of a client's integers, since it made these before it saw them."""

    clip_norm: float
    scale: float
    largest: int
    noise: str
    variance: float
    rotation: bytes
    bits: int | None = None  # None where integers are the same for any number of bits

    def check(self, rules: Parameters) -> None:
        """Refuse other rules."""
        found = _RoundRules(*(getattr(rules, name) for name in self._fields))
        if found._replace(bits=found.bits if self.bits is not None else None) != self:
            raise UnsafeSumError("the roster has another clip norm, grid or noise than the round")


def _integers(asked: messages.RoundConfiguration, update: Update) -> tuple[np.ndarray, _RoundRules]:
    told = asked.secure_sum
    values = np.frombuffer(update.upload, "<f4", offset=_HEADER_BYTES, count=_count(asked.program.upload, update))
    if told.HasField("noise"):
        lattice = told_lattice(told, len(values))
        told_rules = _RoundRules(
            told.clip_norm, lattice.scale, 0, lattice.noise, lattice.variance, told.noise.rotation, lattice.bits
        )
        return noised_integers(lattice, values, asked), told_rules
    try:
        layout = SumLayout(told.clip_norm, told.step, Told(*told.bounds))
        training = (update.num_examples, update.loss, update.tokens, update.gradient_norm)
        integers = layout.integers(values, Told(0.0, 0.0, *map(float, training)))
        told_rules = _RoundRules(layout.clip_norm, 1 / layout.step, layout.largest, "", 0.0, b"")
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise UnsafeSumError(f"the server says nonsense of its sum: {error}") from error
    if integers is None:
        # Whether numbers are finite tells of a text.
        integers = np.zeros(len(values) + len(Told._fields), np.int64)
    return integers, told_rules


def _count(told: messages.UploadPlan, update: Update) -> int:
    """Count the numbers of an update that is an upload of the scheme and shapes that all members were told."""
    shapes = [one.dimensions for one in told.tensors]
    header = UPLOAD_MAGIC + upload_plan_digest(_FLOAT32, 1, {}, shapes)[:4]
    count = sum(map(math.prod, shapes))
    if (told.scheme, told.version, update.upload[:_HEADER_BYTES]) != (_FLOAT32, 1, header) or (
        len(update.upload) != _HEADER_BYTES + 4 * count + _CHECKSUM_BYTES
    ):
        raise UnsafeSumError("a secure sum needs updates of float32, of the shapes that all members are told")
    return count
