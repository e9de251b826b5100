"""Kaplan et al.'s law of the critical batch, with the gradient noise scale measured in training in its place.

The noise scale is that of McCandlish et al. 2018 (arXiv 1812.06162).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms.form import Form, amplitude, exponent
from fedlm.simulations.laws.forms.rows import best_rate, critical_batch, noiseless, settled
from fedlm.simulations.laws.measurements import Measurements


def _variables(measurements: Measurements) -> dict[str, NDArray[np.float64]]:
    """Return L = `loss` of the block, in nats per token."""
    return {"loss": measurements.loss}


def _rows(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the blocks without noise in which the noise scale was measured, at the cell's best learning rate.

    Those of the first eighth of the schedule are left out.
    """
    kept = noiseless(measurements) & settled(measurements) & best_rate(measurements)
    return kept & (critical_batch(measurements) > 0)


def _batch(values: Any, data: Any) -> Any:
    return values["B_star"] / data["loss"] ** (1 / values["alpha_B"])


FORM = Form(
    name="kaplan_critical_batch",
    citation="Kaplan et al. 2020, arXiv 2001.08361, equation 1.4",
    equation=_batch,
    text="B_crit(L) = B_star / L^(1 / alpha_B)",
    coefficients=(
        amplitude("B_star", "tokens of the critical batch at a loss of 1", "alpha_B"),
        exponent("alpha_B", "loss", "inverse exponent of the loss"),
    ),
    variables=_variables,
    rows=_rows,
    target=critical_batch,
    least_spread=1.1,
)
