"""How what a model's layers give is normalised before tokens are scored."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from fedlm.models.base import Params
from fedlm.models.layers import gain, init_gain, init_layer_norm, layer_norm
from fedlm.models.scale_invariant import unit_rms


class OutputNorm(NamedTuple):
    """A normalisation of float [..., width] over its last axis.

    Attributes:
      init: makes its parameters of the width; None where it has none.
      apply: maps (parameters, x) to the shape and dtype of x.
    """

    init: Callable[[int], Params] | None
    apply: Callable[[Params | None, jax.Array], jax.Array]

    def parameters(self, name: str, width: int) -> Params:
        """Make the part of a model's parameters that has those of this norm by a name, empty where it has none."""
        return {} if self.init is None else {name: self.init(width)}


def without_parameters(apply: Callable[[jax.Array], jax.Array]) -> OutputNorm:
    """Make a norm of a function that takes no parameters."""
    return OutputNorm(None, lambda _, x: apply(x))


NO_NORM = without_parameters(lambda x: x)
UNIT_RMS = without_parameters(unit_rms)
"""`x / rms(x)`."""
RMS_NORM = OutputNorm(init_gain, lambda params, x: gain(params or {}, unit_rms(x)))
"""`x / rms(x) * (1 + g)`, g a number for each coordinate, 0 at first (Zhang and Sennrich 2019)."""
LAYER_NORM = OutputNorm(init_layer_norm, lambda params, x: layer_norm(params or {}, x))
"""Layer normalisation, with a factor and a shift for each coordinate (Ba et al. 2016)."""
OUTPUT_NORMS = {"none": NO_NORM, "unit_rms": UNIT_RMS, "rms_norm": RMS_NORM, "layer_norm": LAYER_NORM}
"""By the name that a configuration has."""
