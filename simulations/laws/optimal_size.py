"""The best model size at a given compute and noise, by a law in closed form (McKenna et al. 2025, figure 19)."""

from collections.abc import Mapping

import numpy as np
from scipy.optimize import minimize_scalar

from fedlm.simulations.laws.forms.mckenna_l2 import FORM, saturating_noise
from fedlm.simulations.laws.plan import FLOPS

SIZES = (1e3, 1e15)
"""Between which numbers of parameters the best one is searched."""

_EDGE = 1.02


def optimal_parameters(
    values: Mapping[str, float],
    compute: float,
    noise_batch_ratio: float,
    length: int,
    sizes: tuple[float, float] = SIZES,
) -> tuple[float, float]:
    """Minimise the second form over M at fixed compute C and noise-batch ratio s, where N = C / (6 M length).

    Args:
      values: of the form's coefficients.
      compute: C = 6 M N length, in floating-point operations.
      noise_batch_ratio: s, 0 without noise.
      length: tokens of an example.
      sizes: the least and largest number of parameters that are searched.

    Returns:
      all parameters of the best model, NaN where that is at an end of what is searched, and the loss in nats per token.

    Raises:
      ConfigurationError: a coefficient has no value.
    """
    noise = saturating_noise(noise_batch_ratio)

    def loss(log_parameters: float) -> float:
        parameters = np.exp(log_parameters)
        examples = compute / (FLOPS * parameters * length)
        data = {"parameters": parameters, "training_examples": examples, "saturating_noise": noise}
        return float(FORM.predict(values, data))

    found = minimize_scalar(loss, bounds=tuple(np.log(sizes)), method="bounded", options={"xatol": 1e-10})
    best, (least, most) = float(np.exp(found.x)), sizes
    return best if _EDGE * least < best < most / _EDGE else np.nan, float(found.fun)
