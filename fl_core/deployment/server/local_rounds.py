"""Rounds that one process has alone: it selects their clients, and waits for reports by its own clock."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.deployment.event_log import event
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.server.client_handlers import CheckedIn
from fedlm.fl_core.deployment.server.client_registry import ClientsSeen
from fedlm.fl_core.deployment.server.client_service import ClientService
from fedlm.fl_core.deployment.server.pacing import spread
from fedlm.fl_core.deployment.server.reports.attempt import Attempt, Participant, RoundCollection
from fedlm.fl_core.deployment.server.reports.receiving import refusal
from fedlm.fl_core.deployment.server.reports.streaming_sum import StreamingSum
from fedlm.fl_core.deployment.server.round_rules import DrainedError, RoundProgress, RoundRules
from fedlm.fl_core.deployment.state.retrying import with_retries_async
from fedlm.fl_core.deployment.state.state import AttemptRecord
from fedlm.fl_core.rounds.round_loop import CohortResult, RoundPlan

_LONGEST_WAIT = 3600.0


class LocalCollection:
    """A `RoundCollection` of one process: who is selected, and when it is over. No network, no clock of its own.

    Without any client it waits for ever.

    Attributes:
      checked_in: numbers of the clients that have checked in since it was opened.
      changed: set whenever it may be over.
    """

    def __init__(self, attempt: Attempt, rules: RoundRules, comes_last: Callable[[int], bool] = lambda client: False):
        self.attempt, self.rules = attempt, rules
        self.checked_in: set[int] = set()
        self.changed = asyncio.Event()
        self._named = {int(client) for client in attempt.plan.clients}
        self._comes_last = comes_last
        # Who has checked in for a draw; None where there is nothing to draw.
        self._candidates: set[int] | None = None if self._named or not rules.window_seconds else set()
        self._draws_at = self._selection_ends = self._latest_end = math.inf
        self._most = rules.to_select
        self._replaced = False
        # Who had not answered when others were let in beside them.
        self._overdue: set[int] = set()

    # What calls of clients ask for.

    def claim(self, client: int, upload_id: bytes) -> messages.UploadReply | None:
        return refusal(messages.UploadReply.LATE, "the round is over") if self.attempt.closed else None

    def give_back(self, client: int) -> None:
        pass

    def answered(self, client: int, receipt: messages.UploadReply) -> None:
        self.changed.set()

    def wants(self, client: int, now: float) -> bool:
        """Say whether a client would be selected, were it to check in now, by the loop's clock.

        A client that was selected before, and has not answered, is told the same again.
        """
        participants = self.attempt.participants
        if self.attempt.closed or now >= self.attempt.deadline:
            return False
        if client in participants:
            return participants[client].receipt is None
        if self._candidates is not None or (self._named and client not in self._named):
            return False
        if now >= self._selection_ends and not self._replaced:
            return False
        if self._active() >= self.rules.minimum and self._comes_last(client):
            return False
        return self._active() < self._most

    def seconds_to_draw(self, client: int, now: float) -> float | None:
        """Take a client into the draw; returns in how many seconds that is, None where nothing is drawn any more."""
        if self._candidates is None or client in self.attempt.participants:
            return None
        if not self._candidates:
            self._draws_at = now + self.rules.window_seconds
            self.changed.set()
        self._candidates.add(client)
        return max(self._draws_at - now, 0.0)

    def look(self, now: float) -> set[int]:
        """Do what is due: draw, or take others in beside clients that are silent.

        Returns:
          The clients that checked in for the draw and were not drawn.
        """
        if not self._replaced and not self._named and now >= self._patience_ends:
            self._replaced = True
            self._overdue = set(self._unanswered())
            more = self.rules.replacements(len(self.attempt.accepted), len(self._overdue))
            self._most = self._active() + more
            self._candidates = set() if more and self.rules.window_seconds else None
        if not self._candidates or now < self._draws_at:
            return set()
        candidates, self._candidates = self._candidates, None
        prompt = [client for client in candidates if not self._comes_last(client)]
        late = [client for client in candidates if self._comes_last(client)]
        drawn = self.rules.draw(prompt, late, self._active(), self._most)
        for client in drawn:
            self.select(client, now)
        return candidates.difference(drawn)

    @property
    def _patience_ends(self) -> float:
        return self._selection_ends + self.rules.patience_seconds

    def silent(self, now: float) -> list[int]:
        """List the selected clients that should have answered in full, and have not.

        Who was let in beside others has until the deadline.
        """
        if now < self._patience_ends:
            return []
        return [one for one in self._unanswered() if now >= self.attempt.deadline or one in self._overdue]

    def _unanswered(self) -> list[int]:
        # To begin an answer is not enough: a byte a second would keep a round waiting as silence does.
        return [client for client, one in self.attempt.participants.items() if one.receipt is None]

    def select(self, client: int, now: float) -> None:
        """Take a client in that the round `wants`."""
        if not self.attempt.participants:
            self.attempt.opened = now
            self._end_selection(now + self.rules.selection_seconds)
        self.attempt.participants.setdefault(client, Participant())
        if not self._replaced and self._active() >= self.rules.to_select:
            self._end_selection(min(self._selection_ends, now))

    def _active(self) -> int:
        return len(self.attempt.participants) - self.attempt.declined - self.attempt.refused

    def _end_selection(self, moment: float) -> None:
        self._selection_ends = moment
        self.attempt.deadline = min(moment + self.rules.reporting_seconds, self._latest_end)
        self.changed.set()

    def hurry(self, now: float) -> None:
        """End soon, whoever has not answered by then: the server is going down."""
        self._latest_end = min(self._latest_end, now + self.rules.drain_seconds)
        self.attempt.deadline = min(self.attempt.deadline, self._latest_end)
        self.changed.set()

    # What the round loop asks for.

    def finished(self, now: float) -> bool:
        """Say whether nothing more is waited for, or time is over."""
        if now >= self.attempt.deadline:
            return True
        participants = self.attempt.participants
        answered = sum(one.receipt is not None for one in participants.values())
        selecting = now < self._selection_ends or bool(self._candidates)
        return self.rules.over(len(self.attempt.accepted), answered, len(participants), selecting)

    def next_moment(self, now: float) -> float:
        """Say how many seconds nothing can change unless a client does something."""
        draw = self._draws_at if self._candidates is not None else math.inf
        moments = (draw, self._selection_ends, self._patience_ends, self.attempt.deadline)
        next_end = min((moment for moment in moments if moment > now), default=now)
        return max(0.0, min(next_end - now, _LONGEST_WAIT))

    def progress(self, now: float) -> RoundProgress:
        """Say how far it is, in numbers that do not change any more."""
        attempt, rules = self.attempt, self.rules
        selected, reported = len(attempt.participants), len(attempt.accepted)
        return RoundProgress(
            round_number=attempt.plan.round_number,
            open=not attempt.closed,
            selecting=not attempt.closed and now < self._selection_ends,
            seconds=now - attempt.opened,
            seconds_left=None if math.isinf(attempt.deadline) else max(attempt.deadline - now, 0.0),
            goal=rules.goal,
            minimum=rules.minimum,
            wanted=rules.to_select,
            checked_in=len(self.checked_in),
            selected=selected,
            reported=reported,
            dropped=selected - reported if attempt.closed else attempt.declined + attempt.refused,
            declined=attempt.declined,
            bytes_down=attempt.bytes_down,
            bytes_up=attempt.bytes_up,
        )

    def record(self, seconds: float) -> AttemptRecord:
        """Put down how it ended after so many seconds."""
        attempt = self.attempt
        others = {"declined": attempt.declined, "refused": attempt.refused}
        shortfall = self.rules.shortfall(len(attempt.accepted), len(attempt.participants), **others)
        return AttemptRecord(
            token=attempt.token.hex(),
            round_number=attempt.plan.round_number,
            outcome="abandoned" if shortfall else "finished",
            reason=shortfall,
            started=time.time() - seconds,
            seconds=seconds,
            selected=len(attempt.participants),
            reported=len(attempt.accepted),
            refused=attempt.refused,
            declined=attempt.declined,
            bytes_down=attempt.bytes_down,
            bytes_up=attempt.bytes_up,
        )


class LocalRounds:
    """`Rounds` of one process; `collect` runs one attempt after another. Make and use it in one event loop.

    Attributes:
      draining: whether the server is going down.
      finished: whether clients are told that the run is over.
    """

    def __init__(self, service: ClientService):
        """Prepare; nothing is selected before `collect`."""
        self.registry, self._state, self._rules = service.registry, service.state, service.rules
        self._receiver, self._pacing = service.receiver, service.pacing
        self._run = service.state.run()
        self._collecting: LocalCollection | None = None
        self._latest: RoundProgress | None = None
        self._next_round, self._clock = 0, asyncio.get_running_loop().time
        self.draining = self.finished = False

    # What calls of clients ask for.

    @property
    def collecting(self) -> LocalCollection | None:
        return self._collecting

    def population(self) -> int:
        return self.registry.population()

    async def check_in(self, peer: str, version: str) -> CheckedIn:
        number, collection, now = self.registry.check_in(peer, version), self._collecting, self._clock()
        takes_part = collection is not None and number in collection.attempt.participants
        rest = self.registry.rounds_to_rest(number, self._next_round, collection is not None)
        if rest is not None and not takes_part and (early := self.registry.seconds_early(number)):
            return CheckedIn(number, None, seconds=early)
        if rest != 0 or collection is None:
            return CheckedIn(number, None, rest)
        seconds = collection.seconds_to_draw(number, now)
        collection.checked_in.add(number)
        if seconds is not None:
            self.ask_back(number, seconds)
            return CheckedIn(number, None, seconds=spread(seconds))
        if not collection.wants(number, now):
            return CheckedIn(number, None, rest)
        await self.registry.keep_number(number)
        if self._collecting is not collection or not collection.wants(number, now := self._clock()):
            return CheckedIn(number, None, rest)
        collection.select(number, now)
        return CheckedIn(number, collection)

    def ask_back(self, number: int, seconds: float) -> None:
        self.registry.ask_back(number, seconds)

    async def number_of(self, peer: str) -> int | None:
        return self.registry.number_of(peer)

    async def takes_part(self, collection: RoundCollection, number: int) -> bool:
        return number in collection.attempt.participants

    # What operators see; any thread may ask.

    def progress(self) -> RoundProgress | None:
        collection = self._collecting
        return self._latest if collection is None else collection.progress(self._clock())

    def clients_seen(self) -> ClientsSeen:
        return self.registry.seen()

    # What the round loop asks for.

    async def collect(self, plan: RoundPlan, parameters: ServedArtifact, total: StreamingSum) -> CohortResult | None:
        """Make one attempt at a round.

        Args:
          plan: of the round; where it names clients, only they may take part, and all of them are waited for.
          total: the sum of no report.

        Returns:
          What counts, which is in the state by then; None where the attempt was abandoned.

        Raises:
          DrainedError: the server is going down, and nobody was selected yet.
        """
        rules = self._rules.for_cohort(len(plan.clients)) if len(plan.clients) else self._rules
        attempt = Attempt(plan, parameters, total, self._clock(), run=self._run)
        collection = LocalCollection(attempt, rules, lambda number: self.registry.comes_last(number, plan.round_number))
        self._next_round, self._collecting = plan.round_number, collection
        event("round_opened", round=plan.round_number, attempt=attempt.token.hex())
        try:
            await self._until_finished(collection)
        finally:
            self._collecting = None
            await self._receiver.close(attempt)
            self._latest = collection.progress(self._clock())
        silent, seconds = collection.silent(self._clock()), self._clock() - attempt.opened
        self._pacing.round_took(seconds)
        record = collection.record(seconds)
        await self._save(record, attempt.accepted if record.outcome == "finished" else [], silent)
        self.registry.was_silent(silent, plan.round_number)
        self._let_rest(attempt.participants)
        event(f"round_{record.outcome}", **record._asdict())
        if record.outcome == "abandoned":
            return None
        self.registry.took_part(attempt.accepted, plan.round_number)
        self._next_round = plan.round_number + 1
        aggregate = await asyncio.to_thread(total.finish)
        return CohortResult(aggregate, attempt.steps, attempt.bytes_down, attempt.bytes_up, len(attempt.participants))

    async def _until_finished(self, collection: LocalCollection) -> None:
        while not collection.finished(self._clock()):
            self._let_rest(collection.look(self._clock()))
            if self.draining and not collection.attempt.participants:
                raise DrainedError
            collection.changed.clear()
            try:
                async with asyncio.timeout(collection.next_moment(self._clock())):
                    await collection.changed.wait()
            except TimeoutError:
                continue

    def _let_rest(self, numbers: Iterable[int]) -> None:
        """Ask clients back alike, from now on, that were drawn together or were not drawn together."""
        population = self.population()
        for number in numbers:
            self.ask_back(number, self._pacing.wait(population))

    async def _save(self, record: AttemptRecord, participants: list[int], silent: list[int]) -> None:
        async def save() -> None:
            # Who takes part must be in the state before that it took part.
            await self.registry.save()
            await asyncio.to_thread(self._state.record_attempt, record, participants, silent)

        await with_retries_async(save, warning="attempt_not_saved")

    def drain(self) -> None:
        """Select nobody for another round; one that is under way goes on to its end, but not for long."""
        self.draining = True
        if self._collecting is not None:
            self._collecting.hurry(self._clock())
