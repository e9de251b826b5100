"""Sums that tests make up, as private rounds take them."""

import jax
import jax.numpy as jnp

from fedlm.fl_core.exact_sums import grid_step, number_of_coordinates, on_grid


def exact_total(delta, clip_norm):
    """Round what a cohort's updates may have come to, a pytree of arrays, to the grid of a clip norm."""
    delta = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf, jnp.float32), delta)
    return on_grid(delta, grid_step(jnp.float32(clip_norm), number_of_coordinates(delta)), "to_nearest")
