"""Fitting parametric laws: Huber loss of the logarithms, many starts, L-BFGS; intervals by bootstrap over runs.

The objective is that of Hoffmann et al. 2022 (appendix D.3): the Huber loss of log prediction - log measurement,
minimised by L-BFGS from many starts, of which the best is kept.
"""

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedlm.models.errors import ConfigurationError
from fedlm.simulations.laws.forms.fitted_form import FittedForm, Interval
from fedlm.simulations.laws.forms.form import Coefficient, Form
from fedlm.simulations.laws.forms.problem import Minimum, Problem, make_problem
from fedlm.simulations.laws.forms.rows import RUN, numbered
from fedlm.simulations.laws.measuring.measurements import Measurements

_AGREEMENT = 1e-3


def own_rows(form: Form, measurements: Measurements) -> Measurements:
    """Keep the rows that a form is fitted to. Raises ConfigurationError where they are fewer than the coefficients."""
    kept = measurements.where(form.rows(measurements))
    points = np.unique(np.stack(list(form.variables(kept).values())), axis=1).shape[1]
    if points < len(form.coefficients):
        raise ConfigurationError(
            f"{form.name}: found {points} different points among the rows that it is fitted to, expected at least "
            f"{len(form.coefficients)}, one for each coefficient. Measure a larger grid."
        )
    return kept


def fit_form(
    form: Form,
    measurements: Measurements,
    *,
    seed: int = 0,
    starts: int = 32,
    draws: int = 100,
    level: float = 0.95,
) -> FittedForm:
    """Fit a form to its rows of measurements.

    Args:
      form: the law.
      measurements: all that was measured; `form.rows` chooses among them.
      seed: of the starts and the bootstrap.
      starts: how many searches.
      draws: of the bootstrap; 0 for no intervals, and then nothing is known of what is identified but by design.
      level: of the intervals.

    Returns:
      coefficients with intervals, and which of them these data identify.

    Raises:
      ConfigurationError: the measurements have too few rows of those that the form is fitted to.
    """
    kept = own_rows(form, measurements)
    problem = make_problem(form, kept)
    runs = numbered(kept, RUN)
    random = np.random.default_rng(seed)
    # The matrices of L-BFGS are so small that threads only wait for each other.
    with threadpool_limits(1, "blas"):
        minima = search(problem, random, starts)
        drawn = np.array([_redrawn(problem, minima, runs, random).coordinates for _ in range(draws)])
    best = minima[0]
    values = problem.values(best.coordinates)
    reasons = doubts(problem, best.coordinates, drawn, level)
    errors = np.log(form.predict(values, problem.data)) - problem.log_target
    return FittedForm(
        form=form.name,
        coefficients=values,
        intervals=_intervals(problem, drawn, level),
        level=level,
        reasons=reasons,
        rows=len(kept),
        runs=int(runs.max()) + 1,
        root_mean_square_log_error=float(np.sqrt(np.mean(errors**2))),
        starts=starts,
        agreeing_starts=sum(m.objective <= best.objective * (1 + _AGREEMENT) + 1e-12 for m in minima),
    )


def search(problem: Problem, random: np.random.Generator, starts: int) -> list[Minimum]:
    """Search from some random places: what was found, the best first."""
    weights = np.full(len(problem.log_target), 1 / len(problem.log_target))
    return sorted((problem.minimise(problem.start(random), weights) for _ in range(starts)), key=_objective_of)


def _objective_of(minimum: Minimum) -> float:
    return minimum.objective


def _redrawn(problem: Problem, minima: list[Minimum], runs: NDArray[np.int64], random: np.random.Generator) -> Minimum:
    """Fit again with random weights of the runs: the Bayesian bootstrap (Rubin 1981), in which no run drops out.

    Searches begin at the best minimum and at one of the others.
    """
    weights = random.exponential(size=runs.max() + 1)[runs]
    weights /= weights.sum()
    begin = [minima[0], minima[int(random.integers(len(minima)))]]
    return min((problem.minimise(one.coordinates, weights) for one in begin), key=_objective_of)


def _intervals(problem: Problem, drawn: NDArray[np.float64], level: float) -> dict[str, Interval]:
    if not len(drawn):
        return {}
    values = [problem.values(coordinates) for coordinates in drawn]
    tails = [(1 - level) / 2, (1 + level) / 2]
    return {
        name: Interval(*map(float, np.quantile([one[name] for one in values], tails))) for name in problem.form.names
    }


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
    found: dict[str, str] = {}
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
