"""Every parametric law fitted to a grid at once, with its errors on measurements that the fit has not seen."""

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedlm.models.errors import ConfigurationError
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.forms.fitting import fit_form
from fedlm.simulations.laws.forms.form import Form
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.forms.rows import numbered
from fedlm.simulations.laws.held_out import Predict, held_out_errors
from fedlm.simulations.laws.measurements import Measurements

WHOLE_GRID = tuple(name for name, form in FORMS.items() if not form.same)
"""The laws of several models at once, by name."""


def fit_whole_grid(
    measurements: Measurements, *, seed: int = 0, starts: int = 32, draws: int = 100
) -> Iterator[tuple[str, FittedForm | str]]:
    """Fit the laws of `WHOLE_GRID` one after another, with intervals and held-out errors.

    Args:
      measurements: of a grid.
      seed: of starts and bootstrap.
      starts: searches of a fit.
      draws: of the bootstrap.

    Yields:
      each law's name, and what was fitted, or a sentence that says what the measurements lack for it.
    """
    for name in WHOLE_GRID:
        try:
            yield name, fit_with_held_out_errors(FORMS[name], measurements, seed=seed, starts=starts, draws=draws)
        except ConfigurationError as error:
            yield name, str(error)


def fit_with_held_out_errors(
    form: Form, measurements: Measurements, *, seed: int = 0, starts: int = 32, draws: int = 100
) -> FittedForm:
    """Fit one law as `fit_form` does, and again without some rows to see how well it predicts them."""
    fitted = fit_form(form, measurements, seed=seed, starts=starts, draws=draws)

    def fit(seen: Measurements) -> Predict:
        return fit_form(form, seen, seed=seed, starts=starts, draws=0).predict_rows

    errors = held_out_errors(fit, measurements, form.rows(measurements), target=form.target)
    return dataclasses.replace(fitted, held_out=errors)


def fit_cells(
    form: Form, measurements: Measurements, *, seed: int = 0, starts: int = 8, draws: int = 0
) -> Iterator[tuple[NDArray[np.bool_], FittedForm | str]]:
    """Fit a law of one cell, such as `steps` or `learning_rate`, to each cell by itself.

    Yields:
      the cell's rows, bool [rows], and what was fitted to them, or a sentence that says what they lack.
    """
    cells = numbered(measurements, form.same)
    for cell in range(cells.max(initial=-1) + 1):
        rows = cells == cell
        try:
            yield rows, fit_form(form, measurements.where(rows), seed=seed, starts=starts, draws=draws)
        except ConfigurationError as error:
            yield rows, str(error)
