"""The server's learning rate over rounds, how it reaches the server's step, and steps in place."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedlm.fl_core.rounds.aggregation import empty_aggregate
from fedlm.fl_core.rounds.round_loop import CohortResult, FederatedOptimization, RoundPlan, Rounds
from fedlm.fl_core.rounds.server_optimizers import (
    DEFAULT_SERVER_RATE,
    OwnServerOptimizer,
    ServerOptimizerConfig,
    init_server,
)

CONFIG = ServerOptimizerConfig("fedavg")


class OneCohort:
    """Whatever the plan is, the mean update is 1."""

    def announce(self, plan):
        pass

    def run(self, params, plan, clip_norm=None, memory=()):
        aggregate = empty_aggregate(params)._replace(delta=jnp.ones(2), weight=jnp.ones(()))
        return CohortResult(aggregate, 1, 0, 0)


class NoClients:
    def sample(self, round_number):
        return np.array([0])


def steps_of(optimization, rounds):
    state = init_server(CONFIG, jnp.zeros(2))
    found = [
        float(result.state.params[0])
        for result in Rounds(state, rounds, OneCohort(), NoClients(), optimization=optimization)
    ]
    return -np.diff([0.0, *found])


@pytest.mark.parametrize(
    ("warmup", "rounds", "rates"),
    [
        (4, range(6), [0.2, 0.4, 0.6, 0.8, 0.8, 0.8]),
        (4, range(2, 5), [0.6, 0.8, 0.8]),
        (1, range(2), [0.8] * 2),
        (0, range(2), [0.8] * 2),
    ],
)
def test_the_server_rate_grows_in_equal_steps_by_the_number_of_the_round(warmup, rounds, rates):
    optimization = FederatedOptimization(CONFIG, 0.8, 1.0, 0, server_warmup_rounds=warmup)
    np.testing.assert_allclose(steps_of(optimization, rounds), rates, rtol=1e-5)


def test_steps_in_place_come_to_the_same_and_use_up_the_states_before_them():
    # Momentum whose first value is the parameters themselves, as an optimizer of one's own may have it.
    trace = optax.trace(0.5)
    optimizer = optax.GradientTransformation(optax.TraceState, trace.update)
    optimization = FederatedOptimization(OwnServerOptimizer(optimizer), DEFAULT_SERVER_RATE, 1.0, 0)
    finals = []
    for in_place in (False, True):
        state = init_server(optimization.server, jnp.ones(2))
        results = Rounds(state, range(3), OneCohort(), NoClients(), optimization=optimization, in_place=in_place)
        states = [state, *(result.state for result in results)]
        assert [one.params.is_deleted() for one in states] == [in_place] * 3 + [False]
        finals.append(np.asarray(states[-1].params))
    np.testing.assert_array_equal(*finals)


def test_what_a_client_drops_follows_from_round_and_client_and_the_secret_where_there_is_one():
    def drawn(plan, client):
        return plan.dropout(client).integers(1 << 32, size=4).tolist()

    plans = [RoundPlan(0, np.arange(3), 5, 0.1, secret) for secret in (None, bytes(32), bytes(31) + b"1")]
    plans.append(RoundPlan(1, np.arange(3), 5, 0.1))
    streams = [drawn(plan, client) for plan in plans for client in (0, 1)]
    assert len({tuple(stream) for stream in streams}) == len(streams)
    assert drawn(plans[0], 1) == drawn(RoundPlan(0, np.arange(2), 5, 0.2), 1)
    assert drawn(plans[0], 1) != plans[0].shuffling(1).integers(1 << 32, size=4).tolist()
