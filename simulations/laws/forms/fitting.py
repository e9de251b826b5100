"""Fitting parametric laws: Huber loss of the logarithms, many starts, L-BFGS; intervals by bootstrap over runs.

The objective is that of Hoffmann et al. 2022 (appendix D.3): the Huber loss of log prediction - log measurement,
minimised by L-BFGS from many starts, of which the best is kept.
"""

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedlm.models.errors import ConfigurationError
from fedlm.simulations.laws.forms.fitted_form import FittedForm, Interval
from fedlm.simulations.laws.forms.form import Form
from fedlm.simulations.laws.forms.identification import doubts
from fedlm.simulations.laws.forms.problem import HUBER_DELTA, Minimum, Problem, make_problem
from fedlm.simulations.laws.forms.rows import RUN, numbered
from fedlm.simulations.laws.measurements import Measurements

_AGREEMENT = 1e-3


def own_rows(form: Form, measurements: Measurements) -> Measurements:
    """Keep the rows that a form is fitted to.

    Raises ConfigurationError where they are fewer than the coefficients, or of several cells and the law is of one.
    """
    kept = measurements.where(form.rows(measurements))
    for column in form.same:
        if len(found := np.unique(getattr(kept, column))) > 1:
            raise ConfigurationError(
                f"{form.name}: found {len(found)} values of {column}, expected one: the law is of one cell. Fit it "
                "to the rows of each cell by themselves."
            )
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
    delta: float = HUBER_DELTA,
) -> FittedForm:
    """Fit a form to its rows of measurements.

    Args:
      form: the law.
      measurements: all that was measured; `form.rows` chooses among them.
      seed: of the starts and the bootstrap.
      starts: how many searches.
      draws: of the bootstrap; 0 for no intervals, and then nothing is known of what is identified but by design.
      level: of the intervals.
      delta: of the Huber loss.

    Returns:
      coefficients with intervals, and which of them these data identify.

    Raises:
      ConfigurationError: the measurements have too few rows of those that the form is fitted to.
    """
    kept = own_rows(form, measurements)
    problem = make_problem(form, kept, delta)
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
