"""What float32 may add to what one unit changes: a microbatch's sum with it, without it, and it alone."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedlm.fl_core.clipping import factored_gradients
from fedlm.fl_core.clipping.methods import Clipping, clipped_sum
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.exact_sums import as_float64, grid_step, summed
from fedlm.models.base import Batch, Model
from fedlm.models.losses import ExampleSums
from fedlm.models.precision import precision_scope, with_precision
from fedlm.models.registry import create_model
from fedlm.simulations.pretraining import preparing
from fedlm.simulations.pretraining.microbatches import CLIPPED_TO, StepRules
from fedlm.simulations.pretraining.preparing import MOST_UNITS_AT_ONCE, prepare_pretraining
from fedlm.simulations.pretraining.settings import Pretraining
from fedlm.simulations.pretraining.trainer import Trainer

VOCABULARY, CLIP_NORM = 300, 0.7
ROOM = (1 - CLIPPED_TO - 2 * 2.0**-12) / 3
"""For each of the three units that come into a microbatch or go, where there is one unit more or less."""


@functools.cache
def summing(method, precision, units, form=None):
    """The sum of a microbatch by the weights of its units, in clip norms, in float64; of matrices in a form, or in what
    is cheapest."""
    model = with_precision(create_model("transformer_1x32", VOCABULARY), precision)
    params = model.init(jax.random.key(0))
    clipping = Clipping(method, CLIP_NORM)
    compiled = jax.jit(lambda tokens, weight: clipped_sum(clipping, model, params, Batch(tokens, weight), units=units))

    def total(tokens, weight):
        with precision_scope(precision), pytest.MonkeyPatch.context() as patch:
            if form is not None:
                patch.setattr(factored_gradients, "_cheapest_form", lambda *_: form)
            gradient = compiled(tokens, np.asarray(weight, np.float32)).gradient
        leaves = [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree_util.tree_leaves(gradient)]
        return np.concatenate(leaves) / CLIP_NORM

    return total


def beyond(method, precision, tokens, form=None):
    """How much further than by itself a unit moves the sum, at most, and the norm of the sum."""
    units, farthest = len(tokens), 0.0
    total = summing(method, precision, units, form)
    whole = total(tokens, np.ones(units))
    for place in (0, units // 3, units - 1):
        alone = np.eye(units)[place]
        farthest = max(farthest, np.linalg.norm(whole - total(tokens, 1 - alone) - total(tokens, alone)))
    return farthest, np.linalg.norm(whole)


@pytest.mark.long
@pytest.mark.parametrize(("method", "precision"), [("bookkeeping", "bfloat16"), ("vmap", "float32")])
def test_rounding_within_a_microbatch_stays_far_below_the_room_that_is_left_for_it(method, precision):
    units, length = 64, 8
    tokens = np.random.default_rng(0).integers(4, VOCABULARY, (units, length + 1), np.int32)
    # Equal gradients make the longest sum, whose last bits are worth most.
    for rows, longest in ((np.tile(tokens[:1], (units, 1)), True), (tokens, False)):
        found, norm = beyond(method, precision, rows)
        assert (norm > 0.99 * units) == longest
        # It grows with the units of a microbatch.
        assert found < 2.0**-16 < ROOM / 8
    assert 2.0**-17 * MOST_UNITS_AT_ONCE / units < ROOM


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "form", "precision"),
    [
        ("bookkeeping", "gram", "float32"),
        ("bookkeeping", "direct", "float32"),
        ("bookkeeping", "one_by_one", "float32"),
        ("vmap", None, "bfloat16"),
        pytest.param("bookkeeping", "one_by_one", "bfloat16", marks=pytest.mark.thorough),
        pytest.param("bookkeeping", "gram", "bfloat16", marks=pytest.mark.thorough),
        pytest.param("vmap", None, "float32", marks=pytest.mark.thorough),
    ],
)
def test_as_many_units_as_are_accepted_stay_within_it(method, form, precision):
    rng = np.random.default_rng(0)
    equal = np.tile(rng.integers(4, VOCABULARY, (1, 9), np.int32), (MOST_UNITS_AT_ONCE, 1))
    # Where units come later than the one that is left out, equal ones are rounded as the one before each was.
    nearly_equal = equal.copy()
    nearly_equal[:, -1] = rng.integers(4, VOCABULARY, MOST_UNITS_AT_ONCE)
    for tokens, least in ((equal, 0.99), (nearly_equal, 0.9)):
        found, norm = beyond(method, precision, tokens, form)
        assert norm > least * MOST_UNITS_AT_ONCE
        assert found < ROOM / 2


@pytest.mark.long
def test_one_unit_less_moves_the_sum_by_the_clip_norm_at_most_where_the_last_takes_its_place():
    """Gradients are tokens' rows, of which two are as bad as any for what sums of two are rounded to."""
    width, pairs = 4096, 256
    step = float(grid_step(np.float32(1.0), width))
    rows = np.outer([0, 0, 0, 0, 0.249 * step, 0.749 * step, 1.0], np.ones(width)).astype(np.float32)

    def loss(params, batch):
        return ExampleSums(jnp.asarray(rows)[batch.tokens[:, 0]] @ params, *[jnp.ones(len(batch.tokens))] * 6)

    model = Model("rows", 7, lambda key: jnp.zeros(width), lambda params, tokens: tokens, loss)
    trainer = Trainer(
        model, optax.sgd(1.0), StepRules(Clipping("vmap", 1.0), 1.0, 1, 2), "data", devices=jax.devices()[:1]
    )

    def total(words):
        units = -(-len(words) // trainer.chunk_units) * trainer.chunk_units
        tokens, weight = np.zeros((units, 1, 2), np.int32), np.zeros((units, 1), np.float32)
        tokens[: len(words), 0, 0], weight[: len(words)] = words, 1
        totals = trainer.zero()
        for first in range(0, units, trainer.chunk_units):
            part = slice(first, first + trainer.chunk_units)
            totals = trainer.add(jnp.zeros(width), totals, {"tokens": tokens[part], "weight": weight[part]})
        with jax.enable_x64(True):
            return np.asarray(as_float64(summed(totals.gradient))) * step

    others = [4, 4, 5, 5] * (pairs // 2)
    for place in (0, 5, len(others)):
        with_it = [*others[:place], 6, *others[place:]]
        moved = [*with_it[:place], with_it[-1], *with_it[place + 1 : -1]] if place < len(others) else others
        assert np.linalg.norm(total(with_it) - total(moved)) < 1 - 3 * 2.0**-12
    # In the order of their numbers all that follow would be moved.
    assert np.linalg.norm(total([6, *others]) - total(others)) > 1.01


def test_more_units_at_once_and_absurd_deltas_are_refused_with_privacy(small_store, monkeypatch):
    settings = {"model": "cifg_tiny", "data": small_store, "steps": 2, "batch_size": 4, "length": 8}
    for sharding in ("data", "full"):
        many = settings | {"sharding": sharding, "microbatch_size": MOST_UNITS_AT_ONCE + 1}
        with pytest.raises(ConfigurationError, match=r"microbatch_size.*at most 1024 units"):
            prepare_pretraining(compose(Pretraining, **many, noise_multiplier=1.0))
        prepare_pretraining(compose(Pretraining, **many, privacy="none"))
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigurationError, match=f"delta is {delta}, but must be at least 1e-15 and below 1"):
            prepare_pretraining(compose(Pretraining, **settings, noise_multiplier=1.0, delta=delta))
    # Units at once that nobody chose count as well.
    chosen = compose(Pretraining, **settings, sharding="full", noise_multiplier=1.0)
    prepare_pretraining(chosen)
    monkeypatch.setattr(preparing, "MOST_UNITS_AT_ONCE", 3)
    with pytest.raises(ConfigurationError, match=r"microbatch_size is 4, .* give 3 or less"):
        prepare_pretraining(chosen)
