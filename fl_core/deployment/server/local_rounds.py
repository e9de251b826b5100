"""The rounds of one process, and the `CohortRunner` that waits for them: it selects clients by its own clock."""

import asyncio
from collections.abc import Iterable
from typing import Any

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.secure_aggregation.keys import AttemptName
from fedlm.fedlm_client.secure_aggregation.taking_part import Reply, Step
from fedlm.fl_core.client_algorithms.interface import Broadcast
from fedlm.fl_core.deployment.event_log import event
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.server.client_handlers import NO_SUM, CheckedIn
from fedlm.fl_core.deployment.server.client_registry import ClientsSeen
from fedlm.fl_core.deployment.server.client_service import ClientService
from fedlm.fl_core.deployment.server.local_collection import LocalCollection
from fedlm.fl_core.deployment.server.pacing import spread
from fedlm.fl_core.deployment.server.reports.attempt import Attempt, RoundCollection
from fedlm.fl_core.deployment.server.reports.secure_sum import SecureSum
from fedlm.fl_core.deployment.server.reports.streaming_sum import StreamingSum
from fedlm.fl_core.deployment.server.round_rules import DrainedError, RoundProgress, RoundRules
from fedlm.fl_core.deployment.server.secure_collection import SecureCollection
from fedlm.fl_core.deployment.state.retrying import with_retries_async
from fedlm.fl_core.deployment.state.state import AttemptRecord
from fedlm.fl_core.process_memory import trim_heap
from fedlm.fl_core.rounds.round_loop import CohortResult, RoundPlan
from fedlm.fl_core.rounds.tracing import say, span, trace_phases
from fedlm.fl_core.updates.update_bytes import pack_parameters
from fedlm.models.base import Params


class LocalRounds:
    """`Rounds` of one process; `collect` runs one attempt after another. Make and use it in one event loop.

    Attributes:
      draining: whether the server is going down.
      finished: whether clients are told that the run is over.
    """

    def __init__(self, service: ClientService):
        """Prepare; nothing is selected before `collect`."""
        self.registry, self._state, self._rules = service.registry, service.state, service.rules
        self._receiver, self._pacing, self._offer = service.receiver, service.pacing, service.offer
        self._run = service.state.run()
        self._collecting: LocalCollection | None = None
        self._latest: RoundProgress | None = None
        self._next_round, self._clock = 0, asyncio.get_running_loop().time
        self.draining = self.finished = False

    # What calls of clients ask for.

    @property
    def collecting(self) -> LocalCollection | None:
        return self._collecting

    def recent_clients(self) -> int:
        return self.registry.recent_clients()

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

    def keeps(self, peer: str) -> bool:
        """Say whether a client waits for the open round's draw, or works for that round."""
        number, collection = self.registry.number_of(peer), self._collecting
        return number is not None and collection is not None and collection.keeps(number, self._clock())

    async def takes_part(self, collection: RoundCollection, number: int) -> bool:
        return number in collection.attempt.participants

    async def answer_member(self, number: int, peer: str, request: messages.SecureRequest) -> Reply:
        attempt = None if self._collecting is None else self._collecting.attempt
        if attempt is None or attempt.token != request.attempt or number not in attempt.participants:
            return NO_SUM
        if not isinstance(total := attempt.sum, SecureSum):
            return NO_SUM
        step: Step = request.step  # type: ignore[assignment]
        return await self._receiver.in_adding_thread(lambda: total.answer(number, peer, step, request.content))

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
        with span("attempt", round=plan.round_number):
            return await self._attempt(plan, parameters, total)

    async def _attempt(self, plan: RoundPlan, parameters: ServedArtifact, total: StreamingSum) -> CohortResult | None:
        rules = self._rules.for_cohort(len(plan.clients)) if len(plan.clients) else self._rules
        attempt = Attempt(plan, parameters, total, opened := self._clock(), run=self._run)
        collection = self._collection(attempt, rules)
        self._next_round, self._collecting = plan.round_number, collection
        event("round_opened", round=plan.round_number, attempt=attempt.token.hex())
        try:
            await self._until_finished(collection)
        finally:
            self._collecting = None
            await self._receiver.close(attempt)
            self._latest = collection.progress(self._clock())
        trace_phases(opened, collection.selection_ends, self._clock())
        silent, seconds = collection.silent(self._clock()), self._clock() - attempt.opened
        self._pacing.round_took(seconds)
        record = collection.record(seconds)
        counted = collection.counted if record.outcome == "finished" else []
        await self._save(record, counted, silent)
        self.registry.was_silent(silent, plan.round_number)
        self._let_rest(attempt.participants)
        event(f"round_{record.outcome}", **record._asdict())
        say(**record.counts)
        if record.outcome == "abandoned":
            return None
        self.registry.took_part(counted, plan.round_number)
        self._next_round = plan.round_number + 1
        with span("aggregation"):
            aggregate = await asyncio.to_thread(total.finish)
        return CohortResult(aggregate, attempt.steps, attempt.bytes_down, attempt.bytes_up, len(attempt.participants))

    def _collection(self, attempt: Attempt, rules: RoundRules) -> LocalCollection:
        number = attempt.plan.round_number
        if isinstance(attempt.sum, SecureSum):
            return SecureCollection(attempt, rules, attempt.sum.begin(AttemptName.of(self._offer.request_of(attempt))))
        return LocalCollection(attempt, rules, lambda client: self.registry.comes_last(client, number))

    async def _until_finished(self, collection: LocalCollection) -> None:
        while not collection.finished(self._clock()):
            self._let_rest(collection.look(self._clock()))
            if isinstance(collection, SecureCollection) and collection.step_is_over(self._clock()):
                await self._receiver.in_adding_thread(collection.end_step)
                collection.begin_step(self._clock())
                continue
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
        clients = self.recent_clients()
        for number in numbers:
            self.ask_back(number, self._pacing.wait(clients))

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


class NetworkCohortRunner:
    """Runs rounds over the network. The round loop calls it in a thread of its own; calls run in the event loop's."""

    def __init__(self, rounds: LocalRounds, loop: asyncio.AbstractEventLoop, service: ClientService):
        """Bind the round loop to the rounds that clients take part in, and the event loop that these run in."""
        self._rounds, self._loop = rounds, loop
        self._sums, self._downloads = service.sums, service.downloads

    def announce(self, plan: RoundPlan) -> None:
        pass

    def run(self, params: Params, plan: RoundPlan, clip_norm: float | None = None, memory: Any = ()) -> CohortResult:
        """Run a round until an attempt counts; raises `DrainedError` where the server is going down."""
        self._sums.compile(plan, clip_norm)
        parameters = self._downloads.offer(pack_parameters(Broadcast(params, memory), self._downloads.encoding))
        try:
            while True:
                attempt = self._rounds.collect(plan, parameters, self._sums.new(plan, clip_norm))
                result = asyncio.run_coroutine_threadsafe(attempt, self._loop).result()
                if result is not None:
                    return result
        finally:
            parameters.withdraw()
            trim_heap()
