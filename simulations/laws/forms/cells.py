"""Laws of one cell, such as those of steps and of the learning rate, fitted to each cell of a grid by itself."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedlm.models.errors import ConfigurationError
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.forms.fitting import fit_form
from fedlm.simulations.laws.forms.form import Form
from fedlm.simulations.laws.forms.rows import numbered
from fedlm.simulations.laws.measurements import Measurements


def fit_cells(
    form: Form, measurements: Measurements, *, seed: int = 0, starts: int = 8, draws: int = 0
) -> Iterator[tuple[NDArray[np.bool_], FittedForm | str]]:
    """Fit a law of one cell to each cell by itself.

    Args:
      form: the law; its cells are the rows that agree in the columns `form.same`.
      measurements: of a grid.
      seed: of each fit.
      starts: searches of each fit.
      draws: of each bootstrap.

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
