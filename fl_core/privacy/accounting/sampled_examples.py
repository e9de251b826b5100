"""Privacy of a user whose examples are sampled one by one (Charles et al. 2024, "Fine-tuning large language models with
user-level differential privacy", section 4 and theorem 2).

A user has K examples at most. Each is in a batch with probability q, independently and in secret, and its gradient is
clipped to norm 1. So the user moves a sum by as many clip norms as examples were drawn, at most, and no pair of
neighbouring data sets exceeds a mixture of Gaussians over that number, binomial, against the noise alone.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from fedlm.fl_core.privacy.accounting.losses.loss_pairs import Direction, LossPair

MOST_EXAMPLES = 256
"""Of a user."""
MOST_SHIFT = 50.0
"""What all examples of a user change the sum by, in standard deviations of the noise, where losses are computed."""
_ROUNDING = 2.0**-53
_NEWTON_STEPS = 60


@dataclass(frozen=True)
class BinomialMixturePair(LossPair):
    """P = sum over k of Binomial(K, q)(k) N(k m, 1) and Q = N(0, 1), or the other way about.

    Attributes:
      shift: m, what one example changes the sum by, in standard deviations of the noise.
      probability: q, with which each example is drawn; below 1.
      examples: K.
      direction: `remove` for this order. In `add`, u is minus the outcome, so that the loss rises with it.
    """

    shift: float
    probability: float
    examples: int
    direction: Direction

    @cached_property
    def _terms(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Slopes and offsets of the logarithms of the ratio's terms, and a bound on the size of what those are made
        of."""
        numbers = np.arange(self.examples + 1)
        choose = np.array([math.log(math.comb(self.examples, int(k))) for k in numbers])
        drawn = numbers * math.log(self.probability)
        left = (self.examples - numbers) * math.log1p(-self.probability)
        slopes = numbers * self.shift
        sizes = choose - drawn - left + np.square(slopes) / 2
        return slopes, choose + drawn + left - np.square(slopes) / 2, float(sizes.max())

    @property
    def total_variation(self) -> float:
        return float(self._weights @ scipy.special.erf(self._terms[0] / math.sqrt(8)))

    @property
    def fineness(self) -> float:
        # Within pi times this of the real line all terms have positive real parts, so that their sum has no zeros.
        return min(1.0, 0.5 / (self.shift * self.examples))

    def loss(self, u: np.ndarray) -> np.ndarray:
        return self._log_ratio(u) if self.direction == "remove" else -self._log_ratio(-u)

    def outcome(self, loss: np.ndarray) -> np.ndarray:
        return self._at_log_ratio(loss) if self.direction == "remove" else -self._at_log_ratio(-loss)

    def log_density(self, u: np.ndarray) -> np.ndarray:
        return -np.square(u) / 2 + (self._log_ratio(u) if self.direction == "remove" else 0.0)

    def below(self, u: float) -> float:
        return float(scipy.special.ndtr(u)) if self.direction == "add" else self._mixed(u, 1.0)

    def above(self, u: float) -> tuple[float, float]:
        noise = float(scipy.special.ndtr(-u))
        return (self._mixed(u, -1.0), noise) if self.direction == "remove" else (noise, self._mixed(-u, 1.0))

    def range(self, tail: float) -> tuple[float, float]:
        far = -float(scipy.special.ndtri(tail))
        if self.direction == "add":
            return -far, far
        # Each of the parts has a share of the tail above; one whose weight is no more has it wherever it is.
        shares = np.minimum(tail / len(self._weights) / np.maximum(self._weights, 1e-300), 1.0)
        return -far, float(np.max(self._terms[0] - scipy.special.ndtri(shares)))

    def rounding(self, begin: float, end: float) -> float:
        slopes, _, size = self._terms
        # Each part of a term is rounded four times at most, shift as a float among it; each term of the sum once.
        reach = float(slopes[-1]) * max(abs(begin), abs(end))
        return 8 * _ROUNDING * (1 + self.examples + size + reach)

    @cached_property
    def _weights(self) -> np.ndarray:
        slopes, offsets, _ = self._terms
        return np.exp(offsets + np.square(slopes) / 2)

    def _mixed(self, u: float, side: float) -> float:
        """Compute the mixture's mass below an outcome, or above it where `side` is -1."""
        return float(np.sum(self._weights * scipy.special.ndtr(side * (u - self._terms[0]))))

    def _log_ratio(self, u: np.ndarray) -> np.ndarray:
        return self._log_ratio_and_slope(np.asarray(u, np.float64))[0]

    def _log_ratio_and_slope(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slopes, offsets, _ = self._terms
        total, mean, top = np.zeros_like(u), np.zeros_like(u), np.full_like(u, -np.inf)
        for slope, offset in zip(slopes, offsets, strict=True):
            np.maximum(top, offset + slope * u, out=top)
        for slope, offset in zip(slopes, offsets, strict=True):
            part = np.exp(offset + slope * u - top)
            total += part
            mean += slope * part
        return top + np.log(total), mean / total

    def _at_log_ratio(self, value: np.ndarray) -> np.ndarray:
        """Undo `_log_ratio`, which is convex and rises, so that Newton's method comes down from any larger outcome."""
        slopes, offsets, _ = self._terms
        found = np.full(np.shape(value), -np.inf)
        real = value > offsets[0] + 1e-12 * (1 + abs(offsets[0]))
        wanted = value[real]
        u = np.full_like(wanted, np.inf)
        for slope, offset in zip(slopes[1:], offsets[1:], strict=True):
            np.minimum(u, (wanted - offset) / slope, out=u)
        for _ in range(_NEWTON_STEPS):
            ratio, slope = self._log_ratio_and_slope(u)
            step = np.maximum(ratio - wanted, 0.0) / np.maximum(slope, 1e-300)
            u = u - step
            if not np.any(step > 1e-12 * (1 + np.abs(u))):
                break
        found[real] = u
        return found
