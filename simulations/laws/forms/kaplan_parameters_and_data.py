"""Kaplan et al.'s law of model size and data together, from which overfitting follows."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms.form import Form, exponent, reference
from fedlm.simulations.laws.forms.rows import data_tokens, non_embedding_parameters, stopped_early, unseen_loss
from fedlm.simulations.laws.measurements import Measurements


def _variables(measurements: Measurements) -> dict[str, NDArray[np.float64]]:
    """Return N = `non_embedding_parameters` and D = `data_tokens`, of the data set, or trained on if each came once."""
    return {
        "non_embedding_parameters": non_embedding_parameters(measurements),
        "data_tokens": data_tokens(measurements),
    }


def _rows(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the blocks at which early stopping ends the runs without noise, at the cell's best learning rate."""
    return stopped_early(measurements)


def _loss(values: Any, data: Any) -> Any:
    size = (values["N_c"] / data["non_embedding_parameters"]) ** (values["alpha_N"] / values["alpha_D"])
    return (size + values["D_c"] / data["data_tokens"]) ** values["alpha_D"]


FORM = Form(
    name="kaplan_parameters_and_data",
    citation="Kaplan et al. 2020, arXiv 2001.08361, equation 1.5",
    equation=_loss,
    text="L(N, D) = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D",
    coefficients=(
        reference("N_c", "non_embedding_parameters", "parameters at a loss of 1, data being endless", "alpha_N"),
        dataclasses.replace(exponent("alpha_N", "non_embedding_parameters"), stands_with="alpha_D"),
        reference("D_c", "data_tokens", "tokens at a loss of 1, models being endless", "alpha_D"),
        exponent("alpha_D", "data_tokens"),
    ),
    variables=_variables,
    rows=_rows,
    target=unseen_loss,
)
