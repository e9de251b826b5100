"""What the noise of a mechanism is made of, as a matrix."""

import jax
import numpy as np

from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS, make_noise
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan, plan_noise

ONCE = BoundedParticipation(1, 1)
COEFFICIENTS = {
    "blt": lambda rounds: (0.9, 0.4, 0.2, 0.15),
    "banded": lambda rounds: (0.8, 0.5, 0.3),
    "skellam": lambda rounds: (20, 100, 90, 1000),
    "discrete_gaussian": lambda rounds: (18, 100, 100, 1000),
    "dense": lambda rounds: [0.7**lag + 0.01 * row for row in range(rounds) for lag in range(min(row, 3), -1, -1)],
}
"""In place of optimized ones, for speed; other mechanisms choose theirs."""
ROUNDS = 13


def plan_of(mechanism, rounds=ROUNDS, noise=1.0, participation=ONCE, **changes):
    quick = COEFFICIENTS.get(mechanism)
    chosen = tuple(quick(rounds)) if quick else plan_noise(mechanism, rounds, participation)(1.0).coefficients
    return PrivacyPlan(mechanism, rounds, noise, participation, coefficients=chosen, **changes)


WIDTH = 64
LIKE = {"x": np.zeros(WIDTH, np.float32)}


class UnitNoise:
    """Draws of which each is a unit vector of its own, so that noise shows what it is made of."""

    def __init__(self):
        self.names = {}

    def __call__(self, terms):
        total = np.zeros(WIDTH)
        for coefficient, name in terms:
            total[self.names.setdefault(name, len(self.names))] += coefficient
        return {"x": total}


def mixing_matrix(plan, first=0, end=None, stop_after=None):
    """Rows: rounds; columns: draws. The covariance of the noise is this times its transpose."""
    noise, draw = make_noise(plan, first, end), UnitNoise()
    state, rows = noise.init(LIKE), []
    for number in range(first, end or plan.rounds):
        if number == stop_after:
            state = noise.restore(jax.device_get(noise.durable(state)), LIKE, draw)
        drawn, state = noise.next(state, draw)
        rows.append(np.asarray(drawn["x"], np.float64))
    return np.stack(rows)


def strategy_matrix(plan):
    """The strategy of a mechanism with a Toeplitz matrix."""
    column = MECHANISMS[plan.mechanism].column(plan.coefficients, plan.rounds)
    return sum(np.diag(np.full(plan.rounds - lag, column[lag]), -lag) for lag in range(plan.rounds))
