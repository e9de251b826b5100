"""Powers of Fourier transforms of masses, with bounds on their errors.

A transform of n numbers errs by at most `_TRANSFORM_ERROR log2(n)` units in the last place of the square root of its
sum of squares, in the mean square (Higham 2002, "Accuracy and stability of numerical algorithms", theorem 24.2), and a
product of powers by the sum of its factors' errors.

With B the transform of most of the masses and J that of the others, the jumps, `(B + J)^n - B^n` is the transform of
sums with at least one jump. It is computed as such, so that its errors are relative to these sums alone. Statements are
those of `docs/design/accounting.md`.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

UNIT = 2.0**-53
_TRANSFORM_ERROR = 8.0  # in units of rounding, for each doubling of the length (statement 13)


class Transform(NamedTuple):
    """A transform of masses.

    Attributes:
      values: complex128 [points / 2 + 1].
      error: bound on the root of the mean square of their errors.
    """

    values: np.ndarray
    error: float

    @property
    def size(self) -> np.ndarray:
        """Bound the absolute values, float64 [points / 2 + 1]: each may have all of the error."""
        return np.abs(self.values) + self.error * math.sqrt(2 * len(self.values))


class Factor(NamedTuple):
    """How often a loss is added, and its masses.

    Attributes:
      times: how often.
      jumps: the masses above the jump.
      others: the masses up to it; None where all are jumps.
    """

    times: int
    jumps: Transform
    others: Transform | None


def transform(places: np.ndarray, masses: np.ndarray, points: int) -> Transform:
    """Transform masses at places of a circle."""
    masses = np.bincount(places, masses, points)
    error = _TRANSFORM_ERROR * math.log2(points) * UNIT * math.sqrt(float(np.sum(np.square(masses))))
    return Transform(scipy.fft.rfft(masses), error)


def masses_of_sums(factors: Sequence[Factor], points: int) -> tuple[np.ndarray, float]:
    """Compute the masses of sums with a jump on the circle, and a bound on the root of their errors' sum of squares."""
    powers = [_powers(factor) for factor in factors]
    jumped, _ = functools.reduce(_product, powers)
    masses = scipy.fft.irfft(jumped, points)
    error = 2 * _TRANSFORM_ERROR * math.log2(points) * UNIT * math.sqrt(float(np.sum(np.square(masses))))
    return masses, _error(factors) + error


def _error(factors: Sequence[Factor]) -> float:
    # The root of the sum of squares of all points' errors is that of frequencies, but for a factor (Parseval). What is
    # known of those of one transform is this root too, so that each of them may have all of it.
    jumps = [factor.jumps.size for factor in factors]
    sizes = [
        size if factor.others is None else size + factor.others.size
        for size, factor in zip(jumps, factors, strict=True)
    ]
    product = np.exp(sum(factor.times * np.log(size) for factor, size in zip(factors, sizes, strict=True)))
    releases = sum(factor.times for factor in factors)
    product *= 1 + 1e-6 + 8 * UNIT * releases
    all_jump = any(factor.others is None for factor in factors)
    jumped = 1.0
    if not all_jump:
        jumped = sum(factor.times * one / size for factor, one, size in zip(factors, jumps, sizes, strict=True))
        jumped = np.minimum(jumped, 1.0)
    # Statement 14 has these and `product`.
    roundings = (8 if all_jump else 16) * UNIT * releases
    error = roundings * math.sqrt(2 * float(np.mean(np.square(product * jumped))))
    for factor, size in zip(factors, sizes, strict=True):
        left = product / size
        error += factor.times * factor.jumps.error * float(left.max())
        if factor.others is not None:
            error += factor.times * factor.others.error * float((left * jumped).max())
    return error


_Pair = tuple[np.ndarray, np.ndarray | None]
"""The transform of what has a jump, and of what has none, where there is such."""


def _powers(factor: Factor) -> _Pair:
    once = (factor.jumps.values, None if factor.others is None else factor.others.values)
    found = once
    for bit in f"{factor.times:b}"[1:]:
        found = _product(found, found)
        if bit == "1":
            found = _product(found, once)
    return found


def _product(one: _Pair, other: _Pair) -> _Pair:
    (jumped, rest), (more, kept) = one, other
    if rest is None and kept is None:
        return jumped * more, None
    if rest is None or kept is None:
        return jumped * (more if kept is None else more + kept) + (0 if rest is None else rest * more), None
    return rest * more + jumped * (more + kept), rest * kept
