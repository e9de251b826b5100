"""Noise correlated by a banded Toeplitz matrix (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization").

The coefficients are those of its diagonals. The last outputs are kept: `x_t = (z_t - sum over i of c_i x_(t-i)) / c_0`
(algorithm 9).
"""

import functools
from dataclasses import dataclass

import jax
import numpy as np

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count
from fedlm.fl_core.privacy.mechanisms.interface import NoisePlan
from fedlm.fl_core.privacy.mechanisms.toeplitz import Buffers, ToeplitzMechanism, ToeplitzNoise
from fedlm.fl_core.privacy.participation.limits import Participation
from fedlm.models.base import Params

_DEFAULT_BANDS = 16


@dataclass(frozen=True, kw_only=True)
class BandedSettings:
    """The width of the matrix of banded noise."""

    bands: Count | None = None
    """Diagonals of the banded mechanism, at most min-separation. Each costs the memory of one model. If not given, 16,
    or as many as are allowed."""


class BandedNoise(ToeplitzNoise):
    """Noise from the last outputs, the newest first."""

    def __init__(self, coefficients: tuple[float, ...], first: int, end: int):
        super().__init__(len(coefficients) - 1, first, end)
        self._coefficients = coefficients

    def invert(self, drawn: Params, buffers: Buffers) -> tuple[Params, Buffers]:
        noise = _invert(self._coefficients, drawn, buffers)
        return noise, (noise, *buffers)[: len(buffers)]


@functools.partial(jax.jit, static_argnums=0)
def _invert(coefficients: tuple[float, ...], drawn: Params, buffers: Buffers) -> Params:
    def invert(value: jax.Array, *before: jax.Array) -> jax.Array:
        for coefficient, output in zip(coefficients[1:], before, strict=True):
            value = value - coefficient * output
        return value / coefficients[0]

    return jax.tree_util.tree_map(invert, drawn, *buffers)


class Banded(ToeplitzMechanism):
    """The strategy of the least mean squared error of prefix sums among those of so many bands."""

    name = "banded"
    label = "banded"
    summary = "correlated noise by a banded Toeplitz matrix"
    help = "correlated noise by matrix factorization, with the least error"
    settings = BandedSettings
    options = BandedSettings

    def coefficients(self, options: BandedSettings, rounds: int, participation: Participation) -> tuple[float, ...]:
        from jax_privacy.matrix_factorization import toeplitz

        limit, of = participation.apart(rounds)
        bands = min(_DEFAULT_BANDS, limit) if options.bands is None else options.bands
        if not 1 <= bands <= limit:
            raise ConfigurationError(f"{setting('bands')} is {bands}, but must lie between 1 and {limit}, the {of}")
        with jax.enable_x64(True):
            found = np.asarray(toeplitz.optimize_banded_toeplitz(rounds, bands), np.float32)
        return tuple(map(float, found))

    def column(self, coefficients: tuple[float, ...], rounds: int) -> np.ndarray:
        return np.pad(np.asarray(coefficients, np.float64), (0, max(0, rounds - len(coefficients))))[:rounds]

    def reach(self, plan: NoisePlan) -> int:
        return len(plan.coefficients)

    def noise(self, plan: NoisePlan, first: int, end: int) -> BandedNoise:
        return BandedNoise(plan.coefficients, first, end)


MECHANISM = Banded()
