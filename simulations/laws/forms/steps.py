"""VaultGemma's law of training length: final losses of runs that were planned to have different numbers of steps."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms.form import Form, amplitude, exponent
from fedlm.simulations.laws.forms.rows import best_rate, final, one_pass
from fedlm.simulations.laws.measurements import Measurements


def variables(measurements: Measurements) -> dict[str, NDArray[np.float64]]:
    """Return T = `steps` taken when the block ended."""
    return {"steps": measurements.step.astype(np.float64)}


def _rows(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the last blocks of the runs of one model and noise-batch ratio, at the best learning rate of each T.

    Losses within a run are of a schedule that has not ended, and too high for a run that ends there.
    """
    return final(measurements) & one_pass(measurements) & best_rate(measurements)


def loss(values: Any, data: Any) -> Any:
    """Evaluate the equation."""
    return values["E"] + values["A"] / data["steps"] ** values["alpha"]


FORM = Form(
    name="steps",
    citation="Sinha et al. 2025, VaultGemma, section 6; the form is that of McKenna et al. 2025, section 3.3",
    equation=loss,
    text="L = E + A / T^alpha",
    coefficients=(
        amplitude("E", "loss of an endless training"),
        amplitude("A", "size of the term of steps", "alpha"),
        exponent("alpha", "steps"),
    ),
    variables=variables,
    rows=_rows,
    same=("model", "noise_batch_ratio", "batch_size", "length"),
)
