"""What the noise of a mechanism is made of, as a matrix."""

import jax
import numpy as np

from fedlm.fl_core.privacy.mechanisms.interface import make_mechanism
from fedlm.fl_core.privacy.participation import BoundedParticipation
from fedlm.fl_core.privacy.plan import PrivacyPlan

ONCE = BoundedParticipation(1, 1)
BLT = (0.9, 0.4, 0.2, 0.15)
BANDED = (0.8, 0.5, 0.3)
ROUNDS = 13


def plan_of(mechanism, rounds=ROUNDS, **changes):
    coefficients = {"blt": BLT, "banded": BANDED}.get(mechanism, ())
    return PrivacyPlan(mechanism, rounds, 1.0, ONCE, coefficients=coefficients, **changes)


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


def mixing_matrix(plan, first=0, stop_after=None):
    """Rows: rounds; columns: draws. The covariance of the noise is this times its transpose."""
    mechanism, draw = make_mechanism(plan, first), UnitNoise()
    state, rows = mechanism.init(LIKE), []
    for number in range(first, plan.rounds):
        if number == stop_after:
            state = mechanism.restore(jax.device_get(mechanism.durable(state)), LIKE, draw)
        noise, state = mechanism.next(state, draw)
        rows.append(np.asarray(noise["x"], np.float64))
    return np.stack(rows)
