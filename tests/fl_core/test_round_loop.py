"""The server's learning rate over rounds, and how it reaches the server's step."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.aggregation import empty_aggregate
from fedlm.fl_core.round_loop import CohortResult, FederatedOptimization, run_rounds
from fedlm.fl_core.server_optimizers import ServerOptimizerConfig, init_server

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
        float(result.state.params[0]) for result in run_rounds(state, rounds, OneCohort(), NoClients(), optimization)
    ]
    return -np.diff([0.0, *found])


def test_the_server_rate_grows_in_equal_steps():
    optimization = FederatedOptimization(CONFIG, 0.8, 1.0, 0, server_warmup_rounds=4)
    np.testing.assert_allclose(steps_of(optimization, range(6)), [0.2, 0.4, 0.6, 0.8, 0.8, 0.8], rtol=1e-5)


@pytest.mark.parametrize("warmup", [0, 1])
def test_without_warm_up_the_rate_is_full_from_the_first_round(warmup):
    optimization = FederatedOptimization(CONFIG, 0.8, 1.0, 0, server_warmup_rounds=warmup)
    np.testing.assert_allclose(steps_of(optimization, range(2)), [0.8, 0.8], rtol=1e-5)


def test_rounds_that_go_on_have_the_rate_of_their_number():
    optimization = FederatedOptimization(CONFIG, 0.8, 1.0, 0, server_warmup_rounds=4)
    np.testing.assert_allclose(steps_of(optimization, range(2, 5)), [0.6, 0.8, 0.8], rtol=1e-5)
