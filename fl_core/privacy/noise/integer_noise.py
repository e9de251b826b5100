"""Gaussian noise for integers: exact, from the operating system's entropy, and without a floating-point number.

The discrete Gaussian sampler of Canonne, Kamath and Steinke (2020, "The discrete Gaussian for differential privacy",
algorithms 1 to 3) draws on a grid 2^-64 as wide as the integers, and what it draws is rounded to integers. On a grid so
fine a discrete Gaussian and a continuous one that is rounded to it differ by less than 2^-120 in total variation, and
a continuous one added to an integer and rounded is a Gaussian mechanism with something done to its output. So the
privacy of sums with this noise is that of the Gaussian mechanism, whose tails it has.
"""

import secrets
from collections.abc import Callable

RandomBelow = Callable[[int], int]
"""From n to a whole number from 0 to n - 1, each as likely, independent of all others."""

FINENESS = 64
"""Binary digits that are drawn beyond the integers."""


def rounded_gaussian(standard_deviation: int, random_below: RandomBelow = secrets.randbelow) -> int:
    """Draw Gaussian noise of a whole standard deviation of at least 1, rounded to the nearest integer."""
    fine = discrete_gaussian(standard_deviation << FINENESS, random_below)
    return (fine + (1 << FINENESS - 1)) >> FINENESS


def discrete_gaussian(sigma: int, random_below: RandomBelow = secrets.randbelow) -> int:
    """Draw an integer x with probability proportional to exp(-x^2 / (2 sigma^2)), for a whole sigma of at least 1."""
    scale, variance = sigma + 1, sigma * sigma
    while True:
        drawn = _discrete_laplace(scale, random_below)
        if _is_exp((abs(drawn) * scale - variance) ** 2, 2 * variance * scale * scale, random_below):
            return drawn


def _discrete_laplace(scale: int, random_below: RandomBelow) -> int:
    """Draw an integer x with probability proportional to exp(-|x| / scale)."""
    while True:
        low = random_below(scale)
        if not _is_exp(low, scale, random_below):
            continue
        high = 0
        while _is_exp(1, 1, random_below):
            high += 1
        size, negative = low + scale * high, random_below(2)
        if size or not negative:  # zero has one sign
            return -size if negative else size


def _is_exp(numerator: int, denominator: int, random_below: RandomBelow) -> bool:
    """Say yes with probability exp(-numerator / denominator)."""
    whole, rest = divmod(numerator, denominator)
    return all(_is_exp_of_share(1, 1, random_below) for _ in range(whole)) and _is_exp_of_share(
        rest, denominator, random_below
    )


def _is_exp_of_share(numerator: int, denominator: int, random_below: RandomBelow) -> bool:
    """Say yes with probability exp(-numerator / denominator), a share of at most 1."""
    terms = 1
    while random_below(denominator * terms) < numerator:
        terms += 1
    return terms % 2 == 1
