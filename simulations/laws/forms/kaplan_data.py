"""Kaplan et al.'s law of data: the loss of large models, each token of the data seen once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms.form import Form, exponent, reference
from fedlm.simulations.laws.forms.rows import best_rate, final, noiseless, tokens
from fedlm.simulations.laws.measurements import Measurements


def _variables(measurements: Measurements) -> dict[str, NDArray[np.float64]]:
    """Return D = `tokens` (batch times length times steps): in one pass the data set's size is what was trained on."""
    return {"tokens": tokens(measurements)}


def _rows(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the last blocks of the largest model's runs, without noise, at the cell's best learning rate.

    The paper trains one large model on data sets of many sizes until the test loss rises.
    """
    of_largest = measurements.parameters == measurements.parameters.max(initial=0)
    return noiseless(measurements) & final(measurements) & of_largest & best_rate(measurements)


def _loss(values: Any, data: Any) -> Any:
    return (values["D_c"] / data["tokens"]) ** values["alpha_D"]


FORM = Form(
    name="kaplan_data",
    citation="Kaplan et al. 2020, arXiv 2001.08361, equation 1.2",
    equation=_loss,
    text="L(D) = (D_c / D)^alpha_D",
    coefficients=(reference("D_c", "tokens", "tokens at a loss of 1", "alpha_D"), exponent("alpha_D", "tokens")),
    variables=_variables,
    rows=_rows,
)
