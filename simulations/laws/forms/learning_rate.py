"""VaultGemma's optimal learning rate: the vertex of a parabola through the final losses of several rates."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms.form import Coefficient, Data, Form, amplitude
from fedlm.simulations.laws.forms.rows import CELL, final, one_pass
from fedlm.simulations.laws.measurements import Measurements


def _variables(measurements: Measurements) -> dict[str, NDArray[np.float64]]:
    """Return x = `log2_learning_rate`; the report does not say whether its axis is logarithmic."""
    return {"log2_learning_rate": np.log2(measurements.learning_rate)}


def _rows(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the last blocks of the runs of one model, noise-batch ratio and number of steps, at all learning rates."""
    return final(measurements) & one_pass(measurements)


def _loss(values: Any, data: Any) -> Any:
    return values["E"] * (1 + values["k"] * (data["log2_learning_rate"] - values["x"]) ** 2)


def _doubts(values: Mapping[str, float], data: Data) -> dict[str, str]:
    low, high = data["log2_learning_rate"].min(), data["log2_learning_rate"].max()
    if low <= values["x"] <= high:
        return {}
    return {"x": f"it is outside the learning rates that were measured, 2^{low:.3g} to 2^{high:.3g}"}


FORM = Form(
    name="learning_rate",
    citation="Sinha et al. 2025, VaultGemma, section 6",
    equation=_loss,
    text="L = E (1 + k (log2(learning rate) - x)^2)",
    coefficients=(
        amplitude("E", "loss at the best learning rate"),
        Coefficient("k", "curvature", "plain", 1e-7, 10, (1e-3, 0.3), variable="log2_learning_rate", stands_with="x"),
        Coefficient("x", "log2 of the best learning rate", "plain", -60, 20, (-14, 0), positive=False, widest=2.0),
    ),
    variables=_variables,
    rows=_rows,
    same=CELL,
    least_spread=0,
    doubts=_doubts,
)
