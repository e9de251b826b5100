"""Clipped sums of small models, as tests take them."""

import functools

import jax
import numpy as np

from fedlm.fl_core.clipping import factored_gradients
from fedlm.fl_core.clipping.methods import clipped_sum
from tests.fl_core.clipping.small_layers import every_use
from tests.models.small_models import PUBLISHED_DECODERS, SMALL_MODELS

FAST = ("ghost", "bookkeeping")
VOCABULARY, WIDTH = 11, 4
EVERY_MODEL = SMALL_MODELS | PUBLISHED_DECODERS
# Beside one of each kind, what has a recurrence or a norm of its own; the others are tried thoroughly alone.
MORE = ("cifg_tiny+recurrence=layer_norm", "lstm4rec_tiny", "gemma", "gpt2")


@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def compiled(clipping, model, params, batch, units):
    return clipped_sum(clipping, model, params, batch, units=units)


@functools.cache
def model():
    return every_use(VOCABULARY, WIDTH)


def parameters(seed=0):
    return jax.tree_util.tree_map(lambda leaf: leaf + 0.1, model().init(jax.random.key(seed)))


def take(form, patch):
    """Let all matrices take a form, whatever it costs."""
    patch.setattr(factored_gradients, "_cheapest_form", lambda *_: form)


def length(gradient):
    leaves = jax.tree_util.tree_leaves(gradient)
    return np.sqrt(sum(np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in leaves))
