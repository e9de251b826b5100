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
from fedlm.fl_core.privacy.accounting.monte_carlo.epsilon_ladder import (
    BETA_OF_DELTA,
    FIRST_RUNG,
    ROUNDING,
    certified_epsilon,
    log_trials,
    number_of_draws,
    rng_of,
    rung_epsilon,
    upper_mean,
)
from fedlm.fl_core.privacy.accounting.monte_carlo.joint_patterns import JointPatterns

MOST_STEPS = 10_000
"""For which Monte Carlo takes minutes, as long as each step is a pass over all draws."""
_MOST_DRAWS = 100_000
_BLOCK = 1_000_000  # numbers that are drawn at once
_POWERS = 1 + np.geomspace(0.02, 200, 100)  # gammas of one pattern, among which the best is sought
_MOST_TOGETHER, _MOST_STATES = 4, 10_000_000  # patterns, and numbers by which they are drawn
_POWERS_TOGETHER = ((1.0, 0.0), (1.5, 1.5), (1.5, 2.0), (2.0, 1.5), (2.0, 2.0), (3.0, 1.5))  # c, and theta in a^2 / 2
_MOST_EXPONENT = 300.0  # of a weight


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
        if not self.separation <= min(MOST_STEPS, _MOST_STATES // max(self.steps, 1)):
            raise ConfigurationError(
                f"the separation is {self.separation}, but must be {MOST_STEPS:,} at most, and {_MOST_STATES:,} over "
                "the steps; take fewer bands"
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
        if not 0 < np.linalg.norm(self.coefficients) < math.inf:
            raise ConfigurationError(f"the coefficients are {self.coefficients}, but must be finite, and not all zero")

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


def _stays(event: SeparatedEvent) -> float:
    """The logarithm of the probability that who may be drawn in a step is not."""
    return math.log1p(-event.sampling_probability) if event.sampling_probability < 1 else -math.inf


@functools.lru_cache(maxsize=256)
def _epsilon_above(event: SeparatedEvent, delta: float) -> float:
    noise, count = event.no_less()
    sure = gaussian_epsilon_above(noise / math.sqrt(count), delta)
    # With very little noise numbers of all tilts are too large.
    if sure <= FIRST_RUNG or not all(_tilts(event, remove=remove) for remove in (False, True)):
        return sure
    return certified_epsilon(SeparatedTest(event, delta), sure)


class Tilt(NamedTuple):
    """How draws are tilted (statement 34)."""

    patterns: JointPatterns  # that are drawn together; outputs are around `power` times the sum of their shifts
    power: float  # c
    spread: float  # theta
    log_constant: float  # the logarithm of Z
    log_bound: float  # of what W^gamma is at most, in units of the density V / Z

    @property
    def gamma(self) -> float:
        return self.power * self.patterns.together if self.power > 0 else 1 - self.power

    def log_most(self, epsilon: float) -> float:
        """The logarithm of what one draw counts at most."""
        less = self.gamma - 1
        return self.log_bound - less * epsilon + less * math.log(less) - self.gamma * math.log(self.gamma)


def tilt_of(event: SeparatedEvent, epsilon: float, *, remove: bool) -> Tilt:
    """Choose the tilt with which one draw counts for the least at most."""
    return min(_tilts(event, remove=remove), key=lambda tilt: tilt.log_most(epsilon))


@functools.lru_cache(maxsize=2)
def _tilts(event: SeparatedEvent, *, remove: bool) -> list[Tilt]:
    half = 0.5 / event.noise_multiplier**2
    powers = [float(power) if remove else float(1 - power) for power in _POWERS]
    tries = [(1, power, (power - 1) * half) for power in powers]
    for together in range(2, _MOST_TOGETHER + 1) if remove else ():
        if event.steps * event.separation**together <= _MOST_STATES:
            tries += [(together, power, times * (power - 1) * half) for power, times in _POWERS_TOGETHER]
    tries = [one for one in tries if one[0] ** 2 * one[1] ** 2 * half <= _MOST_EXPONENT]
    sums = _log_weights(event, np.array([spread for _, _, spread in tries]))
    return [_tilt(event, *one, log_spread=float(log_sum)) for one, log_sum in zip(tries, sums, strict=True)]


def _tilt(event: SeparatedEvent, together: int, power: float, spread: float, *, log_spread: float) -> Tilt:
    shift = _shift(event)
    overlaps = np.correlate(shift, shift, "full")[len(shift) - 1 :] * power**2
    gain = spread * (1 - power) + (power**2 - power) / 2 / event.noise_multiplier**2
    patterns = JointPatterns(
        event.steps, event.separation, event.sampling_probability, together, gain, tuple(map(float, overlaps))
    )
    # Of one pattern, the gain is `spread`.
    log_constant = log_spread if together == 1 else patterns.log_sum()
    return Tilt(patterns, power, spread, log_constant, log_constant + (power - 1) * together * log_spread)


def _log_weights(event: SeparatedEvent, gains: np.ndarray) -> np.ndarray:
    """Sum the probabilities of all patterns, times exp(gain) for each part: logarithms, float64 [gains]."""
    steps, apart, drew = event.steps, event.separation, math.log(event.sampling_probability)
    ahead = np.zeros((steps + apart, len(gains)))
    for step in range(steps - 1, -1, -1):
        ahead[step] = np.logaddexp(_stays(event) + ahead[step + 1], drew + gains + ahead[step + apart])
    return math.log(_free(event)) + scipy.special.logsumexp(np.vstack([ahead[:1], drew + ahead[1:apart]]), axis=0)


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
        tilt = tilt_of(self.event, epsilon, remove=remove)
        most = math.exp(min(tilt.log_most(epsilon), 700.0))
        trials = log_trials(self.delta, 1)
        if most <= self.delta * (1 - BETA_OF_DELTA) or 7 * most * trials / (3 * self.draws) > self.delta:
            return most
        event = self.event
        numbers = [event.noise_multiplier, event.sampling_probability, self.delta, *event.coefficients]
        name = " ".join(
            [*(float(number).hex() for number in numbers), f"{event.steps} {event.separation} {rung} {remove} {pilot}"]
        )
        counts = drawn(event, tilt, epsilon, rng_of(name), draws=pilot or self.draws)
        return upper_mean(np.minimum(counts, most), most, self.draws, trials) * (1 + ROUNDING)


def drawn(event: SeparatedEvent, tilt: Tilt, epsilon: float, rng: np.random.Generator, *, draws: int) -> np.ndarray:
    """Draw tilted patterns and outputs, and say what each draw counts: float64 [draws]."""
    takes, found = tilt.patterns.draw(draws, rng), []
    for start in range(0, draws, rows := max(1, _BLOCK // event.steps)):
        logs = log_ratios(event, tilt.power * takes[:, start : start + rows], rng)
        log_ratio = log_sum(event, logs)
        with np.errstate(divide="ignore", over="ignore"):
            if tilt.power > 0:
                excess = log_ratio + np.log(np.maximum(-np.expm1(epsilon - log_ratio), 0.0))
            else:
                excess = np.log(np.maximum(-np.expm1(epsilon + log_ratio), 0.0))
        tilted = log_sum(event, tilt.power * logs + tilt.spread * (1 - tilt.power))
        found.append(np.exp(excess + tilt.log_constant - tilt.patterns.together * tilted))
    return np.concatenate(found)


def log_ratios(event: SeparatedEvent, takes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw outputs around shifts, float64 [T, rows] times, and the logarithm of what each step would multiply the
    likelihood ratio by: float64 [T, rows]."""
    shift = _shift(event)[:, None]
    mean = scipy.signal.fftconvolve(takes, shift, axes=0)
    outputs = mean + rng.standard_normal(mean.shape)
    return scipy.signal.fftconvolve(outputs, shift[::-1], "valid", axes=0) - 0.5 / event.noise_multiplier**2


def _shift(event: SeparatedEvent) -> np.ndarray:
    """What one part moves releases by, in units of the noise: float64 [bands]."""
    shift = np.abs(np.asarray(event.coefficients))
    return shift / np.linalg.norm(shift) / event.noise_multiplier


def log_sum(event: SeparatedEvent, logs: np.ndarray) -> np.ndarray:
    """Sum over all patterns the product of their steps' factors, each with its probability: logarithms, float64 [T,
    rows] to [rows]."""
    steps, apart = event.steps, event.separation
    drew, start = math.log(event.sampling_probability), math.log(_free(event))
    free = np.full(logs.shape[1], start)  # the sum over those who may be drawn in a step
    took = np.empty_like(logs)  # over those who were
    for step in range(steps):
        took[step] = drew + logs[step] + free
        back = took[step - apart + 1] if step >= apart - 1 else drew + start
        free = np.logaddexp(_stays(event) + free, back)
    # Some of those who wait at the end may have been drawn before the first step.
    before = np.full((1, logs.shape[1]), drew + start + math.log(apart - 1 - steps)) if steps < apart - 1 else logs[:0]
    return scipy.special.logsumexp(np.concatenate([free[None], took[max(steps - apart + 1, 0) :], before]), axis=0)
