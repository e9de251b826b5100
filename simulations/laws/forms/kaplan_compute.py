"""Kaplan et al.'s law of compute at the batch size that was trained with: the best loss that some model has reached."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms.form import Form, exponent, reference
from fedlm.simulations.laws.forms.rows import best_rate, compute, lowest_so_far, noiseless, settled
from fedlm.simulations.laws.measurements import Measurements


def _variables(measurements: Measurements) -> dict[str, NDArray[np.float64]]:
    """Return C = `compute`, 6 times non-embedding parameters times tokens, in PF-days."""
    return {"compute": compute(measurements)}


def _rows(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the blocks whose loss no block of as little compute has: those without noise, at the cell's best rate.

    Blocks of the first eighth of a schedule are left out. A minimum over noisy losses is somewhat too low.
    """
    kept = noiseless(measurements) & settled(measurements) & best_rate(measurements)
    return lowest_so_far(compute(measurements), measurements.loss, kept)


def _loss(values: Any, data: Any) -> Any:
    return (values["C_c"] / data["compute"]) ** values["alpha_C"]


FORM = Form(
    name="kaplan_compute",
    citation="Kaplan et al. 2020, arXiv 2001.08361, section 3.3",
    equation=_loss,
    text="L(C) = (C_c / C)^alpha_C",
    coefficients=(reference("C_c", "compute", "PF-days at a loss of 1", "alpha_C"), exponent("alpha_C", "compute")),
    variables=_variables,
    rows=_rows,
)
