"""How noisy the running sum is under each mechanism: the theory that the mechanisms are held to, and compared by."""

import numpy as np

from fedlm.fl_core.privacy.mechanisms.toeplitz_sensitivity import strategy_column
from fedlm.fl_core.privacy.plan import TOEPLITZ, TREES, PrivacyPlan


def prefix_variance(plan: PrivacyPlan) -> np.ndarray:
    """Compute the variance of the noise in the sum of the first t rounds, for every t.

    Args:
      plan: of a run.

    Returns:
      float64 [rounds], in units of the variance of one draw of noise.
    """
    if plan.mechanism in TREES:
        return _of_trees(plan)
    if plan.mechanism in TOEPLITZ:
        return np.cumsum(np.cumsum(_inverse_column(strategy_column(plan, plan.rounds))) ** 2)
    return np.arange(1, plan.rounds + 1, dtype=np.float64)


def _of_trees(plan: PrivacyPlan) -> np.ndarray:
    levels = np.arange(plan.rounds.bit_length() + 1)
    of_node = 1 / (2 - 2.0**-levels) if plan.mechanism == "tree_honaker" else np.ones(len(levels))
    variance, kept = [], 0.0
    trees = plan.segments(0, plan.rounds)
    for number, size in enumerate(trees):
        leaves = np.arange(1, size + 1)
        inside = (leaves[:, None] >> levels & 1) @ of_node
        if plan.complete_trees and number + 1 < len(trees):
            inside[-1] = of_node[(size - 1).bit_length()]
        variance.append(kept + inside)
        kept += inside[-1]
    return np.concatenate(variance)


def _inverse_column(column: np.ndarray) -> np.ndarray:
    """The first column of the inverse of a lower-triangular Toeplitz matrix."""
    inverse = np.zeros(len(column))
    inverse[0] = 1 / column[0]
    reversed_column = column[::-1].copy()
    for place in range(1, len(column)):
        inverse[place] = -(reversed_column[-place - 1 : -1] @ inverse[:place]) / column[0]
    return inverse
