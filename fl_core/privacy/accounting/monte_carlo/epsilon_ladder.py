"""Epsilon by Monte Carlo: a ladder of epsilons of which one is certified, and a chance to fail that is part of delta
(`docs/design/accounting.md`, statement 30)."""

import hashlib
import math
from typing import NamedTuple, Protocol

import numpy as np

BETA_OF_DELTA = 1e-3
"""Which part of delta is the probability, over seeds, that a bound does not hold for one of `PLANS` plans."""
PLANS = 2**20
FIRST_RUNG, _RATIO, RUNGS = 1e-4, 1.0005, 32_768  # of the ladder
_LEAST_DRAWS, _MOST_NUMBERS, _PILOT = 4000, 20_000_000, 0.05
ROUNDING = 1e-6  # relative, of sums and tables in float64
RELIES_ON = (
    "epsilon is computed by Monte Carlo, whose seed is a hash of the plan's numbers; were it drawn by chance, the "
    f"probability that epsilon is too low for any of 2^{PLANS.bit_length() - 1} plans would be at most a thousandth of "
    "delta, which is part of delta; the plan was not chosen among more"
)


class Test(Protocol):
    """Whether the epsilon of a rung holds at a delta."""

    @property
    def delta(self) -> float:
        """That is to hold."""

    @property
    def draws(self) -> int:
        """How many there are, for each part of the mean."""

    def bound(self, rung: int, remove: bool, pilot: int | None = None) -> float:
        """Bound delta at a rung in one direction; from fewer draws, of others, a guess of that bound."""


def rung_epsilon(rung: int) -> float:
    """The epsilon of a rung of the ladder, fixed before any draw."""
    return float(FIRST_RUNG * _RATIO**rung)


def certified_epsilon(test: Test, sure: float) -> float:
    """Find the least rung that is certified, from a first guess upwards; `sure` where none below it is."""
    few = math.ceil(_PILOT * test.draws)
    low, high = -1, min(math.ceil(math.log(sure / FIRST_RUNG) / math.log(_RATIO)), RUNGS)
    top, step = high, 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _holds(test, middle, few) else (middle, high)
    while high < top:
        if _holds(test, high):
            return min(sure, rung_epsilon(high))
        high, step = high + step, 2 * step
    return sure


def _holds(test: Test, rung: int, pilot: int | None = None) -> bool:
    """Say whether delta, without the probability to fail, is certified at a rung in both directions; or guess it."""
    certifiable = test.delta * (1 - BETA_OF_DELTA)
    return all(test.bound(rung, remove, pilot) <= certifiable for remove in (True, False))


def number_of_draws(numbers: int, most: int) -> int:
    """Choose how many draws there are, of so many numbers each."""
    return min(max(_MOST_NUMBERS // numbers, _LEAST_DRAWS), most)


def log_trials(delta: float, parts: int) -> float:
    """The logarithm of 2 over the probability that one of the bounds does not hold, of so many parts a direction."""
    return math.log(2 * 2 * parts * RUNGS * PLANS / (BETA_OF_DELTA * delta))


def upper_mean(counts: np.ndarray, most: float, draws: int, trials: float) -> float:
    """Bound a mean of numbers between 0 and `most` (Maurer and Pontil 2009, "Empirical Bernstein bounds and sample
    variance penalization", theorem 4), from so many draws; fewer foresee it."""
    spread = math.sqrt(2 * float(np.var(counts, ddof=1)) * trials / draws)
    return float(np.mean(counts)) + spread + 7 * most * trials / (3 * (draws - 1))


def rng_of(name: str) -> np.random.Generator:
    """Draw what follows from a name alone."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")
    return np.random.Generator(np.random.Philox(seed))


class AliasTable(NamedTuple):
    """Walker's alias table: place i stays i with probability `keep[i]`, and else becomes `alias[i]`."""

    keep: np.ndarray
    alias: np.ndarray

    @staticmethod
    def of(weights: np.ndarray) -> "AliasTable":
        scaled = weights / weights.sum() * len(weights)
        keep, alias = np.ones(len(scaled)), np.arange(len(scaled))
        small, large = np.flatnonzero(scaled < 1).tolist(), np.flatnonzero(scaled >= 1).tolist()
        while small and large:
            less, more = small.pop(), large[-1]
            keep[less], alias[less] = scaled[less], more
            scaled[more] -= 1 - scaled[less]
            if scaled[more] < 1:
                small.append(large.pop())
        return AliasTable(keep, alias)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw places, int64 of a shape."""
        uniform = rng.random(shape) * len(self.keep)
        place = uniform.astype(np.int64)
        return np.where(uniform - place < self.keep[place], place, self.alias[place])
