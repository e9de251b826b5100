"""Privacy of a person who takes part by chance, but not again within b steps, under banded noise (Dong and Ganesh 2026,
"Privacy amplification for BandMF via b-min-sep subsampling"), by Monte Carlo.

`docs/design/accounting.md` proves each step; its statements are cited here by number.

All releases together are at the worst P = the mean over patterns z of N(r_z, I) against Q = N(0, I), or the other way
about (statements 25 and 32). W, the likelihood ratio, follows from one pass over the steps (33). Delta is the mean
under Q of `(W - k)+` or `(1 - k W)+`, with k = e^epsilon. Draws are of patterns and outputs that are tilted, so that no
draw counts much (34).
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_epsilon_above
from fedlm.fl_core.privacy.accounting.monte_carlo import (
    FIRST_RUNG,
    ROUNDING,
    certified_epsilon,
    log_trials,
    number_of_draws,
    rng_of,
    rung_epsilon,
    upper_mean,
)

MOST_STEPS = 10_000
"""For which Monte Carlo takes minutes, as long as each step is a pass over all draws."""
_MOST_DRAWS = 200_000
_BLOCK = 1_000_000  # numbers that are drawn at once
_TILTS = 1 + np.geomspace(0.02, 200, 200)  # among which the best is sought


@dataclass(frozen=True)
class SeparatedEvent:
    """Releases of sums with banded noise, in which a person takes part with a probability, where not within b steps of
    the last time.

    Attributes:
      noise_multiplier: standard deviation of the noise, in units of what one part in a step moves all releases by.
      steps: T.
      sampling_probability: p, in a step, of who did not take part in the b - 1 before.
      separation: b; no less than the coefficients.
      coefficients: of the noise's strategy, whose absolute values count, up to a factor.
    """

    noise_multiplier: float
    steps: int
    sampling_probability: float
    separation: int
    coefficients: tuple[float, ...]

    def check(self) -> None:
        """Refuse numbers that make no sense.

        Raises:
          ConfigurationError: one does not.
        """
        if not 0 <= self.steps <= MOST_STEPS:
            raise ConfigurationError(
                f"{setting('steps')} is {self.steps}, but must be {MOST_STEPS:,} at most with a min-separation in "
                "sampling, of which more take hours to account; take larger batches, or "
                f"{setting('sampling', 'poisson')}"
            )
        if not 0 < self.noise_multiplier < math.inf:
            raise ConfigurationError(f"{setting('noise_multiplier')} is {self.noise_multiplier}, but must be positive")
        if not 0 < self.sampling_probability <= 1:
            raise ConfigurationError(
                f"{setting('sampling_probability')} is {self.sampling_probability}, but must lie in (0, 1]"
            )
        if not 1 <= len(self.coefficients) <= self.separation:
            raise ConfigurationError(
                f"the separation is {self.separation}, but must be at least the {len(self.coefficients)} bands"
            )

    def epsilon_above(self, delta: float) -> float:
        """Bound epsilon at delta from above; the probability that the bound does not hold is a part of delta.

        Where Monte Carlo certifies nothing better, the bound is that without amplification.
        """
        self.check()
        return _epsilon_above(self, delta) if self.steps else 0.0

    def no_more(self) -> tuple[float, int, float]:
        """Describe Gaussian releases that are no less private, by multiplier, count and probability: of one step."""
        return self.noise_multiplier, min(self.steps, 1), self.sampling_probability * _free(self)

    def no_less(self) -> tuple[float, int]:
        """Describe Gaussian releases that are no more private, by multiplier and count: as often as may be."""
        return self.noise_multiplier, -(-self.steps // self.separation)


def _free(event: SeparatedEvent) -> float:
    """The probability that a person may be drawn, which is the same in each step."""
    return 1 / (1 + (event.separation - 1) * event.sampling_probability)


@functools.lru_cache(maxsize=256)
def _epsilon_above(event: SeparatedEvent, delta: float) -> float:
    noise, count = event.no_less()
    sure = gaussian_epsilon_above(noise / math.sqrt(count), delta)
    if sure <= FIRST_RUNG:
        return sure
    return certified_epsilon(SeparatedTest(event, delta), sure)


class Tilt(NamedTuple):
    """How draws are tilted (statement 34)."""

    power: float  # gamma, above 1
    log_constant: float  # the logarithm of Z
    log_most: float  # of what a draw counts at most
    ahead: np.ndarray  # logarithm, for who may be drawn in a step, of the sum over what follows: float64 [T + b]


def tilt_of(event: SeparatedEvent, epsilon: float) -> Tilt:
    """Choose the tilt with which one draw counts for the least at most."""
    power, ahead = _TILTS, _ahead(event)
    start = np.concatenate([ahead[:1], math.log(event.sampling_probability) + ahead[1 : event.separation]])
    log_constant = math.log(_free(event)) + scipy.special.logsumexp(start, axis=0)
    log_most = log_constant + (1 - power) * epsilon + (power - 1) * np.log(power - 1) - power * np.log(power)
    best = int(np.argmin(log_most))
    return Tilt(float(power[best]), float(log_constant[best]), float(log_most[best]), ahead[:, best])


@functools.lru_cache(maxsize=1)
def _ahead(event: SeparatedEvent) -> np.ndarray:
    """Sum over what follows each step in which a person may be drawn, by tilt; logarithms: float64 [T + b, tilts]."""
    gain = _TILTS * (_TILTS - 1) / 2 / event.noise_multiplier**2
    steps, apart, probability = event.steps, event.separation, event.sampling_probability
    ahead = np.zeros((steps + apart, len(gain)))
    stays = math.log1p(-probability) if probability < 1 else -math.inf
    for step in range(steps - 1, -1, -1):
        ahead[step] = np.logaddexp(stays + ahead[step + 1], math.log(probability) + gain + ahead[step + apart])
    return ahead


@dataclass(frozen=True)
class SeparatedTest:
    """Whether a rung's epsilon holds at delta: what is drawn follows from these numbers and the rung alone."""

    event: SeparatedEvent
    delta: float

    @property
    def draws(self) -> int:
        """How many there are, for each direction."""
        return number_of_draws(self.event.steps, _MOST_DRAWS)

    def bound(self, rung: int, remove: bool, pilot: int | None = None) -> float:
        """Bound delta at a rung in one direction; from fewer draws, of others, a guess of that bound."""
        epsilon = rung_epsilon(rung)
        tilt = tilt_of(self.event, epsilon)
        most = math.exp(min(tilt.log_most, 700.0))
        trials = log_trials(self.delta, 1)
        if 7 * most * trials / (3 * self.draws) > self.delta:
            return most
        event = self.event
        numbers = [event.noise_multiplier, event.sampling_probability, self.delta, *event.coefficients]
        name = " ".join([*map(float.hex, numbers), f"{event.steps} {event.separation} {rung} {remove} {pilot}"])
        counts = drawn(event, tilt, epsilon, rng_of(name), remove=remove, draws=pilot or self.draws)
        return upper_mean(np.minimum(counts, most), most, self.draws, trials) * (1 + ROUNDING)


def drawn(
    event: SeparatedEvent, tilt: Tilt, epsilon: float, rng: np.random.Generator, *, remove: bool, draws: int
) -> np.ndarray:
    """Draw tilted patterns and outputs, and say what each draw counts: float64 [draws]."""
    power = tilt.power if remove else 1 - tilt.power
    rows = max(1, _BLOCK // event.steps)
    found = []
    for start in range(0, draws, rows):
        logs = log_ratios(event, tilt, rng, power=power, rows=min(rows, draws - start))
        log_ratio = log_sum(event, logs)
        with np.errstate(divide="ignore", over="ignore"):
            excess = log_ratio + np.log(np.maximum(-np.expm1(epsilon - log_ratio), 0.0))
            lack = np.log(np.maximum(-np.expm1(epsilon + log_ratio), 0.0))
        weight = tilt.log_constant - log_sum(event, power * logs)
        found.append(np.exp((excess if remove else lack) + weight))
    return np.concatenate(found)


def log_ratios(event: SeparatedEvent, tilt: Tilt, rng: np.random.Generator, *, power: float, rows: int) -> np.ndarray:
    """Draw the logarithm of what each step would multiply the likelihood ratio by: float64 [T, rows]."""
    shift = np.abs(np.asarray(event.coefficients))[:, None]
    shift = shift / np.linalg.norm(shift) / event.noise_multiplier
    mean = power * scipy.signal.fftconvolve(patterns(event, tilt, rows, rng), shift, axes=0)
    outputs = mean + rng.standard_normal(mean.shape)
    return scipy.signal.fftconvolve(outputs, shift[::-1], "valid", axes=0) - 0.5 / event.noise_multiplier**2


def patterns(event: SeparatedEvent, tilt: Tilt, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Draw when the person takes part, tilted: float64 [T, rows] of 0 and 1."""
    apart, ahead = event.separation, tilt.ahead
    gain = tilt.power * (tilt.power - 1) / 2 / event.noise_multiplier**2
    start = np.concatenate([ahead[:1], math.log(event.sampling_probability) + ahead[1:apart]])
    start = np.exp(start - scipy.special.logsumexp(start))
    free = rng.choice(apart, rows, p=start / start.sum())
    takes = np.zeros((event.steps, rows))
    for step in range(event.steps):
        chance = math.exp(math.log(event.sampling_probability) + gain + ahead[step + apart] - ahead[step])
        takes[step] = (free <= step) & (rng.random(rows) < chance)
        free = np.where(takes[step] > 0, step + apart, free)
    return takes


def log_sum(event: SeparatedEvent, logs: np.ndarray) -> np.ndarray:
    """Sum over all patterns the product of their steps' factors, each with its probability: logarithms, float64 [T,
    rows] to [rows]."""
    steps, apart, probability = event.steps, event.separation, event.sampling_probability
    stays = math.log1p(-probability) if probability < 1 else -math.inf
    drew, start = math.log(probability), math.log(_free(event))
    free = np.full(logs.shape[1], start)  # the sum over those who may be drawn in a step
    took = np.full((apart - 1 + steps, logs.shape[1]), drew + start)  # who were, from b - 1 steps before the first on
    for step in range(steps):
        took[apart - 1 + step] = drew + logs[step] + free
        free = np.logaddexp(stays + free, took[step])
    return scipy.special.logsumexp(np.concatenate([free[None], took[steps:]]), axis=0)
