"""McKenna et al.'s first form: noise adds to the loss whatever the model."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms.form import Form, amplitude, exponent
from fedlm.simulations.laws.forms.rows import best_rate, one_pass, parameters, settled, training_examples
from fedlm.simulations.laws.measurements import Measurements

LAST = 100_000 / 128_000
"""The share of the schedule beyond which the paper fits."""
LEAST_RATIO = 5e-7
"""The noise-batch ratio above which the paper fits."""
LARGEST_LOSS = 8.0
"""The loss up to which the paper fits, in nats per token."""


def variables(measurements: Measurements) -> dict[str, NDArray[np.float64]]:
    """Return M = `parameters` (all), N = `training_examples` (batch times steps) and s = `noise_batch_ratio`."""
    return {
        "parameters": parameters(measurements),
        "training_examples": training_examples(measurements),
        "noise_batch_ratio": measurements.noise_batch_ratio.astype(np.float64),
    }


def rows(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the rows that the paper fits: with noise above 5e-7, loss at most 8, the last 28,000 of 128,000 steps.

    Steps are taken as that share of the run's schedule, the learning rate as the cell's best. With batches of one size
    these rows span training examples by a factor of 1.28 only, which cannot tell N's exponent.
    """
    kept = settled(measurements, LAST) & (measurements.noise_batch_ratio > LEAST_RATIO)
    return kept & (measurements.loss <= LARGEST_LOSS) & one_pass(measurements) & best_rate(measurements)


def _loss(values: Any, data: Any) -> Any:
    return (
        values["E"]
        + values["A"] / data["parameters"] ** values["a"]
        + values["B"] / data["training_examples"] ** values["b"]
        + values["C"] * data["noise_batch_ratio"] ** values["g"]
    )


SIZE_AND_EXAMPLES = (
    amplitude("E", "loss that nothing removes"),
    amplitude("A", "size of the term of parameters", "a"),
    exponent("a", "parameters"),
    amplitude("B", "size of the term of examples", "b"),
    exponent("b", "training_examples"),
    amplitude("C", "size of the term of noise", "g"),
)

FORM = Form(
    name="mckenna_l1",
    citation="McKenna et al. 2025, arXiv 2501.18914, appendix E, equation 1",
    equation=_loss,
    text="L = E + A / M^a + B / N^b + C s^g",
    coefficients=(*SIZE_AND_EXAMPLES, exponent("g", "noise_batch_ratio")),
    variables=variables,
    rows=rows,
)
