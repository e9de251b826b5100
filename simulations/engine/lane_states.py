"""The states of a device's lanes, and what becomes of them where clients end."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlm.fl_core.client_algorithms.interface import LocalState
from fedlm.fl_core.exact_sums import summed
from fedlm.fl_core.rounds.aggregation import CohortAggregate, add_aggregates
from fedlm.fl_core.rounds.local_sgd import TrainingSums
from fedlm.simulations.engine.lanes import LaneChunk

_PARTS_OF_LANES = 8
"""In so many parts, at most, the lanes whose clients end at a step are gone through."""


class LaneState(NamedTuple):
    """The state of a lane."""

    local: LocalState
    sums: TrainingSums


class DeviceState(NamedTuple):
    """The state of all lanes of a device, and what their clients have made."""

    lanes: LaneState  # [lanes] each
    aggregate: CohortAggregate
    kept: Any  # what clients keep to themselves, [places in the cohort] each; no arrays where they keep nothing


class Reported(NamedTuple):
    """What a client hands in after its last step."""

    update: CohortAggregate
    kept: Any
    keeps: jax.Array  # bool, whether that takes the place of what the client kept before


Report = Callable[[LaneState, LaneChunk], Reported]


def end_clients(report: Report, fresh: LaneState, state: DeviceState, inputs: LaneChunk) -> DeviceState:
    """Take the reports of clients of which this was the last step, and make their lanes ready for the next.

    An update is read and written several times on its way into the sum, and few of many lanes end at the same step. So
    some lanes are taken at a time, those that end before the others, as often as it needs.
    """
    lanes = inputs.last.shape[0]
    at_once = -(-lanes // _PARTS_OF_LANES)
    ended_first = jnp.argsort(~inputs.last)
    ended_first = jnp.pad(ended_first, (0, -lanes % at_once))
    ended = jnp.sum(inputs.last)

    def end_some(number: jax.Array, state: DeviceState) -> DeviceState:
        places = number * at_once + jnp.arange(at_once)
        chosen, real = ended_first[places], places < ended
        some, theirs = jax.tree_util.tree_map(lambda leaf: leaf[chosen], (state.lanes, inputs))
        reports = jax.vmap(report)(some, theirs._replace(last=real))
        # What has not ended stays as it is: its place lies beyond the lanes.
        places = jnp.where(real, chosen, lanes)
        reset = jax.tree_util.tree_map(lambda leaf, new: leaf.at[places].set(new, mode="drop"), state.lanes, fresh)
        kept = jax.tree_util.tree_map(
            lambda leaf, new: leaf.at[jnp.where(reports.keeps, theirs.place, len(leaf))].set(new, mode="drop"),
            state.kept,
            reports.kept,
        )
        return DeviceState(reset, add_aggregates(state.aggregate, summed(reports.update)), kept)

    return jax.lax.fori_loop(0, -(-ended // at_once), end_some, state)


def end_client(report: Report, fresh: LaneState, state: DeviceState, inputs: LaneChunk) -> DeviceState:
    """Do the same for a device with a single lane, whose arrays have no axis of lanes."""

    def end(_: jax.Array, state: DeviceState) -> DeviceState:
        reported = report(state.lanes, inputs)
        kept = jax.tree_util.tree_map(
            lambda leaf, new: leaf.at[jnp.where(reported.keeps, inputs.place, len(leaf))].set(new, mode="drop"),
            state.kept,
            reported.kept,
        )
        return DeviceState(fresh, add_aggregates(state.aggregate, reported.update), kept)

    return jax.lax.fori_loop(0, inputs.last.astype(int), end, state)
