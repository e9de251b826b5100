"""Private rounds in the round loop, against the published algorithms written down once more in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.privacy.mechanisms.registry import make_noise
from fedlm.fl_core.privacy.mechanisms.tree import Trees
from fedlm.fl_core.privacy.noise.noise_source import noise_from
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.private_rounds import PrivateAggregation, PrivateRounds
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.rounds.aggregation import empty_aggregate
from fedlm.fl_core.rounds.round_loop import CohortResult, FederatedOptimization, Rounds
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizerConfig, init_server
from tests.support.exact_totals import exact_total

WIDTH, ROUNDS, GOAL, CLIP, NOISE, RATE, MOMENTUM = 6, 11, 4, 0.5, 1.5, 0.3, 0.9
START = np.linspace(-1, 1, WIDTH).astype(np.float32)
SECRET = bytes(range(32))
SUMS = np.random.default_rng(0).normal(size=(ROUNDS, WIDTH)).astype(np.float32)


class GivenSums:
    """A `CohortRunner` whose clients have sent what is to be summed up."""

    def announce(self, plan):
        pass

    def run(self, params, plan, clip_norm=None, memory=()):
        total = exact_total({"x": SUMS[plan.round_number]}, CLIP)
        return CohortResult(empty_aggregate(params)._replace(delta=total, clients=jnp.asarray(3.0)), 0, 0, 0)


class Nobody:
    def sample(self, round_number):
        return np.arange(0)


def run(plan):
    config = ServerOptimizerConfig("fedavgm", momentum=MOMENTUM)
    state = init_server(config, {"x": jnp.asarray(START)})
    restart_optimizer = Trees.of(plan).restart_every is not None
    private = PrivateRounds(PrivateAggregation(plan, CLIP, GOAL, None, restart_optimizer), SECRET, state.params)
    optimization = FederatedOptimization(config, RATE, 1.0, 0)
    loop = Rounds(state, range(plan.rounds), GivenSums(), Nobody(), optimization=optimization, averaging=private)
    return [np.asarray(result.state.params["x"]) for result in loop]


def prefix_noise(plan):
    """The noise of the sums of the first rounds, [rounds, width]; that of a tree begins at its restart."""
    mechanism, like = make_noise(plan), {"delta": {"x": np.zeros(WIDTH, np.float32)}}
    draw, state, rows = noise_from(SECRET, like), None, []
    state = mechanism.init(like)
    for _ in range(plan.rounds):
        noise, state = mechanism.next(state, draw)
        rows.append(np.asarray(noise["delta"]["x"], np.float64))
    return np.stack(rows) * NOISE * CLIP


@pytest.mark.parametrize(("mechanism", "restart_every"), [("tree", None), ("tree_honaker", 4)])
def test_a_tree_with_momentum_is_dp_ftrl(mechanism, restart_every):
    """DP-FTRL with momentum in cumulative form: `v <- m v + (noised prefix sum)`, `w = w_0 - rate * v`.

    A restart sets w_0 to w, and the sum and the momentum to zero (Kairouz et al. 2021, algorithm 1, and their momentum
    variant).
    """
    plan = PrivacyPlan(mechanism, ROUNDS, NOISE, BoundedParticipation(1, 1), Trees(restart_every))
    noise = prefix_noise(plan)
    expected, anchor = [], START.astype(np.float64)
    total = momentum = params = np.zeros(WIDTH)
    for number in range(ROUNDS):
        total = total + SUMS[number] + noise[number]
        momentum = MOMENTUM * momentum + total / GOAL
        params = anchor - RATE * momentum
        expected.append(params)
        if restart_every and (number + 1) % restart_every == 0:
            anchor, total, momentum = params, np.zeros(WIDTH), np.zeros(WIDTH)
    np.testing.assert_allclose(run(plan), expected, rtol=1e-4, atol=1e-4)
