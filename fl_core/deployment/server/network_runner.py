"""A `CohortRunner` whose clients dial in: what the round loop of a deployment trains with."""

import asyncio
from typing import Any

from fedlm.fl_core.client_algorithms.interface import Broadcast
from fedlm.fl_core.deployment.server.client_service import ClientService
from fedlm.fl_core.deployment.server.local_rounds import LocalRounds
from fedlm.fl_core.process_memory import trim_heap
from fedlm.fl_core.rounds.round_loop import CohortResult, RoundPlan
from fedlm.fl_core.updates.update_bytes import pack_parameters
from fedlm.models.base import Params


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
