"""Renyi divergences of sums with noise of every client, and epsilon of them.

What one client adds is bounded by its L1 and L2 norm in integers. Noise is independent in each coordinate and client.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.privacy.accounting.accounting_library import accounting_library

ORDERS = np.array([*range(2, 257), 320, 384, 512, 768, 1024, 2048, 4096])
"""Whole numbers above 1, of which the divergence of Skellam noise is known."""
_SPARE = (1e-9, 0.5)


def skellam_divergences(l1: float, l2: float, variance: float, orders: Sequence[float] | NDArray = ORDERS) -> NDArray:
    """Bound the divergences of a sum with Skellam noise (Agarwal, Kairouz and Liu 2021, theorem 3.5).

    Sums of Skellam noise are Skellam noise: only their variance matters.

    Args:
      l1: L1 norm of what one client adds, in integers.
      l2: its L2 norm.
      variance: of the noise in a coordinate of the sum.
      orders: whole numbers above 1.
    """
    orders = np.asarray(orders, np.float64)
    beyond = np.minimum(
        ((2 * orders - 1) * l2**2 + 6 * l1) / (4 * variance**2), np.full_like(orders, 3 * l1 / (2 * variance))
    )
    return np.asarray(orders * l2**2 / (2 * variance) + beyond)


def from_gaussian(clients: int, deviation: float) -> float:
    """Bound how far a coordinate of a sum of discrete Gaussian noise is from discrete Gaussian noise: tau."""
    places = np.arange(1, clients)
    return float(10 * np.sum(np.exp(-2 * (math.pi * deviation) ** 2 * places / (places + 1))))


def discrete_gaussian_divergences(
    sensitivity: tuple[float, float],
    clients: int,
    deviation: float,
    dimension: int,
    *,
    orders: Sequence[float] | NDArray = ORDERS,
) -> NDArray:
    """Bound the divergences of a sum with discrete Gaussian noise (Kairouz, Liu and Steinke 2021, theorem 1).

    Args:
      sensitivity: L1 and L2 norm of what one client adds, in integers.
      clients: m, whose noise is in the sum.
      deviation: standard deviation of one client's noise, `LEAST_DEVIATION` at least.
      dimension: D, coordinates of the sum.
      orders: above 1.
    """
    orders, tau = np.asarray(orders, np.float64), from_gaussian(clients, deviation)
    l1, l2 = (norm / (deviation * math.sqrt(clients)) for norm in sensitivity)
    return np.minimum.reduce(
        [
            orders / 2 * l2**2 + tau * dimension,
            orders / 2 * (l2**2 + 2 * l1 * tau + tau**2 * dimension),
            orders / 2 * (l2 + math.sqrt(dimension) * tau) ** 2,
        ]
    )


def epsilon_of_divergences(divergences: NDArray, delta: float) -> float:
    """Compute epsilon at delta of divergences at `ORDERS`, by the conversion of dp-accounting."""
    rdp = accounting_library().rdp.rdp_privacy_accountant
    return float(rdp.compute_epsilon(ORDERS, np.asarray(divergences), delta)[0])


@dataclass(frozen=True)
class RenyiEvent:
    """Releases of which Renyi divergences are known.

    Attributes:
      divergences: bounds on those of each, at `ORDERS`.
      slack: how far each is in total variation, at most, from what has these divergences.
      count: how many such releases there are.
    """

    divergences: tuple[float, ...]
    slack: float = 0.0
    count: int = 1

    def check(self) -> None:
        """Divergences that were computed need none."""


def epsilon_with_slack(events: Sequence[RenyiEvent], more: float, delta: float) -> float:
    """Compute epsilon at delta of releases together, and of Gaussian ones that have the divergence `more` at order 1.

    What has the slack in total variation gives an event of probability p one of p +- slack: so
    `P <= e^epsilon Q + delta + (1 + e^epsilon) slack`.
    """
    total = more * ORDERS + sum(event.count * np.array(event.divergences) for event in events)
    slack = math.fsum(event.count * event.slack for event in events)
    if not np.all(np.isfinite(total)):
        return math.inf
    for spare in _SPARE if slack else (0.0,):
        found = epsilon_of_divergences(total, delta * (1 - spare))
        if not slack or (found < 700 and (1 + math.exp(found)) * slack <= spare * delta):
            return found
    return math.inf
