"""No clipped gradient is longer than the clip norm, whatever cancels, is rounded or is no number."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.clipping import factored_gradients
from fedlm.fl_core.clipping.clip_functions import CLIP_FUNCTIONS, clip_factors
from fedlm.fl_core.clipping.methods import METHODS, Clipping
from fedlm.fl_core.clipping.one_by_one import OneByOne, add_one_by_one
from fedlm.models.base import Batch, Model, language_model
from fedlm.models.layers.basic import embed, init_embedding, logits_from_table
from fedlm.models.layers.blocked_head import blocked_cross_entropy
from fedlm.models.layers.linear_head import linear_head_model
from fedlm.models.layers.parameter_uses import look_up, multiply
from fedlm.models.losses import ExampleSums
from fedlm.models.precision import precision_scope, with_precision
from tests.fl_core.clipping.compiled_sums import (
    EVERY_MODEL,
    FAST,
    VOCABULARY,
    WIDTH,
    compiled,
    compiled_anew,
    in_blocks,
    length,
    lengths_of_rows,
    model,
    parameters,
    random_units,
    taking,
)
from tests.models.small_models import EVERY_PART_OF_GEMMA


# Each two of method, form and precision meet.
@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "form", "precision"),
    [
        ("vmap", "direct", "float32"),
        ("vmap", "direct", "bfloat16"),
        ("ghost", "gram", "float32"),
        ("ghost", "direct", "bfloat16"),
        ("bookkeeping", "gram", "bfloat16"),
        ("bookkeeping", "direct", "float32"),
        ("ghost", "one_by_one", "float32"),
        ("bookkeeping", "one_by_one", "bfloat16"),
    ],
)
def test_clipped_gradients_are_no_longer_than_the_clip_norm(method, form, precision):
    every = (method, form, precision) == ("bookkeeping", "gram", "bfloat16")
    with taking(form), precision_scope(precision):
        for function in CLIP_FUNCTIONS if every else ["constant"]:
            clipped = compiled_anew(Clipping(method, 0.3, function), with_precision(model(), precision))
            longest = 0.0
            for seed in range(12):
                batch = random_units(np.random.default_rng(seed), 1, 2, 6, VOCABULARY)
                longest = np.maximum(longest, length(clipped(parameters(seed), batch).gradient))
            assert longest <= 0.3 * (1 + 1e-6)
            assert longest >= 0.3 * {"constant": 0.998, "automatic": 0.9, "per_layer": 0.5}[function]


LONG = ("cifg_tiny", "bert_tiny", "sasrec_tiny", "gemma")


# In full precision `vmap` is held to bookkeeping above, and ghost clipping has the norms of bookkeeping.
@pytest.mark.parametrize(("method", "precision"), [("bookkeeping", "float32"), *((one, "bfloat16") for one in METHODS)])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in LONG else pytest.mark.thorough) for name in EVERY_MODEL],
)
def test_no_models_clipped_gradients_are_longer_than_the_clip_norm(name, method, precision):
    with precision_scope(precision):
        for found in lengths_of_rows(EVERY_MODEL[name], method, precision):
            assert found <= 0.05 * (1 + 1e-6)


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_clipped_gradients_in_blocks_are_no_longer_than_the_clip_norm(precision):
    with precision_scope(precision), in_blocks():
        for found in lengths_of_rows(EVERY_PART_OF_GEMMA, "bookkeeping", precision):
            assert 0.05 * 0.998 <= found <= 0.05 * (1 + 1e-6)


@jax.jit
def clipped_to_1(*uses):
    """Clip a matrix whose gradient is made of these rows and columns, by norms in the Gram form."""
    factors = [factored_gradients.Factors(*(factor.astype(jnp.float32) for factor in use)) for use in uses]
    gradient = factored_gradients.MatrixGradient(factors, None, (uses[0][0].shape[-1], uses[0][1].shape[-1]))
    weights = clip_factors("constant", gradient.squared_norms()[1][None], 1.0)[0]
    return gradient.weighted_sum(weights)


def test_products_that_cancel_are_clipped_all_the_same():
    """Where a gradient is the small difference of long products, its norm as a sum of products is mostly rounding."""
    rng = np.random.default_rng(0)
    rows, columns = rng.normal(size=(2, 1, 64, 32)) * 100
    rows[:, 32:], columns[:, 32:] = rows[:, :32], -columns[:, :32] * (1 + rng.normal(size=(1, 32, 32)) * 1e-6)
    assert length(clipped_to_1((rows, columns))) <= 1 + 1e-6


@pytest.mark.parametrize(("of_two_uses", "width"), [(False, 700), (True, 4096)])
def test_products_of_equal_numbers_that_cancel_are_clipped_all_the_same(width, of_two_uses):
    """Rounding of long sums of equal numbers has one sign, that of the next number perhaps another."""
    values = np.random.default_rng(0).uniform(0.5, 1, 24).astype(np.float32)
    for one, other in itertools.product(values[:12], values[12:]):
        rows = np.tile(np.repeat([one, other, one], [16, 16, 1])[None, :, None], (1, 1, width))
        columns = np.zeros((1, 33, 96), np.float32)
        columns[:, :16, :48], columns[:, 16:32, :48], columns[:, 32, 48:] = 1, -one / other, 0.05
        uses = [(rows[:, part], columns[:, part]) for part in ((slice(16), slice(16, 33)) if of_two_uses else (...,))]
        assert length(clipped_to_1(*uses)) <= 1 + 1e-6


def test_equal_products_that_cancel_are_clipped_all_the_same():
    """Of fewer than 64 positions, all products of any two were added one after another."""
    columns = np.repeat([0.9930636882781982, -1.0351039171218872], [32, 31])[None, :, None] * 1024
    assert length(clipped_to_1((np.ones((1, 63, 1)), columns))) <= 1 + 1e-6


@pytest.mark.parametrize(("small", "large"), [(3e-20, 5e17), (1e-19, 1e18), (1e-21, 1e19), (1e-30, 1e18)])
def test_rows_whose_squares_are_too_small_for_float32_are_clipped_all_the_same(small, large):
    rows, columns = np.full((1, 8, 8), small), np.full((1, 8, 64), large)
    assert length(clipped_to_1((rows, columns))) <= 1 + 1e-6
    assert length(clipped_to_1((columns, rows))) <= 1 + 1e-6


@pytest.mark.parametrize("shape", [(4096, 128), (128, 4096)])
def test_as_many_equal_entries_as_a_matrix_has_are_clipped_all_the_same(shape):
    """The squares of one unit's gradient are added up, of which each sum is rounded as the one before."""

    @jax.jit
    def clipped(value):
        factors = factored_gradients.Factors(jnp.ones((1, 1, shape[0])), jnp.full((1, 1, shape[1]), value))
        last, bounds = {0: OneByOne([factors], shape)}, jnp.zeros((1, 1))
        return add_one_by_one(last, bounds, lambda bounds: clip_factors("constant", bounds, 1.0))[0][0]

    for value in np.random.default_rng(0).uniform(1, 2, 24).astype(np.float32):
        assert 0.9999 < length(clipped(value)) <= 1 + 1e-6


@pytest.mark.parametrize("shape", [(8,) * 7 + (2, 2), (4,) * 10, ()])
def test_parameters_of_any_number_of_axes_are_clipped_by_vmap(shape):
    """Over many short axes at once a CPU adds squares one after another, each sum of which is rounded."""

    def loss(params, batch):
        product = jnp.sum(params * batch.completion_start, axis=tuple(range(1, len(shape) + 1)))
        return ExampleSums(product, *[jnp.ones(1)] * (len(ExampleSums._fields) - 1))

    model = Model("linear", 7, lambda rng: jnp.zeros(shape), lambda params, tokens: tokens, loss)
    given = Batch(jnp.ones((1, 2), jnp.int32), jnp.ones(1))
    clipped = compiled_anew(Clipping("vmap", 1.0), model)
    for value in (1.08564913, 1.43312693):
        batch = given._replace(completion_start=jnp.full((1, *shape), value, jnp.float32))
        assert 0.9999 < length(clipped(jnp.zeros(shape), batch).gradient) <= 1 + 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_without_examples_sums_to_zero(method):
    batch = random_units(np.random.default_rng(0), 3, 1, 5, VOCABULARY)._replace(weight=jnp.zeros(3))
    found = compiled(Clipping(method, 1.0), model(), parameters(), batch, 3)
    assert all(not np.any(leaf) for leaf in jax.tree_util.tree_leaves(found.gradient))


def overflowing(scored=False):
    """A model whose gradient is not finite wherever token 9 occurs, and some of whose inner values are not either.

    Its logits are used as a matrix's output, or are those of a table that scores targets.
    """

    def init(rng):
        return {"table": init_embedding(rng, VOCABULARY, WIDTH), "bias": jnp.zeros(VOCABULARY)}

    def features(params, tokens):
        return embed(params["table"], tokens) * jnp.where(tokens == 9, jnp.inf, 1.0)[..., None]

    if scored:
        head = {"features": features, "head": lambda params: (params["table"], params["bias"])}
        return linear_head_model("overflowing", VOCABULARY, init=init, **head)

    def apply(params, tokens):
        return logits_from_table(params["table"], params["bias"], features(params, tokens))

    return language_model("overflowing", VOCABULARY, init, apply)


@pytest.mark.parametrize(
    ("method", "function", "scored", "form"),
    [
        *((method, function, False, "gram") for method in METHODS for function in CLIP_FUNCTIONS),
        *((method, "constant", True, "gram") for method in FAST),
        ("bookkeeping", "constant", False, "direct"),
        ("ghost", "constant", True, "one_by_one"),
        ("bookkeeping", "per_layer", False, "one_by_one"),
    ],
)
def test_gradients_that_are_not_finite_count_for_nothing(method, function, scored, form):
    tokens = np.array([[1, 5, 6, 2], [1, 9, 9, 2], [1, 7, 8, 2]], np.int32)
    broken = overflowing(scored)
    params = broken.init(jax.random.key(0))
    clipped = compiled_anew(Clipping(method, 1.0, function), broken, 3)
    with taking(form):
        found = clipped(params, Batch(jnp.asarray(tokens), jnp.ones(3)))
    assert np.isfinite(found.norms).tolist() == [True, False, True]
    others = clipped(params, Batch(jnp.asarray(tokens[[0, 0, 2]]), jnp.array([1.0, 0.0, 1.0])))
    jax.tree_util.tree_map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), found.gradient, others.gradient
    )


@pytest.mark.parametrize("form", ["gram", "direct", "one_by_one"])
def test_a_unit_that_is_not_finite_leaves_the_sum_of_the_others_as_it_is(form):
    """In another order, equal gradients of 256 units would be added up to another sum by 0.0007 clip norms."""
    units, width = 256, 64
    rng = np.random.default_rng(1)
    x, at_output = (np.tile(rng.uniform(0.5, 1, (1, 8, width)), (units, 1, 1)) for _ in range(2))

    def loss(params, batch):
        products = jnp.sum(multiply(batch.tokens, params) * batch.completion_start, axis=(1, 2))
        return ExampleSums(products, *[jnp.ones(units)] * 6)

    one_matrix = Model("one matrix", 7, lambda key: None, lambda params, tokens: tokens, loss)
    program = compiled_anew(Clipping("bookkeeping", 1.0), one_matrix, units)
    last = np.arange(units) == units - 1

    def clipped(weight, of_last):
        at_outputs = jnp.asarray(np.where(last[:, None, None], of_last, at_output), jnp.float32)
        batch = Batch(jnp.asarray(x, jnp.float32), jnp.asarray(weight, float), completion_start=at_outputs)
        return program(jnp.zeros((width, width)), batch)

    with taking(form):
        broken = clipped(np.ones(units), np.inf)
    assert np.isfinite(broken.norms).tolist() == (~last).tolist()
    absent = clipped(~last, 0)
    np.testing.assert_array_equal(broken.gradient, absent.gradient)


@pytest.mark.parametrize("in_blocks", [False, True])
def test_look_ups_that_cancel_are_not_so_long_that_others_beside_them_are_rounded(in_blocks):
    """Between two of 2^15 clip norms that cancel, another unit's sum would have been rounded to 2^-8 of one."""
    vocabulary, width, clip_norm, long = 32, 16, 1.0, 2.0**15
    at_look_ups = jnp.zeros((1, 2, width)).at[0, :, 0].set(jnp.array([long, -long]))

    def loss(table, batch):
        looked_up = jnp.sum(look_up(table, batch.tokens) * at_look_ups, axis=(1, 2))
        if in_blocks:
            scored, _ = blocked_cross_entropy(jnp.zeros((1, 1, width)), table, None, batch.tokens[:, :1], cap=None)
            looked_up += jnp.sum(scored, axis=1)
        return ExampleSums(looked_up, *[jnp.ones(1)] * 6)

    one_table = Model("one table", vocabulary, lambda key: None, lambda params, tokens: tokens, loss)
    batch = Batch(jnp.asarray([[5, 5]], jnp.int32), jnp.ones(1))
    with taking("gram"):
        found = compiled_anew(Clipping("bookkeeping", clip_norm), one_table)(jnp.zeros((vocabulary, width)), batch)
    assert found.norms[0] < 1
    assert 0 < found.factors[0, 0] * 2 * long <= 2**9 * clip_norm


@pytest.mark.parametrize("form", ["gram", "direct", "one_by_one"])
def test_tokens_that_name_a_row_twice_are_one(form):
    batch = Batch(jnp.asarray([[-1, VOCABULARY - 1, -2, VOCABULARY - 2, 5]], jnp.int32), jnp.ones(1))
    with taking(form):
        found = compiled_anew(Clipping("bookkeeping", 1e-3), model())(parameters(), batch)
    assert 0.998e-3 < length(found.gradient) <= 1e-3 * (1 + 1e-6)
