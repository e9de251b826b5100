"""The privacy loss of one release: pairs of distributions that no other pair of neighbouring data sets exceeds.

The loss of a pair (P, Q) at an outcome is `log dP/dQ`, and a release's privacy is the distribution of its loss under P.
Every pair here lives on the real line, in units of the noise's standard deviation; its loss rises with the outcome u.
`docs/design/accounting.md` says why these pairs (statement 1) and bounds their rounding (statement 8).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy

Direction = Literal["remove", "add"]
"""Whether the person is in the data set that outcomes are drawn from, or in the other."""
DIRECTIONS: tuple[Direction, ...] = ("remove", "add")
_ROUNDING = 2.0**-53
_LEAST = 1e-300  # mass, of what no float may express (statement 7)


class LossPair(ABC):
    """Two distributions with densities, and the loss between them."""

    @property
    @abstractmethod
    def total_variation(self) -> float:
        """Bound the total variation of the two from above (statement 21)."""

    @property
    @abstractmethod
    def fineness(self) -> float:
        """The scale of u on which density and loss change, at most 1."""

    @abstractmethod
    def loss(self, u: np.ndarray) -> np.ndarray:
        """Compute the loss at outcomes."""

    @abstractmethod
    def outcome(self, loss: np.ndarray) -> np.ndarray:
        """Undo `loss`; infinite for losses that it never has."""

    @abstractmethod
    def log_density(self, u: np.ndarray) -> np.ndarray:
        """Compute the logarithm of P's density, but for that of `sqrt(2 pi)`."""

    @abstractmethod
    def below(self, u: float) -> float:
        """Compute P's mass below an outcome."""

    @abstractmethod
    def above(self, u: float) -> tuple[float, float]:
        """Compute P's and Q's mass above an outcome."""

    @abstractmethod
    def range(self, tail: float) -> tuple[float, float]:
        """Give outcomes below and above which P has at most the mass `tail` each."""

    @abstractmethod
    def rounding(self, begin: float, end: float) -> float:
        """Bound the error of `loss` in float64, between two outcomes."""


@dataclass(frozen=True)
class SampledGaussianPair(LossPair):
    """P = (1 - q) N(0, 1) + q N(m, 1) and Q = N(0, 1), or the other way about (Mironov et al. 2019).

    Attributes:
      shift: m, what the person changes the sum by, in standard deviations of the noise.
      probability: q, with which the person takes part.
      direction: `remove` for this order. In `add`, u is minus the outcome, so that the loss rises with it.
    """

    shift: float
    probability: float
    direction: Direction

    @property
    def total_variation(self) -> float:
        return self.probability * math.erf(self.shift / math.sqrt(8))

    @property
    def fineness(self) -> float:
        return min(1.0, 1 / self.shift)

    def loss(self, u: np.ndarray) -> np.ndarray:
        return _log_ratio(u, self) if self.direction == "remove" else -_log_ratio(-u, self)

    def outcome(self, loss: np.ndarray) -> np.ndarray:
        return _at_log_ratio(loss, self) if self.direction == "remove" else -_at_log_ratio(-loss, self)

    def log_density(self, u: np.ndarray) -> np.ndarray:
        return -np.square(u) / 2 + (_log_ratio(u, self) if self.direction == "remove" else 0.0)

    def below(self, u: float) -> float:
        without = float(scipy.special.ndtr(u))
        if self.direction == "add":
            return without
        return (1 - self.probability) * without + self.probability * float(scipy.special.ndtr(u - self.shift))

    def above(self, u: float) -> tuple[float, float]:
        noise = float(scipy.special.ndtr(-u))
        shift = self.shift if self.direction == "remove" else -self.shift
        mixed = (1 - self.probability) * noise + self.probability * float(scipy.special.ndtr(shift - u))
        return (mixed, noise) if self.direction == "remove" else (noise, mixed)

    def range(self, tail: float) -> tuple[float, float]:
        far = -float(scipy.special.ndtri(tail / 2))
        shifted = tail / 2 / self.probability
        if self.direction == "add" or shifted >= 1:
            return -far, far
        return -far, max(far, self.shift - float(scipy.special.ndtri(shifted)))

    def rounding(self, begin: float, end: float) -> float:
        return _rounding_of_log_ratio(max(abs(begin), abs(end)), self)


@dataclass(frozen=True)
class ReplacedGaussianPair(LossPair):
    """P = (1 - q) N(0, 1) + q N(m, 1) and Q = (1 - q) N(0, 1) + q N(-m, 1).

    Attributes:
      shift: m.
      probability: q.
    """

    shift: float
    probability: float

    @property
    def total_variation(self) -> float:
        return self.probability * math.erf(self.shift / math.sqrt(2))

    @property
    def fineness(self) -> float:
        return min(1.0, 1 / self.shift)

    def loss(self, u: np.ndarray) -> np.ndarray:
        return _log_ratio(u, self) - _log_ratio(-u, self)

    def outcome(self, loss: np.ndarray) -> np.ndarray:
        size = np.abs(loss) / 2
        if self.probability < 1:
            log_ratio = self.shift**2 / 2 + math.log1p(-self.probability) - math.log(self.probability)
            with np.errstate(divide="ignore"):
                log_sinh = size + np.log(-np.expm1(-2 * size)) - math.log(2) + log_ratio
            size = size + np.where(log_sinh > 30, log_sinh + math.log(2), np.arcsinh(np.exp(np.minimum(log_sinh, 30))))
        return np.sign(loss) * size / self.shift

    def log_density(self, u: np.ndarray) -> np.ndarray:
        return -np.square(u) / 2 + _log_ratio(u, self)

    def below(self, u: float) -> float:
        return SampledGaussianPair(self.shift, self.probability, "remove").below(u)

    def above(self, u: float) -> tuple[float, float]:
        noise = (1 - self.probability) * float(scipy.special.ndtr(-u))
        own, other = (self.probability * float(scipy.special.ndtr(shift - u)) for shift in (self.shift, -self.shift))
        return noise + own, noise + other

    def range(self, tail: float) -> tuple[float, float]:
        return SampledGaussianPair(self.shift, self.probability, "remove").range(tail)

    def rounding(self, begin: float, end: float) -> float:
        return 3 * _rounding_of_log_ratio(max(abs(begin), abs(end)), self)


def _log_ratio(u: np.ndarray, pair: SampledGaussianPair | ReplacedGaussianPair) -> np.ndarray:
    """The logarithm of `((1 - q) N(0, 1) + q N(m, 1)) / N(0, 1)`."""
    exponent = pair.shift * (u - pair.shift / 2)
    if pair.probability == 1:
        return exponent
    if pair.probability > 0.5:
        return np.logaddexp(math.log1p(-pair.probability), math.log(pair.probability) + exponent)
    small = np.log1p(pair.probability * np.expm1(np.minimum(exponent, 600.0)))
    return np.where(exponent > 600.0, exponent + math.log(pair.probability), small)


def _rounding_of_log_ratio(farthest: float, pair: SampledGaussianPair | ReplacedGaussianPair) -> float:
    """Bound the error of `_log_ratio` for outcomes of at most this size, that of shift and probability as floats among
    it (statement 8)."""
    largest = pair.shift * (farthest + pair.shift / 2)
    if pair.probability > 0.5:
        return _ROUNDING * (12 + 12 * largest + (0 if pair.probability == 1 else -8 * math.log1p(-pair.probability)))
    # Of a loss x close to 0, which is that of log1p(x), only a part of x is lost.
    ends = _log_ratio(np.array([-farthest, farthest]), pair)
    size = float(np.max(np.abs(ends)))
    return _ROUNDING * (8 * size + min(1.0, size) * 8 * (4 + largest))


def _at_log_ratio(value: np.ndarray, pair: SampledGaussianPair) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        small = np.log1p(np.expm1(np.minimum(value, 600.0)) / pair.probability) if pair.probability < 1 else value
        exponent = np.where(value > 600.0, value - math.log(pair.probability), small)
    return np.where(np.isnan(exponent), -np.inf, exponent) / pair.shift + pair.shift / 2


@dataclass(frozen=True)
class MixedLoss:
    """The loss of one release: which of the pairs is at work is drawn by their weights, and known.

    Attributes:
      pairs: weights, which add up to 1 or less, and pairs.
      atoms: losses that single outcomes have, and their probabilities.
      infinite: the probability of an outcome that gives everything away.
      cap: losses above it are not computed; of them only P's and Q's masses count.
    """

    pairs: tuple[tuple[float, LossPair], ...] = ()
    atoms: tuple[tuple[float, float], ...] = ()
    infinite: float = 0.0
    cap: float = math.inf

    @property
    def atoms_below_cap(self) -> tuple[tuple[float, float], ...]:
        """The atoms that are computed."""
        return tuple(atom for atom in self.atoms if atom[0] <= self.cap)

    @property
    def total_variation(self) -> float:
        """Bound the total variation from above."""
        of_atoms = (probability * -math.expm1(-max(loss, 0.0)) for loss, probability in self.atoms)
        return math.fsum([self.infinite, *(weight * pair.total_variation for weight, pair in self.pairs), *of_atoms])

    def range(self, pair: LossPair, tail: float) -> tuple[float, float]:
        """Give the outcomes of a pair that are computed: all but the mass `tail` at each end, and what the cap cuts."""
        begin, end = pair.range(tail)
        if self.cap < math.inf:
            end = min(end, float(pair.outcome(np.array([self.cap]))[0]))
        return min(begin, end - 1), end  # all of a rare pair's losses may be above the cap

    def above(self, tail: float) -> tuple[float, float]:
        """Compute P's and Q's mass above what is computed, and of infinite loss; Q's is 0 only where it is exactly."""
        own, other = self.infinite, 0.0
        for weight, pair in self.pairs:
            here = pair.above(self.range(pair, tail)[1])
            own, other = own + weight * here[0], other + weight * here[1] + _LEAST
        for loss, probability in self.atoms:
            if loss > self.cap:
                own, other = own + probability, other + probability * math.exp(-loss) + _LEAST
        return own, other


def truncation(probability: float, population: int, most: int) -> tuple[float, float]:
    """Compute how likely it is that a Poisson sample may be cut to a size, and that the person is in it then.

    Where there is something to cut, the person may take another's place, which moves the sum twice as far; the pair for
    that case is a little worse than what happens, as in the dp-accounting library (Chua et al. 2024, arXiv 2411.04205).
    """
    cut = float(scipy.stats.binom.sf(most - 1, population - 1, probability))
    replaced = float(scipy.stats.binom.sf(most, population, probability)) * most / cut / population if cut else 0.0
    return (cut, min(replaced, 1.0)) if replaced > 0 else (0.0, 0.0)


def sampled_gaussian(
    noise_multiplier: float, probability: float, direction: Direction, cut_samples: tuple[float, float] = (0.0, 0.0)
) -> MixedLoss:
    """Describe a sum with noise, in which a person is with some probability; `cut_samples` is what `truncation` gives
    of samples that are cut."""
    whole, (cut, replaced) = SampledGaussianPair(1 / noise_multiplier, probability, direction), cut_samples
    if not cut:
        return MixedLoss(((1.0, whole),))
    cases = ((1 - cut, whole), (cut, ReplacedGaussianPair(2 / noise_multiplier, replaced)))
    return MixedLoss(tuple((weight, pair) for weight, pair in cases if weight > 0))


def stated_loss(epsilon: float, delta: float) -> MixedLoss:
    """Describe a release of which only epsilon and delta are known: randomised response (Kairouz et al. 2015)."""
    high = (1 - delta) / (1 + math.exp(-epsilon))
    return MixedLoss(atoms=((epsilon, high), (-epsilon, 1 - delta - high)), infinite=delta)
