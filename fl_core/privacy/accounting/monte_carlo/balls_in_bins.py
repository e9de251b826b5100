"""Privacy of a person who is put into one of b bins at random, once for all, whose steps take turns (Choquette-Choo et
al. 2024, "Near-exact privacy amplification for matrix mechanisms"), by Monte Carlo.

`docs/design/accounting.md` proves each step; its statements are cited here by number.

All releases together are at the worst P = the mean over j of N(a e_j, I) against Q = N(0, I) in b dimensions, or the
other way about (statements 25 and 26). Let X_j = exp(a z_j - a^2 / 2), and W their mean. Delta is the mean of a convex
function of W under Q: `(W - k)+` or `(1 - k W)+`, with k = e^epsilon. Each X_j becomes a discrete variable, larger in
convex order (27). One of them is summed exactly; the others are drawn from a distribution that is tilted by their sum,
so that no draw counts much (28, 29). An empirical Bernstein bound holds of the mean, at all rungs of a ladder of
epsilons, and for many plans, at once (30).
"""

import functools
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_epsilon_above
from fedlm.fl_core.privacy.accounting.monte_carlo.epsilon_ladder import (
    FIRST_RUNG,
    ROUNDING,
    AliasTable,
    certified_epsilon,
    log_trials,
    number_of_draws,
    rng_of,
    rung_epsilon,
    upper_mean,
)

_MOST_BINS = 100_000
_LEFT_OUT = 1e-3  # of delta, for large values of two of the variables
_ATOMS, _LOWEST, _BEYOND = 2048, -9.0, 10.0  # of a discrete variable, and where its grid begins and ends
_LEAST_SHIFT, _MOST_SHIFT = 0.01, 8.0
_MOST_DRAWS = 100_000
_BLOCK = 2_000_000  # numbers that are drawn at once
_PARTS, _OFTEN = 8, 3.0  # of the mean; and how many of b are as large as where the second begins
_TILTS, _STEEPEST, _SUMS = 31, 100.0, 1024  # tilts among which the best is sought, and totals where each is tried


@dataclass(frozen=True)
class BinnedEvent:
    """Releases of sums with independent Gaussian noise, in which a person is by the bin that the person is in.

    Attributes:
      noise_multiplier: standard deviation of the noise, in units of what one person changes a sum by at most.
      count: of how many releases a bin is, at most.
      bins: b; the person is in one of them, drawn uniformly and in secret.
    """

    noise_multiplier: float
    count: int
    bins: int

    def check(self) -> None:
        """Refuse numbers that make no sense.

        Raises:
          ConfigurationError: one does not.
        """
        if not 1 <= self.bins <= _MOST_BINS:
            raise ConfigurationError(f"there are {self.bins} bins, but must be between 1 and {_MOST_BINS:,}")
        if not 0 < self.noise_multiplier < math.inf:
            raise ConfigurationError(f"{setting('noise_multiplier')} is {self.noise_multiplier}, but must be positive")
        if self.count < 0:
            raise ConfigurationError(f"the count of an event is {self.count}, but must be 0 at least")

    def epsilon_above(self, delta: float) -> float:
        """Bound epsilon at delta from above; the probability that the bound does not hold is a part of delta.

        Where Monte Carlo certifies nothing better, the bound is that without amplification.
        """
        self.check()
        return _epsilon_above(math.sqrt(self.count) / self.noise_multiplier, self.bins, delta) if self.count else 0.0

    def no_more(self) -> tuple[float, int, float]:
        """Describe Gaussian releases that are no less private, by multiplier, count and probability: of one bin, which
        tell whether the person is in it."""
        return self.noise_multiplier / math.sqrt(max(self.count, 1)), min(self.count, 1), 1 / self.bins

    def no_less(self) -> tuple[float, int]:
        """Describe Gaussian releases that are no more private, by multiplier and count: the bin is known."""
        return self.noise_multiplier, self.count


@functools.lru_cache(maxsize=256)
def _epsilon_above(shift: float, bins: int, delta: float) -> float:
    sure = gaussian_epsilon_above(1 / shift, delta)
    if bins == 1 or not _LEAST_SHIFT <= shift <= _MOST_SHIFT or sure <= FIRST_RUNG:
        return sure
    return certified_epsilon(BinsTest(shift, bins, delta, number_of_draws(bins, _MOST_DRAWS)), sure)


class Atoms(NamedTuple):
    """A discrete variable that is larger in convex order than a lognormal one of mean 1, and sums over its tails."""

    values: np.ndarray  # ascending, the first 0
    masses: np.ndarray
    above: np.ndarray  # mass of the atoms from the i-th on, and 0
    mean_above: np.ndarray
    below: np.ndarray  # of those before the i-th
    mean_below: np.ndarray


@functools.lru_cache(maxsize=8)
def atoms_of(shift: float) -> Atoms:
    """Share the mass between two points out among them such that its mean stays (statement 27)."""
    x = np.linspace(_LOWEST, shift + _BEYOND, _ATOMS)
    values = np.concatenate([[0.0], np.exp(shift * x - shift**2 / 2)])
    mass, mean = _between(x), _between(x - shift)
    upper = np.clip((mean - values[:-1] * mass) / np.diff(values), 0.0, mass)
    masses = np.zeros(len(values))
    masses[1:] += upper
    masses[:-1] += mass - upper
    masses[0] += scipy.special.ndtr(-x[-1])  # a larger value counts as 0: `beside` has what it is missed by
    weighted = masses * values
    return Atoms(values, masses, _from(masses), _from(weighted), _before(masses), _before(weighted))


def _between(x: np.ndarray) -> np.ndarray:
    """The normal mass below the first point, and between neighbours."""
    lower, upper = np.concatenate([[-np.inf], x[:-1]]), x
    small = scipy.special.ndtr(upper) - scipy.special.ndtr(lower)
    return np.where(lower > 0, scipy.special.ndtr(-lower) - scipy.special.ndtr(-upper), small)


def _from(values: np.ndarray) -> np.ndarray:
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)


def _before(values: np.ndarray) -> np.ndarray:
    return np.append(0.0, np.cumsum(values))


class Question(NamedTuple):
    """Of which function of the mean W of b variables the mean is sought: `(W - k)+`, or `(1 - k W)+`."""

    atoms: Atoms
    bins: int
    remove: bool  # whether P is the mixture
    factor: float  # k

    def counts(self, total: np.ndarray, largest: np.ndarray) -> np.ndarray:
        """Sum over one variable X, given total S and largest M of the others: the mean of `(X + S - b k)+` where X is
        at least M, or of `(1 - k (X + S) / b)+` (statement 28)."""
        atoms = self.atoms
        if self.remove:
            least = self.bins * self.factor - total
            index = np.searchsorted(atoms.values, np.maximum(least, largest))
            return np.maximum(atoms.mean_above[index] - least * atoms.above[index], 0.0)
        left = 1 - self.factor * total / self.bins
        index = np.searchsorted(atoms.values, left * self.bins / self.factor)
        return np.maximum(left * atoms.below[index] - self.factor / self.bins * atoms.mean_below[index], 0.0)


class Part(NamedTuple):
    """A part of the mean, by which atom the largest of the other variables is and by their total, and how these are
    drawn."""

    first: int  # that atom is this or a later one; 0 where it is not drawn by itself
    end: int  # and before this one
    ceiling: float  # below which the total is
    rate: float  # lambda: a draw of the total S counts exp(-lambda S) times a constant
    log_constant: float
    log_most: float  # the logarithm of what a draw counts at most


def parts_of(question: Question, left_out: float) -> tuple[list[Part], float]:
    """Divide the mean into parts, and bound what is in none of them, about `left_out` (statement 29)."""
    atoms, bins = question.atoms, question.bins
    if not question.remove:
        return [_tilted(question, 0, len(atoms.values), 0.0)[0]], 0.0
    two = (bins - 1) * atoms.mean_above * atoms.above + (bins - 1) * (bins - 2) / 2 * np.square(atoms.above)
    last = max(int(np.argmax(two <= left_out / 2)), 2)
    often = max(min(int(np.searchsorted(-atoms.above, -_OFTEN / bins)), last), 2)
    ends = sorted({*np.linspace(often, last, _PARTS).astype(int).tolist()})
    found = [_tilted(question, first, end, left_out / 2 / _PARTS) for first, end in itertools.pairwise([0, *ends])]
    beside = math.fsum(above for _, above in found)
    return [part for part, _ in found], beside + float(two[last]) + float(scipy.special.ndtr(-_BEYOND))


def _tilted(question: Question, first: int, end: int, left_out: float) -> tuple[Part, float]:
    """Choose the ceiling of a part and the tilt with which one draw counts for the least at most, and bound what is not
    below the ceiling."""
    atoms, bins, span = question.atoms, question.bins, question.bins * question.factor
    values, log_masses = atoms.values[:end], np.log(np.maximum(atoms.masses[:end], 1e-300))
    low, least = values[first], 1 / span
    if question.remove:
        rates = np.geomspace(least, max(_STEEPEST / values[-1], 2 * least), _TILTS)
        sums = np.concatenate([np.linspace(0, 1.2 * span, _SUMS), np.linspace(1.25 * span, 4 * span, 64)]) + low
    else:
        rates = -np.geomspace(1e-3, 1e4, _TILTS) * question.factor / bins
        sums = np.linspace(0.0, bins / question.factor, _SUMS)
    exponents = log_masses + rates[:, None] * values
    log_constants = (bins - 1 - bool(first)) * scipy.special.logsumexp(exponents, axis=1)
    if first:
        log_constants += math.log(bins - 1) + scipy.special.logsumexp(exponents[:, first:], axis=1)
    counts = np.log(np.maximum(question.counts(sums, low), 1e-300))
    # The larger of each factor at two neighbouring sums bounds their product between these.
    weights = -rates[:, None] * sums
    between = np.maximum(counts[1:], counts[:-1]) + np.maximum(weights[:, 1:], weights[:, :-1])
    # Beyond the last sum, what is added up falls; for the person added it is nothing there.
    last = log_constants + math.log(sums[-1]) + weights[:, -1]
    beyond = last if question.remove else np.full(len(rates), -math.inf)
    most = np.column_stack([log_constants[:, None] + between, beyond])
    above = np.append(np.maximum.accumulate(most[:, ::-1], axis=1)[:, ::-1].min(axis=0), -math.inf)
    place = max(int(np.argmax(above <= (math.log(left_out) if left_out else -math.inf))), 1)
    below = most[:, :place].max(axis=1)
    best = int(np.argmin(below))
    ceiling = float(np.append(sums, math.inf)[place])
    part = Part(first, end, ceiling, float(rates[best]), float(log_constants[best]), float(below[best]))
    return part, math.exp(above[place])


@dataclass(frozen=True)
class BinsTest:
    """Whether a rung's epsilon holds at delta: what is drawn follows from these numbers and the rung alone."""

    shift: float
    bins: int
    delta: float
    draws: int  # for each part of the mean

    def bound(self, rung: int, remove: bool, pilot: int | None = None) -> float:
        """Bound delta at a rung in one direction; from fewer draws, of others, a guess of that bound."""
        question = Question(atoms_of(self.shift), self.bins, remove, math.exp(rung_epsilon(rung)))
        parts, bound = parts_of(question, _LEFT_OUT * self.delta)
        for number, part in enumerate(parts):
            most = math.exp(min(part.log_most, 700.0))
            if most <= _LEFT_OUT * self.delta:
                bound += most
                continue
            name = f"{self.shift.hex()} {self.bins} {self.delta.hex()} {self.draws} {rung} {remove} {number} {pilot}"
            counts = drawn(question, part, pilot or self.draws, rng_of(name))
            bound += upper_mean(counts, most, self.draws, log_trials(self.delta, _PARTS))
            if bound > self.delta:
                break
        return bound * (1 + ROUNDING)


def drawn(question: Question, part: Part, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the other variables, and say what each draw counts: float64 [draws]."""
    values = question.atoms.values[: part.end]
    exponents = np.log(np.maximum(question.atoms.masses[: part.end], 1e-300)) + part.rate * values
    weights = np.exp(exponents - exponents.max())
    others, of_largest = (
        AliasTable.of(weights),
        AliasTable.of(np.exp(exponents[part.first :] - exponents[part.first :].max())),
    )
    columns = question.bins - 1 - bool(part.first)
    rows = max(1, _BLOCK // max(columns, 1))
    found = []
    for start in range(0, draws, rows):
        count = min(rows, draws - start)
        rest = values[others.draw(rng, (count, columns))]
        total, largest = rest.sum(axis=1), rest.max(axis=1, initial=0.0)
        inside = np.ones(count, bool)
        if part.first:
            chosen = values[part.first + of_largest.draw(rng, (count,))]
            inside, total, largest = largest <= chosen, total + chosen, chosen
        inside &= total < part.ceiling
        counts = question.counts(total, largest)
        found.append(np.where(inside, counts * np.exp(part.log_constant - part.rate * total), 0.0))
    return np.concatenate(found)
