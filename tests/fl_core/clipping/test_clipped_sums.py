import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy.clipping import clipped_grad

from fedlm.fl_core.clipping import factored_gradients
from fedlm.fl_core.clipping.clip_functions import CLIP_FUNCTIONS, clip_factors
from fedlm.fl_core.clipping.methods import METHODS, Clipping, clipped_sum, method_for
from fedlm.fl_core.clipping.one_by_one import OneByOne, add_one_by_one
from fedlm.fl_core.errors import ConfigurationError
from fedlm.models import blocked_head
from fedlm.models.base import Batch, Model, given_frozen, language_model
from fedlm.models.blocked_head import blocked_cross_entropy
from fedlm.models.dropout import with_dropout
from fedlm.models.layers import embed, init_embedding, logits_from_table
from fedlm.models.linear_head import linear_head_model
from fedlm.models.lora import LoraConfig, lora_model
from fedlm.models.losses import ExampleSums
from fedlm.models.parameter_uses import look_up, multiply
from fedlm.models.precision import precision_scope, with_precision
from tests.fl_core.clipping.small_layers import every_use, random_units
from tests.models.small_models import ADAPTABLE, EVERY_PART_OF_GEMMA, SMALL_MODELS, each, perturbed, random_batch

FAST = ("ghost", "bookkeeping")
VOCABULARY, WIDTH = 11, 4
EVERY_MODEL = SMALL_MODELS | {"gemma": EVERY_PART_OF_GEMMA}


@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def compiled(clipping, model, params, batch, units):
    return clipped_sum(clipping, model, params, batch, units)


@functools.cache
def model():
    return every_use(VOCABULARY, WIDTH)


def parameters(seed=0):
    return jax.tree_util.tree_map(lambda leaf: leaf + 0.1, model().init(jax.random.key(seed)))


def assert_same(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found.norms, expected.norms, rtol=tolerance)
    np.testing.assert_allclose(found.factors, expected.factors, rtol=20 * tolerance)
    jax.tree_util.tree_map(functools.partial(np.testing.assert_allclose, rtol=1e-6), found.sums, expected.sums)
    leaves = [
        np.concatenate([np.ravel(x) for x in jax.tree_util.tree_leaves(one.gradient)]) for one in (found, expected)
    ]
    # Factors err on the short side, by as much as the rounding of long products may hide.
    shorter = np.max(np.abs(np.asarray(found.factors) / np.maximum(expected.factors, 1e-30) - 1))
    assert np.linalg.norm(leaves[0] - leaves[1]) <= (tolerance + shorter) * max(np.linalg.norm(leaves[1]), 1e-6)


def take(form, patch):
    """Let all matrices take a form, whatever it costs."""
    patch.setattr(factored_gradients, "_cheapest_form", lambda *_: form)


# Each two of method, form and shapes meet.
@pytest.mark.parametrize(
    ("method", "form", "units", "examples", "length", "clip_norm", "function"),
    [
        ("ghost", "gram", 1, 2, 1, 0.01, "constant"),
        ("ghost", "direct", 4, 1, 9, 1.0, "automatic"),
        ("ghost", "direct", 2, 3, 5, 1.0, "per_layer"),
        ("bookkeeping", "direct", 1, 2, 1, 0.01, "constant"),
        ("bookkeeping", "gram", 4, 1, 9, 1.0, "automatic"),
        ("bookkeeping", "gram", 2, 3, 5, 1.0, "per_layer"),
        ("ghost", "one_by_one", 1, 2, 1, 0.01, "constant"),
        ("bookkeeping", "one_by_one", 4, 1, 9, 1.0, "automatic"),
        ("ghost", "one_by_one", 2, 3, 5, 1.0, "per_layer"),
    ],
)
def test_equals_vmap(method, form, units, examples, length, clip_norm, function):
    setting = Clipping(method, clip_norm, function)
    # Compiled anew, since the form is chosen while tracing.
    clipped = jax.jit(lambda params, batch: clipped_sum(setting, model(), params, batch, units))
    for seed in range(8):
        batch = random_units(np.random.default_rng(seed), units, examples, length, VOCABULARY)
        reference = compiled(Clipping("vmap", clip_norm, function), model(), parameters(seed), batch, units)
        with pytest.MonkeyPatch.context() as patch:
            take(form, patch)
            found = clipped(parameters(seed), batch)
        assert_same(found, reference)


@pytest.mark.long
@pytest.mark.parametrize("small", each(EVERY_MODEL))
def test_equals_vmap_for_every_model(small):
    method = "bookkeeping"
    batch = random_batch()
    assert method_for(method, small.model, small.params, batch) == (method, None)
    reference = compiled(Clipping("vmap", 0.5), small.model, small.params, batch, len(batch.weight))
    assert_same(compiled(Clipping(method, 0.5), small.model, small.params, batch, len(batch.weight)), reference)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "dropout"),
    [
        *((name, 0.0) for name in (*ADAPTABLE, "gemma")),
        ("cifg_tiny", 0.3),
        ("transformer_tiny", 0.3),
    ],
)
def test_equals_vmap_for_adapters_of_every_model(name, dropout):
    small = EVERY_MODEL[name]
    model = lora_model(small.model, LoraConfig(rank=2, alpha=3.0, dropout=dropout))
    adapters, batch = perturbed(model.init(jax.random.key(1))), random_batch()
    if dropout:
        batch = batch._replace(dropout=jnp.arange(8, dtype=jnp.uint32).reshape(4, 2))
    assert method_for("bookkeeping", model, adapters, batch, small.params) == ("bookkeeping", None)
    found = {
        method: jax.jit(
            lambda frozen, method=method: clipped_sum(
                Clipping(method, 0.01), given_frozen(model, frozen), adapters, batch, len(batch.weight)
            )
        )(small.params)
        for method in ("vmap", "bookkeeping")
    }
    assert np.all(found["vmap"].factors < 1)
    assert_same(found["bookkeeping"], found["vmap"])


@pytest.mark.long
@pytest.mark.parametrize("name", ["gru4rec_tiny", "lstm4rec_tiny", "sasrec_tiny"])
def test_equals_vmap_under_dropout(name):
    small, batch = EVERY_MODEL[name], random_batch()._replace(dropout=jnp.arange(8, dtype=jnp.uint32).reshape(4, 2))
    model = with_dropout(small.model, 0.4)
    assert method_for("bookkeeping", model, small.params, batch) == ("bookkeeping", None)
    reference = compiled(Clipping("vmap", 0.5), model, small.params, batch, 2)
    assert_same(compiled(Clipping("bookkeeping", 0.5), model, small.params, batch, 2), reference)
    whole = compiled(Clipping("vmap", 0.5), small.model, small.params, batch, 2)
    assert np.all(np.abs(reference.norms / whole.norms - 1) > 1e-3)


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_equals_jax_privacy(method):
    batch = random_units(np.random.default_rng(1), 5, 1, 6, VOCABULARY)._replace(weight=jnp.ones(5))

    def loss(params, tokens):
        sums = model().loss(params, Batch(tokens, jnp.ones(1)))
        return sums.loss[0] / jnp.maximum(sums.tokens[0], 1.0)

    reference = clipped_grad(loss, l2_clip_norm=0.7, return_grad_norms=True)
    gradient, aux = jax.jit(reference)(parameters(), batch.tokens)
    found = compiled(Clipping(method, 0.7), model(), parameters(), batch, 5)
    np.testing.assert_allclose(found.norms, aux.grad_norms, rtol=1e-5)
    assert np.sum(found.norms > 0.7) > 0
    jax.tree_util.tree_map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found.gradient, gradient
    )


def with_completions(batch, rng):
    """Let some tokens of each example be a prompt, which may be all that is not PAD."""
    rows, length = batch.tokens.shape
    return batch._replace(completion_start=jnp.asarray(rng.integers(1, length + 1, rows), jnp.int32))


def mean_loss_of_completions(apply, params, batch, units):
    """The mean over targets of completions by unit, position by position, in float64."""
    logits = np.asarray(apply(params, batch.tokens[:, :-1]), np.float64)
    logs = (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )
    means = []
    for rows in np.split(np.arange(len(batch.weight)), units):
        losses = [
            -logs[row, place - 1, batch.tokens[row, place]]
            for row in rows
            for place in range(int(batch.completion_start[row]), batch.tokens.shape[1])
            if batch.weight[row] and batch.tokens[row, place] != 0
        ]
        means.append(np.mean(losses) if losses else 0.0)
    return np.array(means)


@pytest.mark.long
@pytest.mark.parametrize("method", FAST)
def test_completions_alone_are_clipped_as_by_vmap(method):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        batch = with_completions(random_units(rng, 4, 2, 7, VOCABULARY), rng)
        reference = compiled(Clipping("vmap", 0.5), model(), parameters(seed), batch, 4)
        found = compiled(Clipping(method, 0.5), model(), parameters(seed), batch, 4)
        assert_same(found, reference)
        means = found.sums.loss / np.maximum(found.sums.tokens, 1)
        expected = mean_loss_of_completions(model().apply, parameters(seed), batch, 4)
        np.testing.assert_allclose(means, expected, rtol=1e-5, atol=1e-6)
        # A unit all of whose tokens are prompts has no gradient, and is not dropped.
        assert ((np.asarray(found.sums.tokens) == 0) == (np.asarray(found.norms) == 0)).all()


@pytest.mark.long
def test_a_prompt_changes_a_completion_s_gradient_and_no_prompt_s_loss():
    rng = np.random.default_rng(3)
    batch = with_completions(random_units(rng, 1, 1, 7, VOCABULARY), rng)
    tokens = jnp.asarray([[1, 4, 5, 6, 7, 8, 9, 2]])
    batch = batch._replace(tokens=tokens, weight=jnp.ones(1), completion_start=jnp.array([5]))
    whole = compiled(Clipping("vmap", 0.5), model(), parameters(), batch, 1)
    assert whole.sums.tokens.tolist() == [3.0]
    # Only what is read of a prompt counts: another target within it changes nothing that was not read before.
    other = compiled(Clipping("vmap", 0.5), model(), parameters(), batch._replace(tokens=tokens.at[0, 1].set(9)), 1)
    assert abs(float(other.norms[0] - whole.norms[0])) > 1e-6


@pytest.fixture
def small_blocks(monkeypatch):
    """Logits in blocks that do not divide the vocabulary; programs are compiled anew."""
    monkeypatch.setattr(blocked_head, "MOST_LOGITS", 0)
    monkeypatch.setattr(blocked_head, "BLOCK", 0)
    monkeypatch.setattr(blocked_head, "_LEAST", 20)


@pytest.mark.parametrize(
    ("small", "method"),
    [
        pytest.param(SMALL_MODELS["vaultgemma_1m"], "bookkeeping", id="tied"),
        pytest.param(EVERY_PART_OF_GEMMA, "bookkeeping", id="cap", marks=pytest.mark.long),
        pytest.param(SMALL_MODELS["transformer_tiny"], "bookkeeping", id="bias", marks=pytest.mark.long),
        pytest.param(SMALL_MODELS["cifg_6m"], "ghost", id="not tied", marks=pytest.mark.long),
    ],
)
def test_equals_vmap_with_logits_in_blocks(small, method, small_blocks):
    batch = random_batch()
    batch = batch._replace(weight=batch.weight.at[1].set(0.0))
    whole = Clipping("vmap", 0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked_head, "MOST_LOGITS", 10**9)
        reference = compiled(whole, small.model, small.params, batch, 2)
    assert method_for(method, small.model, small.params, batch) == (method, None)
    found = jax.jit(lambda params, batch: clipped_sum(Clipping(method, 0.5), small.model, params, batch, 2))
    assert_same(found(small.params, batch), reference)


@pytest.mark.long
def test_completions_equal_vmap_with_logits_in_blocks(small_blocks):
    small, rng = SMALL_MODELS["vaultgemma_1m"], np.random.default_rng(0)
    batch = with_completions(random_batch(), rng)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked_head, "MOST_LOGITS", 10**9)
        reference = compiled(Clipping("vmap", 0.5), small.model, small.params, batch, 2)
    found = jax.jit(lambda params, batch: clipped_sum(Clipping("bookkeeping", 0.5), small.model, params, batch, 2))
    assert_same(found(small.params, batch), reference)


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_clipped_gradients_in_blocks_are_no_longer_than_the_clip_norm(small_blocks, precision):
    low = with_precision(EVERY_PART_OF_GEMMA.model, precision)
    with precision_scope(precision):
        clipped = jax.jit(lambda params, batch: clipped_sum(Clipping("bookkeeping", 0.05), low, params, batch, 1))
        for row in range(4):
            batch = jax.tree_util.tree_map(lambda leaf, row=row: leaf[row : row + 1], random_batch())
            assert 0.05 * 0.998 <= length(clipped(EVERY_PART_OF_GEMMA.params, batch).gradient) <= 0.05 * (1 + 1e-6)


def test_norms_and_sums_are_made_of_equally_rounded_factors():
    """The compiler keeps more of a bfloat16 product than its type has, where it makes a norm of it at once."""
    vocabulary, width = 40, 8

    def init(key):
        out = jax.random.normal(key, (vocabulary, width)) * 0.1
        return {"embedding": init_embedding(key, vocabulary, width), "out": {"table": out}}

    head = linear_head_model(
        "head", vocabulary, init, lambda p, t: embed(p["embedding"], t), lambda p: (p["out"], None)
    )
    params = head.init(jax.random.key(0))
    with precision_scope("bfloat16"):
        low = with_precision(head, "bfloat16")
        clipped = jax.jit(lambda params, batch: clipped_sum(Clipping("bookkeeping", 1.0), low, params, batch, 1))
        for seed in range(20):
            rng = np.random.default_rng(seed)
            large = {"table": jnp.full((vocabulary, width), rng.uniform(8, 16))}
            batch = Batch(jnp.asarray(rng.integers(4, vocabulary, (1, 2)), jnp.int32), jnp.ones(1))
            assert 0.99 < length(clipped(params | {"embedding": large}, batch).gradient) <= 1 + 1e-6


def test_large_logits_that_are_made_twice_are_the_same(monkeypatch):
    """A product of another shape is rounded otherwise, by which two of a million that compete change places."""
    vocabulary, width, units, positions, clip_norm = 2100, 128, 2, 5, 1e-3
    monkeypatch.setattr(blocked_head, "MOST_LOGITS", 0)
    # Blocks of 1,024 tokens where as many numbers are made for each as the width, and of all where they are not.
    monkeypatch.setattr(blocked_head, "BLOCK", 1024 * units * width)

    @jax.jit
    def clipped(x, table, batch):
        features = jnp.zeros((vocabulary, width)).at[10].set(x)
        head = linear_head_model("head", vocabulary, lambda _: None, lambda _, t: features[t], lambda p: (p, None))
        return clipped_sum(Clipping("bookkeeping", clip_norm), head, {"table": table}, batch, units)

    for seed in range(12):
        rng = np.random.default_rng(seed)
        x, far = (row / np.linalg.norm(row) for row in rng.normal(size=(2, width)))
        target, other = rng.choice(np.arange(100, vocabulary), 2, replace=False)
        table = np.zeros((vocabulary, width), np.float32)
        table[target] = far * 1e5 * np.sign(far @ x)
        table[other] = table[target] - x * np.log(0.98 / 0.02)
        tokens = np.zeros((units, positions + 1), np.int32)
        tokens[0, :2] = 10, target
        found = clipped(jnp.asarray(x), jnp.asarray(table), Batch(jnp.asarray(tokens), jnp.array([1.0, 0.0])))
        assert 0 < length(found.gradient) <= clip_norm * (1 + 1e-6)


def test_errors_of_logits_whose_normalizer_is_lost_are_as_long_as_they_are(monkeypatch):
    """Beside logits of 10^9 the logarithm of how many there are is nothing, so that each has an error of 1."""
    vocabulary, width, positions = 2**18, 8, 64
    monkeypatch.setattr(blocked_head, "MOST_LOGITS", 0)

    def features(table, tokens):
        half = jnp.arange(tokens.shape[1]) >= tokens.shape[1] // 2
        return jnp.broadcast_to(jnp.where(half[:, None], table[1], table[0]), (*tokens.shape, width))

    @jax.jit
    def clipped(rows, batch):
        params = {"table": jnp.zeros((vocabulary, width)), "bias": jnp.full(vocabulary, 1e9)}
        head = linear_head_model(
            "head", vocabulary, lambda _: None, lambda _, t: features(rows, t), lambda p: (p, p["bias"])
        )
        return clipped_sum(Clipping("bookkeeping", 1.0), head, params, batch, 1)

    for seed in (4, 6, 7):
        rng = np.random.default_rng(seed)
        one = (1 + rng.random(width)) * 1e8
        rows = np.stack([one, -one * (1 + 2.0 ** -rng.integers(12, 24) * rng.normal(size=width))])
        batch = Batch(jnp.full((1, positions + 1), 5, jnp.int32), jnp.ones(1))
        assert length(clipped(jnp.asarray(rows, jnp.float32), batch).gradient) <= 1 + 1e-6


@pytest.mark.long
def test_logits_that_are_not_finite_count_for_nothing_in_blocks(small_blocks):
    small = EVERY_PART_OF_GEMMA
    broken = jax.tree_util.tree_map(np.array, small.params)
    broken["embedding"]["table"][7] = np.inf
    batch = random_batch()
    tokens = np.where(np.asarray(batch.tokens) == 7, 8, batch.tokens)
    found = jax.jit(lambda params, batch: clipped_sum(Clipping("bookkeeping", 0.5), small.model, params, batch, 4))
    result = found(broken, batch._replace(tokens=jnp.asarray(tokens)))
    assert not np.isfinite(result.norms).any()
    assert all(not np.any(leaf) for leaf in jax.tree_util.tree_leaves(result.gradient))


def length(gradient):
    leaves = jax.tree_util.tree_leaves(gradient)
    return np.sqrt(sum(np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in leaves))


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
    low = with_precision(model(), precision)
    with pytest.MonkeyPatch.context() as patch, precision_scope(precision):
        take(form, patch)
        for function in CLIP_FUNCTIONS if every else ["constant"]:
            setting = Clipping(method, 0.3, function)
            clipped = jax.jit(lambda params, batch, setting=setting: clipped_sum(setting, low, params, batch, 1))
            longest = 0.0
            for seed in range(12):
                batch = random_units(np.random.default_rng(seed), 1, 2, 6, VOCABULARY)
                longest = max(longest, length(clipped(parameters(seed), batch).gradient))
            assert longest <= 0.3 * (1 + 1e-6)
            assert longest >= 0.3 * {"constant": 0.998, "automatic": 0.9, "per_layer": 0.5}[function]


def runs_in_test_long(name, method, precision):
    """Whether `make test-long` runs a case: one of each model, all of two."""
    return (method, precision) == ("bookkeeping", "bfloat16") or name in ("cifg_tiny", "gemma")


# In full precision `vmap` is held to bookkeeping above, and ghost clipping has the norms of bookkeeping.
@pytest.mark.parametrize(
    ("name", "method", "precision"),
    [
        pytest.param(*case, marks=pytest.mark.long if runs_in_test_long(*case) else pytest.mark.thorough)
        for name in EVERY_MODEL
        for case in [*((name, method, "bfloat16") for method in METHODS), (name, "bookkeeping", "float32")]
    ],
)
def test_no_models_clipped_gradients_are_longer_than_the_clip_norm(name, method, precision):
    small = EVERY_MODEL[name]
    low = with_precision(small.model, precision)
    with precision_scope(precision):
        clipped = jax.jit(lambda params, batch: clipped_sum(Clipping(method, 0.05), low, params, batch, 1))
        for row in range(4):
            batch = jax.tree_util.tree_map(lambda leaf, row=row: leaf[row : row + 1], random_batch())
            assert length(clipped(small.params, batch).gradient) <= 0.05 * (1 + 1e-6)


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


@pytest.mark.parametrize("width", [700, 4096])
@pytest.mark.parametrize("of_two_uses", [False, True])
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
        return linear_head_model(
            "overflowing", VOCABULARY, init, features, lambda params: (params["table"], params["bias"])
        )

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
    setting = Clipping(method, 1.0, function)
    clipped = jax.jit(lambda batch: clipped_sum(setting, broken, params, batch, 3))
    with pytest.MonkeyPatch.context() as patch:
        take(form, patch)
        found = clipped(Batch(jnp.asarray(tokens), jnp.ones(3)))
    assert np.isfinite(found.norms).tolist() == [True, False, True]
    others = clipped(Batch(jnp.asarray(tokens[[0, 0, 2]]), jnp.array([1.0, 0.0, 1.0])))
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
    clipped = jax.jit(
        lambda at_output, weight: clipped_sum(
            Clipping("bookkeeping", 1.0),
            one_matrix,
            jnp.zeros((width, width)),
            Batch(jnp.asarray(x, jnp.float32), weight, completion_start=at_output),
            units,
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        take(form, patch)
        last = np.arange(units) == units - 1
        broken = clipped(jnp.asarray(np.where(last[:, None, None], np.inf, at_output), jnp.float32), jnp.ones(units))
    assert np.isfinite(broken.norms).tolist() == (~last).tolist()
    absent = clipped(jnp.asarray(np.where(last[:, None, None], 0, at_output), jnp.float32), jnp.asarray(~last, float))
    np.testing.assert_array_equal(broken.gradient, absent.gradient)


@pytest.mark.parametrize("in_blocks", [False, True])
def test_look_ups_that_cancel_are_not_so_long_that_others_beside_them_are_rounded(in_blocks):
    """Between two of 2^15 clip norms that cancel, another unit's sum would have been rounded to 2^-8 of one."""
    vocabulary, width, clip_norm, long = 32, 16, 1.0, 2.0**15
    at_look_ups = jnp.zeros((1, 2, width)).at[0, :, 0].set(jnp.array([long, -long]))

    def loss(table, batch):
        looked_up = jnp.sum(look_up(table, batch.tokens) * at_look_ups, axis=(1, 2))
        if in_blocks:
            scored, _ = blocked_cross_entropy(jnp.zeros((1, 1, width)), table, None, batch.tokens[:, :1], None)
            looked_up += jnp.sum(scored, axis=1)
        return ExampleSums(looked_up, *[jnp.ones(1)] * 6)

    one_table = Model("one table", vocabulary, lambda key: None, lambda params, tokens: tokens, loss)
    batch = Batch(jnp.asarray([[5, 5]], jnp.int32), jnp.ones(1))
    with pytest.MonkeyPatch.context() as patch:
        take("gram", patch)
        table = jnp.zeros((vocabulary, width))
        found = jax.jit(lambda: clipped_sum(Clipping("bookkeeping", clip_norm), one_table, table, batch, 1))()
    assert found.norms[0] < 1
    assert 0 < found.factors[0, 0] * 2 * long <= 2**9 * clip_norm


@pytest.mark.parametrize("form", ["gram", "direct", "one_by_one"])
def test_tokens_that_name_a_row_twice_are_one(form):
    batch = Batch(jnp.asarray([[-1, VOCABULARY - 1, -2, VOCABULARY - 2, 5]], jnp.int32), jnp.ones(1))
    with pytest.MonkeyPatch.context() as patch:
        take(form, patch)
        found = jax.jit(lambda: clipped_sum(Clipping("bookkeeping", 1e-3), model(), parameters(), batch, 1))()
    assert 0.998e-3 < length(found.gradient) <= 1e-3 * (1 + 1e-6)


def outside(use):
    def init(rng):
        return {"table": init_embedding(rng, VOCABULARY, WIDTH), "bias": jnp.zeros(VOCABULARY)}

    return language_model("outside", VOCABULARY, init, use)


@pytest.mark.parametrize(
    "use",
    [
        lambda params, tokens: logits_from_table(params["table"], params["bias"], params["table"]["table"][tokens]),
        lambda params, tokens: embed(params["table"], tokens) @ params["table"]["table"].T,
        lambda params, tokens: (
            jnp.tanh(params["bias"]) + embed(params["table"], tokens) @ jnp.ones((WIDTH, VOCABULARY))
        ),
        lambda params, tokens: params["bias"] * jnp.ones((*tokens.shape, 1)),
        # The axis of examples is not the first one of what comes out of the layer.
        lambda params, tokens: jnp.swapaxes(
            logits_from_table(params["table"], params["bias"], embed(params["table"], tokens.T)), 0, 1
        ),
        lambda params, tokens: jax.lax.scan(
            lambda carry, row: (carry, embed({"table": row[None]}, tokens * 0) @ jnp.ones((WIDTH, VOCABULARY))),
            0,
            params["table"]["table"],
        )[1].sum(0),
    ],
    ids=["index", "matmul", "function", "product", "transposed", "scan"],
)
def test_models_that_cannot_be_followed_are_clipped_by_vmap(use):
    other = outside(use)
    params = other.init(jax.random.key(0))
    batch = random_units(np.random.default_rng(0), 4, 1, 4, VOCABULARY)
    method, reason = method_for("bookkeeping", other, params, batch)
    assert method == "vmap"
    assert "outside" in reason
    compiled(Clipping(method, 1.0), other, params, batch, 4)


@pytest.mark.parametrize(
    ("positions", "shape", "platform", "form"),
    [
        (20, (4096, 128), "cpu", "gram"),
        (64, (4096, 128), "cpu", "one_by_one"),
        (64, (512, 128), "cpu", "direct"),
        (64, (4096, 512), "cpu", "gram"),
        (64, (4096, 128), "gpu", "gram"),
        (64, (4096, 128), "tpu", "gram"),
    ],
)
def test_a_matrix_takes_the_form_that_was_measured_to_be_cheapest(positions, shape, platform, form):
    factors = [factored_gradients.Factors(*(np.zeros((1, positions, width), np.float32) for width in shape))]
    assert factored_gradients._cheapest_form(factors, shape, platform) == form


@pytest.mark.long
def test_no_array_of_the_vocabularys_size_for_each_example():
    vocabulary, width, examples, length = 5000, 32, 16, 4
    big = every_use(vocabulary, width)
    params = big.init(jax.random.key(0))
    batch = random_units(np.random.default_rng(0), examples, 1, length, vocabulary)
    for method in FAST:
        lowered = jax.jit(clipped_sum, static_argnums=(0, 1, 4)).lower(
            Clipping(method, 1.0), big, params, batch, examples
        )
        text = lowered.as_text()
        assert f"{examples}x{length}x{vocabulary}" in text
        assert f"{examples}x{vocabulary}x{width}" not in text


@pytest.mark.parametrize("change", [{"method": "fast"}, {"clip_norm": 1e-18}, {"clip_norm": float("nan")}])
def test_refuses_what_makes_no_sense(change):
    with pytest.raises(ConfigurationError, match=next(iter(change)).replace("method", "clipping")):
        Clipping(**{"method": "vmap", "clip_norm": 1.0} | change)


@pytest.mark.long
def test_refuses_an_unknown_clip_function():
    with pytest.raises(ConfigurationError, match="hard"):
        Clipping("vmap", 1.0, "hard")
