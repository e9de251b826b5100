"""Several patterns of steps at once, in each of which a person takes part with a min-separation: their weights, and
draws of them (`docs/design/accounting.md`, statement 34)."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class JointPatterns:
    """Patterns together weigh the product of their probabilities, of exp(gain) for each part of each, and of exp(inner
    product) for each pair of them, by how far apart their parts are.

    Attributes:
      steps: T.
      separation: b.
      probability: p, in a step, of who did not take part in the b - 1 before.
      together: how many patterns there are.
      gain: of a part.
      overlaps: inner products of two parts, by their distance from 0 on; 0 beyond these.
    """

    steps: int
    separation: int
    probability: float
    together: int
    gain: float
    overlaps: tuple[float, ...]

    def log_sum(self) -> float:
        """Sum the weights of all patterns: a logarithm."""
        *_, (weights, log_scale) = self._ahead()
        return math.log(float((weights * self._start()).sum())) + log_scale

    def draw(self, rows: int, rng: np.random.Generator) -> np.ndarray:
        """Draw patterns by their weight, and count how many of them take part in each step: float64 [T, rows]."""
        ahead = [weights.ravel() for weights, _ in self._ahead()][::-1]
        start = (self._start() * ahead[0].reshape(self._shape)).ravel()
        places = rng.choice(len(start), rows, p=start / start.sum())
        waits = np.array(np.unravel_index(places, self._shape))
        counts = np.zeros((self.steps, rows))
        for step in range(self.steps):
            takes = self._takes(waits, step, ahead[step + 1], rng)
            counts[step] = takes.sum(axis=0)
            waits = np.where(takes, self.separation - 1, np.maximum(waits - 1, 0))
        return counts

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.separation,) * self.together

    def _start(self) -> np.ndarray:
        """The probability of how many steps each has to wait at first: float64 [b, ...]."""
        one = np.where(np.arange(self.separation) > 0, self.probability, 1.0)
        one /= 1 + (self.separation - 1) * self.probability
        found = np.ones(())
        for _ in range(self.together):
            found = np.multiply.outer(found, one)
        return found

    def _ahead(self) -> Iterator[tuple[np.ndarray, float]]:
        """Sum the weights of what follows, from the last step back, by how many steps each has to wait: float64 [b,
        ...], and the logarithm of what it is to be multiplied by."""
        weights, log_scale = np.ones(self._shape), 0.0
        yield weights, log_scale
        for step in reversed(range(self.steps)):
            weights = self._one_step_back(weights, step)
            most = float(weights.max())
            weights, log_scale = weights / most, log_scale + math.log(most)
            yield weights, log_scale

    def _one_step_back(self, after: np.ndarray, step: int) -> np.ndarray:
        waits, found = np.arange(self.separation), np.zeros_like(after)
        stays = np.where(waits > 0, 1.0, 1 - self.probability)
        for those in self._subsets():
            kept, part = stays * np.exp(len(those) * self._seen(step)), after
            for axis in range(self.together):
                if axis in those:
                    part = part.take([self.separation - 1], axis)
                else:
                    along = [-1 if one == axis else 1 for one in range(self.together)]
                    part = part.take(np.maximum(waits - 1, 0), axis) * kept.reshape(along)
            place = tuple(slice(0, 1) if axis in those else slice(None) for axis in range(self.together))
            found[place] += math.exp(self._log_weight(len(those))) * part
        return found

    def _takes(self, waits: np.ndarray, step: int, after: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw which of the patterns take part in a step: bool [together, rows]."""
        subsets, free = self._subsets(), waits == 0
        places = np.array([self.separation ** (self.together - 1 - axis) for axis in range(self.together)])
        here, seen = places @ np.maximum(waits - 1, 0), np.exp(self._seen(step)[waits].sum(axis=0))
        weights, number_free = np.zeros((len(subsets), waits.shape[1])), free.sum(axis=0)
        stays = (1 - self.probability) ** np.arange(self.together + 1)
        for weight, those in zip(weights, subsets, strict=True):
            rows, number = np.flatnonzero(free[list(those)].all(axis=0)), len(those)
            next_place = here[rows] + (self.separation - 1) * places[list(those)].sum()
            weight[rows] = stays[number_free[rows] - number] * seen[rows] ** number * after[next_place]
            weight *= math.exp(self._log_weight(number))
        sums = weights.cumsum(axis=0)
        chosen = (rng.random(waits.shape[1]) * sums[-1] >= sums).sum(axis=0)
        members = np.array([[axis in those for those in subsets] for axis in range(self.together)])
        return members[:, chosen]

    def _subsets(self) -> list[tuple[int, ...]]:
        axes = range(self.together)
        return [those for number in range(self.together + 1) for those in itertools.combinations(axes, number)]

    def _log_weight(self, number: int) -> float:
        """That so many of the patterns take part in one step."""
        pairs = number * (number - 1) / 2
        return number * (math.log(self.probability) + self.gain) + pairs * self.overlaps[0]

    def _seen(self, step: int) -> np.ndarray:
        """The inner product of a part in a step with the last of another pattern, by how long that has to wait: float64
        [b]. What lies before the first step counts for nothing."""
        waits, overlaps = np.arange(self.separation), np.zeros(self.separation + 1)
        overlaps[: len(self.overlaps)] = self.overlaps
        return np.where(self.separation - waits <= step, overlaps[self.separation - waits], 0.0)
