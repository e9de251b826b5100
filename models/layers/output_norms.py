"""How what a model's layers give is normalised before tokens are scored."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from fedlm.models.base import Params
from fedlm.models.layers.basic import gain, init_gain, init_layer_norm, layer_norm
from fedlm.models.layers.scale_invariant import unit_rms


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


LAYER_NORM = OutputNorm(init_layer_norm, lambda params, x: layer_norm(params or {}, x))
OUTPUT_NORMS = {
    "none": OutputNorm(None, lambda _, x: x),
    "unit_rms": OutputNorm(None, lambda _, x: unit_rms(x)),
    "rms_norm": OutputNorm(init_gain, lambda params, x: gain(params or {}, unit_rms(x))),
    "layer_norm": LAYER_NORM,
}
"""By the name that a configuration has: `x`; `x / rms(x)`; `x / rms(x) * (1 + g)`, g a number for each coordinate, 0 at
first (Zhang and Sennrich 2019); layer normalisation, with a factor and a shift for each coordinate (Ba et al. 2016)."""
