"""A `CohortRunner` that calls clients one after another in this process, every update through the wire's bytes.

It does exactly what a deployment does, without a network and without speed: the reference that the simulation's
engine is held to.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.clients.device.local_training import ClientProgram, ClientReport, train_locally
from fedlm.fl_core.client_algorithms.interface import Broadcast, sent_by_client
from fedlm.fl_core.rounds.aggregation import (
    AggregationRules,
    CohortAggregate,
    add_aggregates,
    contribution,
    empty_aggregate,
)
from fedlm.fl_core.rounds.local_sgd import TrainingSums
from fedlm.fl_core.rounds.round_loop import CohortResult, RoundPlan
from fedlm.fl_core.updates.compressors import decompress_update
from fedlm.fl_core.updates.update_bytes import check_update, download_bytes, unpack_update
from fedlm.models.base import Params


class InProcessRunner:
    """Runs `train_locally` for each client of a cohort and aggregates the reports as they come."""

    def __init__(self, program: ClientProgram, rules: AggregationRules, examples_of: Callable[[int], np.ndarray]):
        """Set up clients, whose examples `examples_of` gives by their index, int32 [examples, length + 1]."""
        self._program, self._rules, self._examples_of = program, rules, examples_of
        self.kept: dict[int, Any] = {}

    def announce(self, plan: RoundPlan) -> None:
        """There is nothing to make ready."""

    def run(self, params: Params, plan: RoundPlan, clip_norm: float | None = None, memory: Any = ()) -> CohortResult:
        server, like = Broadcast(params, memory), sent_by_client(self._program.training.algorithm, params)
        aggregate = empty_aggregate(like, self._rules.exact)
        steps = bytes_up = 0
        for client in map(int, plan.clients):
            sequences = self._examples_of(client)
            kept = self.kept.get(client)
            report = train_locally(self._program, server, sequences, plan, client=client, kept=kept)
            if report is not None:
                self.kept[client] = report.kept
                aggregate = add_aggregates(aggregate, self._receive(report, like, plan, client, clip_norm))
                bytes_up += len(report.upload)
            elif len(sequences):
                aggregate = add_aggregates(aggregate, _refused(like, self._rules.exact))
            steps += int(self._program.training.count_steps(len(sequences)))
        return CohortResult(aggregate, steps, len(plan.clients) * download_bytes(server), bytes_up)

    def _receive(
        self, report: ClientReport, like: Any, plan: RoundPlan, client: int, clip_norm: float | None
    ) -> CohortAggregate:
        compressor = self._program.compressor
        check_update(compressor, report.upload, like)
        compressed = unpack_update(compressor, jnp.asarray(np.frombuffer(report.upload, np.uint8)), like)
        key = jax.random.fold_in(plan.upload_key(), client)
        delta = decompress_update(compressor, key, compressed, like)
        sums = TrainingSums(*map(jnp.asarray, report.training))
        return contribution(
            delta, jnp.asarray(report.num_examples, jnp.float32), sums, self._rules, clip_norm=clip_norm
        )


def _refused(like: Any, exact: bool) -> CohortAggregate:
    one = jnp.ones(())
    return empty_aggregate(like, exact)._replace(clients=one, dropped=one)
