"""The clients that have checked in, in memory: their numbers, and when each took part.

What bounds participation is written to the state before a round's sum is used. Check-ins are written now and then, many
at once: should the server stop in between, nothing depends on them.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.state.state import (
    LATE_ROUNDS,
    SILENT_ONCE,
    SeenClient,
    StateError,
    UnreachableError,
)
from fedlm.fl_core.deployment.state.state_sql import SqlState
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation

DAY_SECONDS = 24 * 3600.0
_SAVED_EVERY_SECONDS = 1.0
_IN_TIME = 0.95


class ClientsSeen(NamedTuple):
    """How many clients have checked in."""

    known: int
    within_a_day: int


class OtherRuns(NamedTuple):
    """What clients gave to other runs of the population, whose rounds are on disk."""

    most: int  # rounds in which a client takes part, of all runs
    taken: Mapping[str, int]  # in how many rounds of other runs a client took part, by its identity


@dataclass(slots=True, eq=False)
class _Client:
    number: int
    identity: str
    last_round: int | None = None
    participations: int = 0
    late_until: int = 0
    check_ins: int = 0
    last_seen: float = 0.0
    version: str = ""
    rests_until: float = 0.0


class ClientRegistry:
    """All clients of a run. Used in one thread."""

    def __init__(
        self,
        state: SqlState,
        bound: BoundedParticipation,
        saved_every: int,
        others: OtherRuns | None = None,
    ):
        """Read the clients of the run so far, whose rounds are on disk after every `saved_every` of them."""
        self._state, self._bound, self._saved_every, self._others = state, bound, saved_every, others
        self._clients: dict[str, _Client] = {}
        self._by_number: dict[int, _Client] = {}
        self._unsaved: dict[int, _Client] = {}
        self._saving = asyncio.Lock()
        for record in state.clients():
            self._add(_Client(*record))
        self._next = self._known = max(self._by_number, default=-1) + 1
        self._recent: dict[int, float] = {}

    def _add(self, client: _Client) -> None:
        self._clients[client.identity] = self._by_number[client.number] = client

    def add(self, number: int, identity: str) -> None:
        """Note a client that another process knows."""
        if number not in self._by_number:
            self._add(_Client(number, identity))

    def check_in(self, identity: str, version: str) -> int:
        """Note a check-in with a version of the client's software; returns the client's number in this run."""
        client = self._clients.get(identity)
        if client is None:
            client = _Client(self._next, identity)
            self._next += 1
            self._add(client)
        client.check_ins += 1
        client.version, client.last_seen = version, time.time()
        self._unsaved[client.number] = client
        self._recent.pop(client.number, None)
        self._recent[client.number] = time.monotonic()
        return client.number

    def number_of(self, identity: str) -> int | None:
        """Look a client's number up; None where it has never checked in."""
        client = self._clients.get(identity)
        return None if client is None else client.number

    def ask_back(self, number: int, seconds: float) -> None:
        """Note that a client was asked to come back after so many seconds; a little earlier is in time too."""
        client = self._by_number[number]
        client.rests_until = time.monotonic() + _IN_TIME * seconds
        self._unsaved[number] = client

    def seconds_early(self, number: int) -> float:
        """Say how many seconds a client should still have stayed away; 0 where it is in time."""
        return max(self._by_number[number].rests_until - time.monotonic(), 0.0)

    def was_silent(self, numbers: Sequence[int], round_number: int) -> None:
        """Note clients that were selected for a round and silent, once the state has it."""
        for number in numbers:
            client = self._by_number[number]
            client.late_until = round_number + 1 + LATE_ROUNDS if client.late_until else SILENT_ONCE

    def comes_last(self, number: int, round_number: int) -> bool:
        """Say whether a client was silent of late, twice without a report in between."""
        return round_number < self._by_number[number].late_until

    async def keep_number(self, number: int) -> None:
        """Make sure that a client has the same number after a crash, which what it sends follows from; raises
        `StateError` where that fails."""
        if number >= self._known:
            await self.save()

    def rounds_to_rest(self, number: int, round_number: int, is_open: bool) -> int | None:
        """Say how long a client may not take part.

        Args:
          round_number: of the round that is running, or comes next.
          is_open: whether it is running, so that the one before is over in every respect.

        Returns:
          Rounds from that one until it may, or until it is worth asking again; None where it never may again.
        """
        client = self._by_number[number]
        left = self._left(client)
        if client.last_round is None:
            return 0 if left is None or left > 0 else None
        if left is not None and left <= 0:
            whole = round_number if is_open else round_number - 1
            return final_rest(client.last_round, whole, self._saved_every)
        return max(0, client.last_round + self._bound.min_separation - round_number)

    def _left(self, client: _Client) -> int | None:
        """Count the rounds that a client may still take part in; None where nothing bounds them."""
        most = self._bound.max_participations
        limits = [] if most is None else [most]
        if self._others is not None:
            limits.append(self._others.most - self._others.taken.get(client.identity, 0))
        return min(limits) - client.participations if limits else None

    def took_part(self, numbers: Sequence[int], round_number: int) -> None:
        """Note which clients took part in a round, once the state has it."""
        for number in numbers:
            client = self._by_number[number]
            client.last_round, client.participations = round_number, client.participations + 1
            client.late_until = 0

    def seen(self) -> ClientsSeen:
        """Count the clients that have checked in; from any thread."""
        oldest = time.monotonic() - DAY_SECONDS
        return ClientsSeen(len(self._clients), sum(seen >= oldest for seen in list(self._recent.values())))

    def recent_clients(self) -> int:
        """Count the clients that have checked in within the last day."""
        oldest = time.monotonic() - DAY_SECONDS
        while self._recent:
            first = next(iter(self._recent))
            if self._recent[first] >= oldest:
                break
            del self._recent[first]
        return len(self._recent)

    def unsaved(self) -> list[SeenClient]:
        """List the check-ins that the state does not have yet, one entry a client."""
        return [
            SeenClient(
                client.number,
                client.identity,
                client.version,
                client.check_ins,
                client.last_seen,
                self.seconds_early(client.number),
            )
            for client in self._unsaved.values()
        ]

    async def save(self) -> None:
        """Write all check-ins so far to the state; raises `StateError`, and keeps them, where that fails."""
        async with self._saving:
            seen, self._unsaved = self.unsaved(), {}
            for one in seen:
                self._by_number[one.number].check_ins = 0
            try:
                await asyncio.to_thread(self._state.record_check_ins, seen)
                self._known = max([self._known, *(one.number + 1 for one in seen)])
            except BaseException:
                for one in seen:
                    client = self._unsaved[one.number] = self._by_number[one.number]
                    client.check_ins += one.check_ins
                raise

    async def save_now_and_then(self) -> None:
        """Write check-ins to the state, until cancelled."""
        while True:
            await asyncio.sleep(_SAVED_EVERY_SECONDS)
            try:
                await self.save()
            except StateError as error:
                # They are kept, and written with the next ones.
                if not isinstance(error, UnreachableError):
                    warn("check_ins_not_saved", why=str(error))


def final_rest(last_round: int, rounds: int, saved_every: int) -> int | None:
    """Say whether a client that has taken part as often as it may will never be needed again.

    Rounds are on disk after every `saved_every` of them; a crash would undo the last round of the client until then.

    Returns:
      None where it will not; else rounds until it is worth asking again.
    """
    return None if last_round < rounds // saved_every * saved_every else saved_every
