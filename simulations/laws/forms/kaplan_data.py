"""Kaplan et al.'s law of data: the loss of large models on data sets of several sizes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms.form import Form, exponent, reference
from fedlm.simulations.laws.forms.rows import data_tokens, stopped_early, unseen_loss
from fedlm.simulations.laws.measurements import Measurements


def _variables(measurements: Measurements) -> dict[str, NDArray[np.float64]]:
    """Return D = `data_tokens`, of the data set, or trained on where each came once."""
    return {"data_tokens": data_tokens(measurements)}


def _rows(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the blocks at which early stopping ends the largest model's runs without noise, at each cell's best rate.

    The paper trains one large model on data sets of many sizes until the test loss rises.
    """
    return stopped_early(measurements) & (measurements.parameters == measurements.parameters.max(initial=0))


def _loss(values: Any, data: Any) -> Any:
    return (values["D_c"] / data["data_tokens"]) ** values["alpha_D"]


FORM = Form(
    name="kaplan_data",
    citation="Kaplan et al. 2020, arXiv 2001.08361, equation 1.2",
    equation=_loss,
    text="L(D) = (D_c / D)^alpha_D",
    coefficients=(
        reference("D_c", "data_tokens", "tokens at a loss of 1", "alpha_D"),
        exponent("alpha_D", "data_tokens"),
    ),
    variables=_variables,
    rows=_rows,
    target=unseen_loss,
)
