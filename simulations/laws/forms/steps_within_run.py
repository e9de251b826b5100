"""McKenna et al.'s extrapolation in steps, from the losses of one run's course."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms import steps
from fedlm.simulations.laws.forms.rows import best_rate, one_pass, settled
from fedlm.simulations.laws.measurements import Measurements


def _rows(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the blocks of one model and noise-batch ratio after an eighth of the schedule, 16,000 of 128,000 steps.

    Those of the cell's best learning rate are taken.
    """
    return settled(measurements) & one_pass(measurements) & best_rate(measurements)


FORM = dataclasses.replace(
    steps.FORM,
    name="steps_within_run",
    citation="McKenna et al. 2025, arXiv 2501.18914, section 3.3",
    rows=_rows,
    same=(*steps.FORM.same, "steps"),
)
