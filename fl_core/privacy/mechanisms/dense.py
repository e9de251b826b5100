"""Noise correlated by a lower-triangular matrix with coefficients of its own in every round (Denisov et al. 2022,
"Improved differential privacy for SGD via optimal private linear operators on adaptive streams"; with several
participations Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization").

The coefficients are the rows of the strategy C, up to the diagonal and without what lies outside of its bands. Nothing
is kept: a round draws the noise of all rounds before again from its names, and adds it up by a row of C^-1.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.mechanisms.interface import NoisePlan, NoSettings, check_horizon
from fedlm.fl_core.privacy.mechanisms.strategy import StrategyMechanism
from fedlm.fl_core.privacy.noise.noise_source import Draw
from fedlm.fl_core.privacy.participation.limits import Participation
from fedlm.models.base import Params


class DenseNoise:
    """Sums of all draws so far."""

    def __init__(self, inverse: np.ndarray, first: int, end: int):
        self._inverse, self._first, self._end = inverse, first, end

    def init(self, like: Params) -> np.ndarray:
        return np.asarray(self._first)

    def next(self, state: np.ndarray, draw: Draw) -> tuple[Params, np.ndarray]:
        number = check_horizon(state, self._end)
        row = self._inverse[number - self._first, : number - self._first + 1]
        terms = [(float(row[place]), (self._first, self._first + int(place))) for place in np.flatnonzero(row)]
        return draw(terms), np.asarray(number + 1)

    def durable(self, state: np.ndarray) -> np.ndarray:
        return state

    def restore(self, durable: np.ndarray, like: Params, draw: Draw) -> np.ndarray:
        return np.asarray(int(durable))


class Dense(StrategyMechanism):
    """The strategy of the least mean squared error of prefix sums, with bands that no client meets twice."""

    name = "dense"
    label = "dense"
    summary = "correlated noise by a dense matrix, for at most 300 rounds"
    help = (
        "correlated noise by matrix factorization, with less error still, for at most 300 rounds; it keeps nothing in "
        "memory, but draws the noise of all rounds before again in each"
    )
    most_rounds = 300

    def coefficients(self, options: NoSettings, rounds: int, participation: Participation) -> tuple[float, ...]:
        bound = participation.bounded(rounds)
        return _optimize(rounds, rounds if bound.most(rounds) == 1 else min(bound.min_separation, rounds))

    def check_coefficients(self, plan: NoisePlan) -> None:
        super().check_coefficients(plan)
        strategy = _strategy(plan.coefficients, plan.rounds)
        if not (np.all(np.isfinite(strategy)) and np.all(np.diag(strategy) > 0)):
            raise ConfigurationError("the coefficients of a dense matrix must be finite, its diagonal above 0")

    def noise(self, plan: NoisePlan, first: int, end: int) -> DenseNoise:
        return DenseNoise(_inverse(plan.coefficients, plan.rounds), first, end)

    def stretch_squared(self, plan: NoisePlan, rounds: int, most: int, min_separation: int) -> float:
        """From above, by Choquette-Choo et al. 2023, algorithm 4; exact for no more bands than the min-separation."""
        from jax_privacy.matrix_factorization import sensitivity

        strategy = _strategy(plan.coefficients, plan.rounds)[:rounds, :rounds]
        with jax.enable_x64(True):
            return sensitivity.get_min_sep_sensitivity_upper_bound(jnp.asarray(strategy), min_separation, most) ** 2

    def prefix_variance(self, plan: NoisePlan) -> np.ndarray:
        from jax_privacy.matrix_factorization import dense

        with jax.enable_x64(True):
            strategy = jnp.asarray(_strategy(plan.coefficients, plan.rounds))
            return np.asarray(dense.per_query_error(strategy_matrix=strategy))


@functools.lru_cache(maxsize=16)
def _optimize(rounds: int, bands: int) -> tuple[float, ...]:
    from jax_privacy.matrix_factorization import dense

    with jax.enable_x64(True):
        found = np.asarray(dense.optimize(rounds, bands=bands, equal_norm=True), np.float32)
    return tuple(map(float, found[_within(rounds, bands)]))


def _within(rounds: int, bands: int) -> np.ndarray:
    """Where the bands of a lower-triangular matrix are, bool [rounds, rounds]."""
    return np.tri(rounds, dtype=bool) & ~np.tri(rounds, k=-bands, dtype=bool)


@functools.lru_cache(maxsize=16)
def _strategy(coefficients: tuple[float, ...], rounds: int) -> np.ndarray:
    """Write out C, float64 [rounds, rounds]."""
    sizes = [bands * rounds - bands * (bands - 1) // 2 for bands in range(1, rounds + 1)]
    if len(coefficients) not in sizes:
        raise ConfigurationError(f"{len(coefficients)} coefficients, which are no bands of {rounds} rounds")
    strategy = np.zeros((rounds, rounds))
    strategy[_within(rounds, sizes.index(len(coefficients)) + 1)] = coefficients
    return strategy


@functools.lru_cache(maxsize=16)
def _inverse(coefficients: tuple[float, ...], rounds: int) -> np.ndarray:
    """What draws are multiplied by: C^-1, float64 [rounds, rounds]."""
    return np.tril(np.linalg.inv(_strategy(coefficients, rounds)))


MECHANISM = Dense()
