"""A `CohortRunner` whose reports are received, and added up, by aggregators: it opens rounds and merges their sums.

Clients never talk to it; it and the aggregators meet in the database, see `shared_rounds`.
"""

import functools
import math
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from fedlm.fl_core.client_algorithms.interface import Broadcast, sent_by_client
from fedlm.fl_core.deployment.aggregators.partial_sums import unpack_aggregate
from fedlm.fl_core.deployment.aggregators.shared_records import PartialSum, Phase, SharedRound, Tally
from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.aggregators.silence import Silence
from fedlm.fl_core.deployment.event_log import event, warn
from fedlm.fl_core.deployment.server.pacing import PaceSteering
from fedlm.fl_core.deployment.server.round_rules import DrainedError, RoundProgress
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.deployment.state.retrying import with_retries
from fedlm.fl_core.deployment.state.state import AttemptRecord, StateError, UnreachableError
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.aggregation import add_aggregates, empty_aggregate
from fedlm.fl_core.rounds.round_loop import CohortResult, RoundPlan
from fedlm.fl_core.rounds.tracing import say, span, trace_phases
from fedlm.fl_core.updates.update_bytes import WireError, pack_parameters
from fedlm.models.base import Params

POLL_SECONDS = 0.1
ADVANCED_EVERY = 1.0
_DELIVERY_SECONDS = 60.0


class SharedCohortRunner:
    """Runs rounds with aggregators; used in one thread."""

    def __init__(self, shared: SharedRounds, deployment: Deployment, agreement: str, draining: Callable[[], bool]):
        """Forget what an earlier coordinator did; `agreement` digests the settings that aggregators must share."""
        self._shared, self._deployment, self._agreement = shared, deployment, agreement
        self._rules, self._draining = deployment.round_rules(), draining
        self._pacing = PaceSteering(self._rules.to_select, deployment.check_in_seconds)
        self._silence, self._opened, self._latest_end = Silence(), 0.0, math.inf
        self._progress: RoundProgress | None = None
        with_retries(shared.begin)

    def progress(self) -> tuple[RoundProgress | None, float]:
        """Say how far the attempt is that is open, or was last, and when it was opened in seconds since 1970.

        Without the check-ins, which aggregators count; None before the first attempt. Any thread may ask.
        """
        return self._progress, self._opened

    def announce(self, plan: RoundPlan) -> None:
        pass

    def run(self, params: Params, plan: RoundPlan, clip_norm: float | None = None, memory: Any = ()) -> CohortResult:
        """Run a round until an attempt counts; raises `DrainedError` where the server is going down."""
        if len(plan.clients):
            raise ConfigurationError("rounds with aggregators cannot name their clients; whoever checks in takes part")
        content = b"".join(pack_parameters(Broadcast(params, memory), self._deployment.download_encoding))
        like = sent_by_client(self._deployment.training.algorithm.make(), params)
        while (result := self._attempt(like, plan, clip_norm, content)) is None:
            pass
        return result

    def _attempt(self, like: Any, plan: RoundPlan, clip_norm: float | None, content: bytes) -> CohortResult | None:
        token = secrets.token_hex(16)
        with span("attempt", named=token, round=plan.round_number):
            self._open(token, plan, clip_norm, content)
            event("round_opened", round=plan.round_number, attempt=token)
            return self._collect(token, plan, like)

    def _collect(self, token: str, plan: RoundPlan, like: Any) -> CohortResult | None:
        first, overdue = self._until_over(token, plan.round_number)
        with span("aggregation"):
            merged = self._sum_up(token, like)
        participants = with_retries(lambda: self._shared.claimed(token))
        states = with_retries(lambda: self._shared.tally(token)).states
        selected = sum(states.values())
        others = {what: states.get(what, 0) for what in ("declined", "refused", "lost")}
        shortfall = self._rules.shortfall(len(participants), selected, **others)
        seconds = time.monotonic() - first
        record = AttemptRecord(
            token=token,
            round_number=plan.round_number,
            outcome="abandoned" if shortfall else "finished",
            reason=shortfall,
            started=time.time() - seconds,
            seconds=seconds,
            selected=selected,
            reported=len(participants),
            bytes_down=merged.bytes_down,
            bytes_up=merged.bytes_up,
            **others,
        )
        record, counted = self._ending(record, participants)
        self._progress = self._progress_of(
            plan.round_number, states, seconds=seconds, seconds_left=0.0, phase="closed"
        )._replace(bytes_down=merged.bytes_down, bytes_up=merged.bytes_up)
        # Some may have answered while the round was being closed.
        silent = sorted(overdue.intersection(with_retries(lambda: self._shared.silent(token)))) if overdue else []
        self._pacing.round_took(seconds)
        with_retries(lambda: self._shared.finish(record, counted, silent, self._pacing.wait))
        event(f"round_{record.outcome}", **record._asdict())
        say(**record.counts)
        if record.outcome == "abandoned":
            return None
        return merged._replace(asked=selected)

    def _sum_up(self, token: str, like: Any) -> CohortResult:
        """Take no more reports, and put the sum of those that came together."""
        with_retries(lambda: self._shared.advance(token, "closed", 0.0))
        self._until_delivered(token)
        return self._merge(token, like)

    def _ending(self, record: AttemptRecord, participants: list[int]) -> tuple[AttemptRecord, list[int]]:
        """Say how an attempt ended whose reports are of some clients, and for which of them the round counts."""
        return record, participants if record.outcome == "finished" else []

    def _masks(self, token: str, plan: RoundPlan, content: bytes) -> dict[str, Any]:
        """Prepare for an attempt; returns what a `SharedRound` says of masks."""
        return {}

    def _open(self, token: str, plan: RoundPlan, clip_norm: float | None, content: bytes) -> None:
        bound, rules = self._deployment.participation, self._rules
        shared = SharedRound(
            token=token,
            round_number=plan.round_number,
            seed=plan.seed,
            learning_rate=float(plan.learning_rate),
            clip_norm=None if clip_norm is None else float(clip_norm),
            to_select=rules.to_select,
            minimum=rules.minimum,
            min_separation=bound.min_separation,
            max_participations=bound.max_participations,
            agreement=self._agreement,
            parameters=with_retries(lambda: self._shared.put(content)),
            phase="gathering" if rules.window_seconds else "selecting",
            seconds_left=rules.window_seconds + rules.selection_seconds + rules.reporting_seconds,
            **self._masks(token, plan, content),
        )
        self._opened = time.time()
        self._progress = self._progress_of(plan.round_number, {}, seconds=0.0, seconds_left=None, phase="selecting")
        with_retries(lambda: self._shared.open(shared))

    @property
    def _patience_seconds(self) -> float:
        return self._rules.patience_seconds

    def _progress_of(
        self, round_number: int, states: Mapping[str, int], *, seconds: float, seconds_left: float | None, phase: Phase
    ) -> RoundProgress:
        rules, selected, reported = self._rules, sum(states.values()), states.get("claimed", 0)
        answered = selected - reported - states.get("selected", 0)
        return RoundProgress(
            round_number=round_number,
            open=phase != "closed",
            selecting=phase in ("gathering", "selecting"),
            seconds=seconds,
            seconds_left=seconds_left,
            goal=rules.goal,
            minimum=rules.minimum,
            wanted=rules.to_select,
            checked_in=0,
            selected=selected,
            reported=reported,
            dropped=selected - reported if phase == "closed" else answered,
            declined=states.get("declined", 0),
            bytes_down=0,
            bytes_up=0,
        )

    def _until_over(self, token: str, round_number: int) -> tuple[float, set[int]]:
        """Wait for a round's end; returns when its first client was selected, and who should have answered by then and
        had not; see `fedlm.fl_core.deployment.server.local_collection.LocalCollection.silent`."""
        rules, opened = self._rules, time.monotonic()
        phase: Phase
        advanced, gathered, first, selection_ends, replaced = opened, math.inf, math.inf, math.inf, False
        overdue = set[int]()
        while True:
            tally, now = self._look(token), time.monotonic()
            if tally.phase == "gathering":
                gathered = min(gathered, now if tally.candidates else math.inf)
                if now >= gathered + rules.window_seconds:
                    with_retries(lambda: self._shared.draw(token, rules, self._pacing.wait))
                    gathered = math.inf
                    continue
            selected = sum(tally.states.values())
            if selected and first == math.inf:
                first, selection_ends = now, now + rules.selection_seconds
            if tally.phase == "reporting":
                selection_ends = min(selection_ends, now)
            selecting = now < selection_ends or bool(tally.candidates)
            reported = tally.states.get("claimed", 0)
            left = min(selection_ends, now + rules.selection_seconds) + rules.reporting_seconds - now
            left = self._time_left(left, now)
            waiting = tally.states.get("selected", 0)
            over = left <= 0 or rules.over(reported, selected - waiting, selected, selecting)
            patient = now < selection_ends + self._patience_seconds
            # Before anything else: once the time to drain is over, a new attempt is over as soon as it is opened.
            if self._draining() and not selected:
                with_retries(self._shared.begin)
                raise DrainedError
            if over:
                if left <= 0 and not patient:
                    overdue = set(with_retries(lambda: self._shared.silent(token)))
                trace_phases(opened, selection_ends, now)
                return first, overdue
            if not patient and not replaced:
                replaced = True
                overdue = set(with_retries(lambda: self._shared.silent(token)))
                most = waiting + reported + rules.replacements(reported, waiting)
                if most > waiting + reported:
                    phase = "gathering" if rules.window_seconds else "selecting"
                    with_retries(functools.partial(self._shared.let_in, token, most, phase))
                continue
            phase = "selecting" if selecting else "reporting"
            phase = tally.phase if tally.phase == "gathering" or replaced else phase
            since, shown = (first, left) if selected else (opened, None)
            self._progress = self._progress_of(
                round_number, tally.states, seconds=now - since, seconds_left=shown, phase=phase
            )
            if phase != tally.phase or now - advanced > ADVANCED_EVERY:
                self._advance(token, phase, left, now - advanced)
                advanced = now
            time.sleep(min(POLL_SECONDS, left))

    def _time_left(self, left: float, now: float) -> float:
        """Say how much of some seconds is left, as little is once the server is going down."""
        if self._draining():
            self._latest_end = min(self._latest_end, now + self._rules.drain_seconds)
        return min(left, self._latest_end - now)

    def _advance(self, token: str, phase: Phase, left: float, passed: float) -> None:
        try:
            self._shared.advance(token, phase, left, passed)
        except StateError as error:
            if not isinstance(error, UnreachableError):
                warn("state_not_written", why=str(error))

    def _look(self, token: str) -> Tally:
        """Take a tally, after giving up aggregators that were silent for too long."""
        tally = with_retries(lambda: self._shared.tally(token))
        # What has delivered its sum is not needed any more.
        silent = set(self._silence.silent(tally.beats, time.monotonic())) - tally.delivered
        for name in silent:
            self._lose(name, "it was silent")
        return with_retries(lambda: self._shared.tally(token)) if silent else tally

    def _lose(self, aggregator: str, why: str) -> None:
        reports = with_retries(lambda: self._shared.lose(aggregator))
        warn("aggregator_lost", aggregator=aggregator, reports=reports, why=why)

    def _until_delivered(self, token: str) -> None:
        deadline = time.monotonic() + _DELIVERY_SECONDS
        while waiting := (tally := self._look(token)).claims.keys() - tally.delivered:
            if time.monotonic() > deadline:
                for name in waiting:
                    self._lose(name, "it did not deliver its sum")
            time.sleep(POLL_SECONDS / 2)

    def _merge(self, token: str, like: Any) -> CohortResult:
        exact = self._deployment.aggregation_rules().exact
        total = empty_aggregate(like, exact)

        def add(partial: PartialSum, content: bytes) -> None:
            nonlocal total
            total = add_aggregates(total, unpack_aggregate(content, like, exact, partial.reports))

        return self._each_part(token, add)._replace(aggregate=total)

    def _each_part(self, token: str, add: Callable[[PartialSum, bytes], None]) -> CohortResult:
        """Add the sums that were delivered, and give up aggregators whose sums cannot be; returns what these moved."""
        moved = CohortResult(None, 0, 0, 0)  # type: ignore[arg-type]
        for partial in with_retries(lambda: self._shared.partial_sums(token)):
            try:
                add(partial, with_retries(functools.partial(self._shared.fetch, partial.content)))
            except (WireError, StateError) as error:
                self._lose(partial.aggregator, str(error))
                continue
            moved = moved._replace(
                steps=moved.steps + partial.steps,
                bytes_down=moved.bytes_down + partial.bytes_down,
                bytes_up=moved.bytes_up + partial.bytes_up,
            )
        return moved
