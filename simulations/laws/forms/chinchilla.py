"""Chinchilla's form: the loss without noise, of parameters and tokens."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms.form import Form, amplitude, exponent
from fedlm.simulations.laws.forms.rows import best_rate, noiseless, parameters, settled, tokens
from fedlm.simulations.laws.measurements import Measurements


def variables(measurements: Measurements) -> dict[str, NDArray[np.float64]]:
    """Return N = `parameters` (all, as Hoffmann et al. count) and D = `tokens` (batch times length times steps)."""
    return {"parameters": parameters(measurements), "tokens": tokens(measurements)}


def rows(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the rows without noise, at the cell's best learning rate, after the first eighth of the schedule.

    Blocks before the last overestimate what a schedule that ends there would reach, which biases beta (Hoffmann et al.,
    section 3.1); they are kept because grids have few schedule lengths.
    """
    return noiseless(measurements) & settled(measurements) & best_rate(measurements)


def _loss(values: Any, data: Any) -> Any:
    return (
        values["E"]
        + values["A"] / data["parameters"] ** values["alpha"]
        + values["B"] / data["tokens"] ** values["beta"]
    )


FORM = Form(
    name="chinchilla",
    citation="Hoffmann et al. 2022, arXiv 2203.15556, equation 2; in appendix E of McKenna et al. 2025",
    equation=_loss,
    text="L = E + A / N^alpha + B / D^beta",
    coefficients=(
        amplitude("E", "loss that nothing removes"),
        amplitude("A", "size of the term of parameters", "alpha"),
        exponent("alpha", "parameters"),
        amplitude("B", "size of the term of tokens", "beta"),
        exponent("beta", "tokens"),
    ),
    variables=variables,
    rows=rows,
)
