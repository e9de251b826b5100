"""Kaplan et al.'s law of the least compute: what the best loss would cost at batches far below the critical one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms.form import Form, exponent, reference
from fedlm.simulations.laws.forms.rows import (
    best_rate,
    critical_batch,
    least_compute,
    lowest_so_far,
    noiseless,
    settled,
)
from fedlm.simulations.laws.measurements import Measurements


def _variables(measurements: Measurements) -> dict[str, NDArray[np.float64]]:
    """Return C_min = `least_compute` = C / (1 + B / B_crit) in PF-days, of non-embedding parameters.

    B_crit is the row's gradient noise scale, measured in training, in tokens.
    """
    return {"least_compute": least_compute(measurements)}


def _rows(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the blocks whose loss no block of as little C_min has: those without noise, at the cell's best rate.

    Blocks of the first eighth of a schedule are left out, and those in which the noise scale was not measured.
    """
    kept = noiseless(measurements) & settled(measurements) & best_rate(measurements)
    return lowest_so_far(least_compute(measurements), measurements.loss, kept & (critical_batch(measurements) > 0))


def _loss(values: Any, data: Any) -> Any:
    return (values["C_c_min"] / data["least_compute"]) ** values["alpha_C_min"]


FORM = Form(
    name="kaplan_least_compute",
    citation="Kaplan et al. 2020, arXiv 2001.08361, equations 1.3 and 5.5",
    equation=_loss,
    text="L(C_min) = (C_c_min / C_min)^alpha_C_min",
    coefficients=(
        reference("C_c_min", "least_compute", "PF-days at a loss of 1", "alpha_C_min"),
        exponent("alpha_C_min", "least_compute"),
    ),
    variables=_variables,
    rows=_rows,
)
