"""Clients that pull a point to where they live, and some that lie."""

import jax.numpy as jnp
import numpy as np

from fedlm.fl_core.rounds.aggregation import AggregationRules, add_aggregates, contribution, empty_aggregate
from fedlm.fl_core.rounds.local_sgd import TrainingSums
from fedlm.fl_core.rounds.round_loop import CohortResult

WIDTH, CLIENTS = 16, 10
HOME = np.linspace(-1, 1, WIDTH).astype(np.float32)
FIRST = {"x": jnp.zeros(WIDTH)}


class Everyone:
    def sample(self, round_number):
        return np.arange(CLIENTS)


class PullingClients:
    """A `CohortRunner` whose clients go half of the way home; the first `liars` lie in some rounds, by any size."""

    def __init__(self, lies=(), size=1e15, rules=None, liars=1):
        self.liars, self.lies, self.size, self.rules = liars, lies, size, rules or AggregationRules()

    def announce(self, plan):
        pass

    def run(self, params, plan, clip_norm=None, memory=()):
        rng, total = np.random.default_rng([3, plan.round_number]), empty_aggregate(params)
        for client in map(int, plan.clients):
            update = 0.5 * (np.asarray(params["x"]) - HOME) + rng.normal(0, 0.05, WIDTH)
            if client < self.liars and plan.round_number in self.lies:
                update = np.full(WIDTH, self.size)
            sums = TrainingSums(*map(jnp.float32, (1.0, 1.0, 1.0)))
            delta = {"x": jnp.asarray(update, jnp.float32)}
            added = contribution(delta, jnp.float32(5), sums, self.rules, clip_norm=clip_norm)
            total = add_aggregates(total, added)
        return CohortResult(total, CLIENTS, 0, 0)


def score(params):
    """The distance from home, as if it were a loss."""
    return {"heldout_loss": float(np.linalg.norm(np.asarray(params["x"]) - HOME))}
