"""Kaplan et al.'s law of model size: the loss of models trained until it hardly falls, on enough data."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms.form import Form, exponent, reference
from fedlm.simulations.laws.forms.rows import best_rate, final, longest, noiseless, non_embedding_parameters
from fedlm.simulations.laws.measurements import Measurements


def _variables(measurements: Measurements) -> dict[str, NDArray[np.float64]]:
    """Return N = `non_embedding_parameters`, which is what the paper counts."""
    return {"non_embedding_parameters": non_embedding_parameters(measurements)}


def _rows(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the last blocks of each model's longest runs, without noise, at the cell's best learning rate.

    The paper trains to near convergence. Runs that stop before make the exponent too small.
    """
    return noiseless(measurements) & final(measurements) & longest(measurements) & best_rate(measurements)


def _loss(values: Any, data: Any) -> Any:
    return (values["N_c"] / data["non_embedding_parameters"]) ** values["alpha_N"]


FORM = Form(
    name="kaplan_parameters",
    citation="Kaplan et al. 2020, arXiv 2001.08361, equation 1.1",
    equation=_loss,
    text="L(N) = (N_c / N)^alpha_N",
    coefficients=(
        reference("N_c", "non_embedding_parameters", "parameters at a loss of 1", "alpha_N"),
        exponent("alpha_N", "non_embedding_parameters"),
    ),
    variables=_variables,
    rows=_rows,
)
