"""A `CohortRunner` whose clients dial in: what the round loop of a deployment trains with."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.protocol.update_bytes import DownloadEncoding, pack_parameters
from fedlm.fl_core.deployment.server.client_handlers import ClientHandlers, Collected
from fedlm.fl_core.deployment.server.freed_memory import trim_heap
from fedlm.fl_core.deployment.server.reports.streaming_sum import StreamingSum
from fedlm.fl_core.round_loop import CohortResult, RoundPlan
from fedlm.models.base import Params

MakeSum = Callable[[Params, RoundPlan, float | None], StreamingSum]
"""From the parameters, the round's plan and its clip norm (None for that of the rules) to the sum of no report."""


class NetworkCohortRunner:
    """Runs rounds over the network. The round loop calls it in a thread of its own; calls run in the event loop's."""

    def __init__(
        self,
        coordinator: ClientHandlers,
        loop: asyncio.AbstractEventLoop,
        make_sum: MakeSum,
        encoding: DownloadEncoding,
        chunk_bytes: int,
        folder: Path,
    ):
        """Bind the round loop to the coordinator.

        Args:
          coordinator: that clients talk to.
          loop: that it runs in.
          make_sum: see `MakeSum`.
          encoding: how the model travels.
          chunk_bytes: of the chunks of its download.
          folder: where it is while it is downloaded.
        """
        self._coordinator, self._loop = coordinator, loop
        self._make_sum = make_sum
        self._encoding, self._chunk_bytes, self._folder = encoding, chunk_bytes, folder
        self._compiled = False

    def announce(self, plan: RoundPlan) -> None:
        """See `fedlm.fl_core.round_loop.CohortRunner.announce`; there is nothing to make ready."""

    def run(self, params: Params, plan: RoundPlan, clip_norm: float | None = None) -> CohortResult:
        """See `fedlm.fl_core.round_loop.CohortRunner.run`. A plan that names no client takes whoever checks in.

        Raises:
          DrainedError: the server is going down.
        """
        if not self._compiled:
            self._make_sum(params, plan, clip_norm).compile()
            self._compiled = True
        content = pack_parameters(params, self._encoding)
        parameters = ServedArtifact(content, self._encoding, self._chunk_bytes, self._folder)
        collected = None
        try:
            while collected is None:
                collected = self._collect(plan, parameters, self._make_sum(params, plan, clip_norm))
        finally:
            parameters.withdraw()
            trim_heap()
        return CohortResult(
            collected.aggregate, collected.steps, collected.bytes_down, collected.bytes_up, collected.selected
        )

    def _collect(self, plan: RoundPlan, parameters: ServedArtifact, total: StreamingSum) -> Collected | None:
        attempt = self._coordinator.collect(plan, parameters, total)
        return asyncio.run_coroutine_threadsafe(attempt, self._loop).result()
