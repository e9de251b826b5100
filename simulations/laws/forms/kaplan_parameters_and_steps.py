"""Kaplan et al.'s law of learning curves: the loss by model size and the least number of steps."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms.form import Form, exponent, reference
from fedlm.simulations.laws.forms.rows import (
    best_rate,
    critical_batch,
    least_steps,
    noiseless,
    non_embedding_parameters,
    settled,
)
from fedlm.simulations.laws.measurements import Measurements


def _variables(measurements: Measurements) -> dict[str, NDArray[np.float64]]:
    """Return N = `non_embedding_parameters` and S_min = `least_steps` = S / (1 + B_crit / B).

    B_crit is the row's gradient noise scale, measured in training; it and the batch are in tokens.
    """
    return {
        "non_embedding_parameters": non_embedding_parameters(measurements),
        "least_steps": least_steps(measurements),
    }


def _rows(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the blocks without noise, at the cell's best learning rate, after the first eighth of the schedule.

    Those in which the noise scale was not measured are left out.
    """
    kept = noiseless(measurements) & settled(measurements) & best_rate(measurements)
    return kept & (critical_batch(measurements) > 0)


def _loss(values: Any, data: Any) -> Any:
    size = (values["N_c"] / data["non_embedding_parameters"]) ** values["alpha_N"]
    return size + (values["S_c"] / data["least_steps"]) ** values["alpha_S"]


FORM = Form(
    name="kaplan_parameters_and_steps",
    citation="Kaplan et al. 2020, arXiv 2001.08361, equation 1.6",
    equation=_loss,
    text="L(N, S_min) = (N_c / N)^alpha_N + (S_c / S_min)^alpha_S",
    coefficients=(
        reference("N_c", "non_embedding_parameters", "parameters at a loss of 1, steps being endless", "alpha_N"),
        exponent("alpha_N", "non_embedding_parameters"),
        reference("S_c", "least_steps", "steps at which their part of the loss is 1", "alpha_S"),
        exponent("alpha_S", "least_steps"),
    ),
    variables=_variables,
    rows=_rows,
)
