"""What is released of an exact sum: Gaussian noise is added to it on its grid."""

import jax
import jax.numpy as jnp

from fedlm.fl_core.exact_sums import as_float64
from fedlm.models.base import Params


def noised_mean(
    total: Params,
    noise: Params,
    *,
    scale: jax.typing.ArrayLike,
    step: jax.typing.ArrayLike,
    divisor: jax.typing.ArrayLike,
) -> tuple[Params, jax.Array, jax.Array]:
    """Add noise on the grid, and divide; to be traced where JAX's 64-bit types are enabled.

    The total is a whole number of steps, so that rounding what is added to it to one is rounding their sum: something
    done to the release of a Gaussian mechanism, whatever the step. Total and noise stay far below 2^53 steps, up to
    which float64 holds whole numbers.

    Args:
      total: an `ExactSum` in place of each array.
      noise: float64, in units of the scale.
      scale: standard deviation of one draw of noise.
      step: of the grid.
      divisor: what sums are divided by.

    Returns:
      The mean, float32; the L2 norm of the noise in it; and that of the mean without noise.
    """
    whole = as_float64(total)
    rounded = jax.tree_util.tree_map(lambda leaf: jnp.round(leaf * (scale / step)), noise)
    unit = step / divisor
    mean = jax.tree_util.tree_map(lambda leaf, added: ((leaf + added) * unit).astype(jnp.float32), whole, rounded)
    return mean, _norm(rounded) * unit, _norm(whole) * unit


def _norm(tree: Params) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree_util.tree_leaves(tree)))
