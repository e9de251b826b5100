"""McKenna et al.'s second form: noise saturates, and weighs more in larger models."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from fedlm.simulations.laws.forms import mckenna_l1
from fedlm.simulations.laws.forms.form import Coefficient, Form, exponent
from fedlm.simulations.laws.measurements import Measurements

CENTRE = -8.0
"""Of the sigmoid, in natural logarithms: a ratio of 2^-11.5. The paper writes log; another base is off its grid."""
WIDTH = 1.6


def saturating_noise(noise_batch_ratio: ArrayLike) -> NDArray[np.float64]:
    """Return s' = sigmoid((ln s + 8) / 1.6), from 0 without noise to 1: float64 (equation 2)."""
    with np.errstate(divide="ignore"):
        return np.asarray(expit((np.log(np.asarray(noise_batch_ratio, np.float64)) - CENTRE) / WIDTH))


def variables(measurements: Measurements) -> dict[str, NDArray[np.float64]]:
    """Return M = `parameters` (all), N = `training_examples` (batch times steps) and s' = `saturating_noise`."""
    found = mckenna_l1.variables(measurements)
    return {**found, "saturating_noise": saturating_noise(found.pop("noise_batch_ratio"))}


def _loss(values: Any, data: Any) -> Any:
    return (
        values["E"]
        + values["A"] / data["parameters"] ** values["a"]
        + values["B"] / data["training_examples"] ** values["b"]
        + values["C"] * data["saturating_noise"] ** values["g"] / data["parameters"] ** values["a2"]
    )


FORM = Form(
    name="mckenna_l2",
    citation="McKenna et al. 2025, arXiv 2501.18914, appendix E, equations 2 and 3",
    equation=_loss,
    text="L = E + A / M^a + B / N^b + C s'^g / M^a2,  s' = sigmoid((ln s + 8) / 1.6)",
    coefficients=(
        *mckenna_l1.SIZE_AND_EXAMPLES,
        exponent("g", "saturating_noise"),
        Coefficient(
            name="a2",
            meaning="exponent of parameters in the term of noise",
            kind="exponent",
            low=-2,
            high=2,
            starts=(-0.5, 0.5),
            positive=False,
            variable="parameters",
            widest=0.4,
        ),
    ),
    variables=variables,
    rows=mckenna_l1.rows,
)
