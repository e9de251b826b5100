"""Which coefficients of a law the data can tell, and a plain word where they cannot."""

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms.form import Coefficient
from fedlm.simulations.laws.forms.problem import Problem

LEAST_VALUES = 3
"""How many different values of a variable tell a power law from a constant and a slope."""
_NEGLIGIBLE = 1e-4  # of the target: a term that is smaller is not there.
_EDGE = 1e-3


def doubts(
    problem: Problem, coordinates: NDArray[np.float64], drawn: NDArray[np.float64], level: float
) -> dict[str, str]:
    """Say why coefficients are not identified, by name; none where they are.

    Args:
      problem: the law and its data.
      coordinates: float64 [coefficients], where the fit ended.
      drawn: float64 [draws, coefficients], where it ended for bootstrapped runs; of no draws where there was none.
      level: of the intervals.
    """
    coefficients = problem.form.coefficients
    found = problem.form.doubts(problem.values(coordinates), problem.data)
    for i, coefficient in enumerate(coefficients):
        reason = _too_little_spread(problem, coefficient) or _at_edge(problem, i, coordinates[i])
        if not reason and len(drawn):
            reason = _too_wide(coefficient, drawn[:, i], level)
        if reason and coefficient.name not in found:
            found[coefficient.name] = reason
    for coefficient in coefficients:
        other = coefficient.stands_with
        if other and coefficient.kind == "amplitude" and coefficient.name in found and other not in found:
            found[other] = f"its term is not identified: {found[coefficient.name]}"
    for _ in coefficients:
        for coefficient in coefficients:
            if (other := coefficient.stands_with) in found and coefficient.name not in found:
                found[coefficient.name] = f"it means nothing without {other}, which is not identified"
    return found


def _too_little_spread(problem: Problem, coefficient: Coefficient) -> str | None:
    if coefficient.variable is None:
        return None
    column = problem.data[coefficient.variable]
    name = coefficient.variable.replace("_", " ")
    values = len(np.unique(column))
    if values < LEAST_VALUES:
        return f"the data have {values} {'value' if values == 1 else 'values'} of {name}, and {LEAST_VALUES} are needed"
    spread = column.max() / column.min()
    if 0 < spread < problem.form.least_spread:
        return f"{name} spans a factor of {spread:.3g} only, and {problem.form.least_spread:g} is needed"
    return None


def _at_edge(problem: Problem, index: int, coordinate: float) -> str | None:
    low, high = problem.bounds[index]
    coefficient = problem.form.coefficients[index]
    if coefficient.kind == "amplitude" and coordinate < np.log(_NEGLIGIBLE):
        return "its term vanishes"
    if low + _EDGE < coordinate < high - _EDGE:
        return None
    return f"the fit ended at the {'least' if coordinate <= low + _EDGE else 'largest'} value that is searched"


def _too_wide(coefficient: Coefficient, drawn: NDArray[np.float64], level: float) -> str | None:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    if high - low <= coefficient.widest:
        return None
    if not coefficient.positive:
        return f"its {level:.0%} interval is {high - low:.3g} wide, more than {coefficient.widest:.3g}"
    spread, most = np.exp(min(high - low, 700)), np.exp(coefficient.widest)
    return f"its {level:.0%} interval spans a factor of {spread:.3g}, more than {most:.3g}"
