"""How both sides time a matrix product."""

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.simulation.peers.protocol import RoundAnswer

COPIES = 8
"""Products of one call, of factors of their own, so that the call itself costs little beside them."""
SECONDS = 0.2
"""How long a product is repeated."""


def time_product(
    variant: str, array: Callable[[np.ndarray], Any], multiply: Callable, wait: Callable[[Any], Any]
) -> RoundAnswer:
    """Time a product.

    Args:
      variant: JSON of the formula and the factors' shapes.
      array: makes an array of a library.
      multiply: takes the formula, left factors and right factors.
      wait: for a result.

    Returns:
      The seconds of one product, the least of all calls.
    """
    formula, *shapes = json.loads(variant)
    rng = np.random.default_rng(0)
    lefts, rights = ([array(rng.standard_normal(shape, np.float32)) for _ in range(COPIES)] for shape in shapes)
    wait(multiply(formula, lefts, rights))
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        started = time.perf_counter()
        wait(multiply(formula, lefts, rights))
        best = min(best, time.perf_counter() - started)
    return RoundAnswer(best / COPIES, COPIES, None)
