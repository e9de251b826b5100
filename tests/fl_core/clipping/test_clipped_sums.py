"""Clipped sums are those that `vmap` gives, of every model, method and form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy.clipping import clipped_grad

from fedlm.fl_core.clipping.methods import Clipping, clipped_sum, method_for
from fedlm.fl_core.errors import ConfigurationError
from fedlm.models.base import Batch, given_frozen, language_model
from fedlm.models.layers import blocked_head
from fedlm.models.layers.basic import embed, init_embedding, logits_from_table
from fedlm.models.layers.dropout import with_dropout
from fedlm.models.layers.linear_head import linear_head_model
from fedlm.models.layers.lora import LoraConfig, lora_model
from fedlm.models.precision import precision_scope, with_precision
from tests.fl_core.clipping.compiled_sums import (
    EVERY_MODEL,
    FAST,
    VOCABULARY,
    WIDTH,
    compiled,
    compiled_anew,
    every_use,
    in_blocks,
    length,
    model,
    parameters,
    random_units,
    taking,
)
from tests.models.small_models import (
    ADAPTABLE,
    EVERY_PART_OF_GEMMA,
    PUBLISHED_DECODERS,
    SMALL_MODELS,
    each,
    perturbed,
    random_batch,
)

DROPPING = random_batch()._replace(dropout=jnp.arange(8, dtype=jnp.uint32).reshape(4, 2))


def assert_same(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found.norms, expected.norms, rtol=tolerance)
    np.testing.assert_allclose(found.factors, expected.factors, rtol=20 * tolerance)
    jax.tree_util.tree_map(functools.partial(np.testing.assert_allclose, rtol=1e-6), found.sums, expected.sums)
    apart = jax.tree_util.tree_map(lambda a, b: np.asarray(a) - np.asarray(b), found.gradient, expected.gradient)
    # Factors err on the short side, by as much as the rounding of long products may hide.
    shorter = np.max(np.abs(np.asarray(found.factors) / np.maximum(expected.factors, 1e-30) - 1))
    assert length(apart) <= (tolerance + shorter) * max(length(expected.gradient), 1e-6)


# Each two of method, form and shapes meet.
@pytest.mark.parametrize(
    ("method", "form", "units", "examples", "positions", "clip_norm", "function"),
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
def test_equals_vmap(method, form, units, examples, positions, clip_norm, function):
    setting = Clipping(method, clip_norm, function)
    clipped = compiled_anew(setting, model(), units)
    for seed in range(8):
        batch = random_units(np.random.default_rng(seed), units, examples, positions, VOCABULARY)
        reference = compiled(Clipping("vmap", clip_norm, function), model(), parameters(seed), batch, units)
        with taking(form):
            found = clipped(parameters(seed), batch)
        assert_same(found, reference)


def assert_equals_vmap(model, params, batch, units, clip_norm=0.5):
    """Hold bookkeeping to what it must come to, which is returned."""
    assert method_for("bookkeeping", model, params, batch) == ("bookkeeping", None)
    reference = compiled(Clipping("vmap", clip_norm), model, params, batch, units)
    assert_same(compiled(Clipping("bookkeeping", clip_norm), model, params, batch, units), reference)
    return reference


def all_but_one_long(models):
    for one in models:
        marks = [] if one.id == "transformer_tiny" else [*one.marks, pytest.mark.long]
        yield pytest.param(*one.values, id=one.id, marks=marks)


@pytest.mark.parametrize("small", [*all_but_one_long(each(EVERY_MODEL))])
def test_equals_vmap_for_every_model(small):
    assert_equals_vmap(small.model, small.params, random_batch(), 4)


@pytest.mark.long
@pytest.mark.parametrize("small", each(ADAPTABLE | PUBLISHED_DECODERS, long=("gemma",)))
def test_equals_vmap_for_adapters_of_every_model(small):
    dropout = 0.3 if small.name in ("cifg_tiny", "transformer_tiny") else 0.0
    model = lora_model(small.model, LoraConfig(rank=2, alpha=3.0, dropout=dropout))
    adapters, batch = perturbed(model.init(jax.random.key(1))), DROPPING if dropout else random_batch()
    assert method_for("bookkeeping", model, adapters, batch, frozen=small.params) == ("bookkeeping", None)

    @functools.partial(jax.jit, static_argnums=0)
    def clipped(method, frozen):
        return clipped_sum(Clipping(method, 0.01), given_frozen(model, frozen), adapters, batch, units=4)

    reference = clipped("vmap", small.params)
    assert np.all(reference.factors < 1)
    assert_same(clipped("bookkeeping", small.params), reference)


@pytest.mark.long
@pytest.mark.parametrize("name", ["gru4rec_tiny", "lstm4rec_tiny", "sasrec_tiny"])
def test_equals_vmap_under_dropout(name):
    small = EVERY_MODEL[name]
    reference = assert_equals_vmap(with_dropout(small.model, 0.4), small.params, DROPPING, 2)
    whole = compiled(Clipping("vmap", 0.5), small.model, small.params, DROPPING, 2)
    assert np.all(np.abs(reference.norms / whole.norms - 1) > 1e-3)


def sharp():
    """A model one of whose parameters is a single number, which is clipped by `vmap`."""

    def init(rng):
        return {"table": init_embedding(rng, VOCABULARY, VOCABULARY), "sharpness": jnp.float32(0.5)}

    return language_model("sharp", VOCABULARY, init, lambda p, tokens: p["sharpness"] * embed(p["table"], tokens))


@pytest.mark.parametrize("build", [pytest.param(model, marks=pytest.mark.long), sharp])
def test_vmap_equals_jax_privacy(build):
    other = build()
    params = other.init(jax.random.key(0))
    batch = random_units(np.random.default_rng(1), 5, 1, 6, VOCABULARY)._replace(weight=jnp.ones(5))

    def loss(params, tokens):
        sums = other.loss(params, Batch(tokens, jnp.ones(1)))
        return sums.loss[0] / jnp.maximum(sums.tokens[0], 1.0)

    reference = clipped_grad(loss, l2_clip_norm=0.45, return_grad_norms=True)
    gradient, aux = jax.jit(reference)(params, batch.tokens)
    found = compiled(Clipping("vmap", 0.45), other, params, batch, 5)
    np.testing.assert_allclose(found.norms, aux.grad_norms, rtol=1e-5)
    assert np.sum(found.norms > 0.45) > 0
    jax.tree_util.tree_map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found.gradient, gradient
    )


def with_completions(batch, rng):
    """Let some tokens of each example be a prompt, which may be all that is not PAD."""
    rows, length = batch.tokens.shape
    return batch._replace(completion_start=jnp.asarray(rng.integers(1, length + 1, rows), jnp.int32))


@pytest.mark.long
@pytest.mark.parametrize("method", FAST)
def test_completions_alone_are_clipped_as_by_vmap(method):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        batch = with_completions(random_units(rng, 4, 2, 7, VOCABULARY), rng)
        reference = compiled(Clipping("vmap", 0.5), model(), parameters(seed), batch, 4)
        found = compiled(Clipping(method, 0.5), model(), parameters(seed), batch, 4)
        assert_same(found, reference)
        # A unit all of whose tokens are prompts has no gradient, and is not dropped.
        assert ((np.asarray(found.sums.tokens) == 0) == (np.asarray(found.norms) == 0)).all()


@pytest.mark.parametrize(
    ("small", "method", "completions"),
    [
        pytest.param(SMALL_MODELS["vaultgemma_1m"], "bookkeeping", False, id="tied"),
        pytest.param(SMALL_MODELS["vaultgemma_1m"], "bookkeeping", True, id="completions", marks=pytest.mark.long),
        pytest.param(EVERY_PART_OF_GEMMA, "bookkeeping", False, id="cap", marks=pytest.mark.long),
        pytest.param(SMALL_MODELS["transformer_tiny"], "bookkeeping", False, id="bias"),
        pytest.param(SMALL_MODELS["cifg_6m"], "ghost", False, id="not tied", marks=pytest.mark.long),
    ],
)
def test_equals_vmap_with_logits_in_blocks(small, method, completions):
    batch = random_batch()
    batch = batch._replace(weight=batch.weight.at[1].set(0.0))
    batch = with_completions(batch, np.random.default_rng(0)) if completions else batch
    reference = compiled(Clipping("vmap", 0.5), small.model, small.params, batch, 2)
    with in_blocks():
        assert method_for(method, small.model, small.params, batch) == (method, None)
        assert_same(compiled_anew(Clipping(method, 0.5), small.model, 2)(small.params, batch), reference)


def test_norms_and_sums_are_made_of_equally_rounded_factors():
    """The compiler keeps more of a bfloat16 product than its type has, where it makes a norm of it at once."""
    vocabulary, width = 40, 8

    def init(key):
        out = jax.random.normal(key, (vocabulary, width)) * 0.1
        return {"embedding": init_embedding(key, vocabulary, width), "out": {"table": out}}

    head = linear_head_model(
        "head", vocabulary, init=init, features=lambda p, t: embed(p["embedding"], t), head=lambda p: (p["out"], None)
    )
    params = head.init(jax.random.key(0))
    with precision_scope("bfloat16"):
        low = with_precision(head, "bfloat16")
        clipped = compiled_anew(Clipping("bookkeeping", 1.0), low)
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
        head = linear_head_model(
            "head", vocabulary, init=lambda _: None, features=lambda _, t: features[t], head=lambda p: (p, None)
        )
        return clipped_sum(Clipping("bookkeeping", clip_norm), head, {"table": table}, batch, units=units)

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


@pytest.mark.long
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
        parts = {"features": lambda _, tokens: features(rows, tokens), "head": lambda p: (p, p["bias"])}
        head = linear_head_model("head", vocabulary, init=lambda _: None, **parts)
        return clipped_sum(Clipping("bookkeeping", 1.0), head, params, batch, units=1)

    for seed in (4, 6, 7):
        rng = np.random.default_rng(seed)
        one = (1 + rng.random(width)) * 1e8
        rows = np.stack([one, -one * (1 + 2.0 ** -rng.integers(12, 24) * rng.normal(size=width))])
        batch = Batch(jnp.full((1, positions + 1), 5, jnp.int32), jnp.ones(1))
        assert length(clipped(jnp.asarray(rows, jnp.float32), batch).gradient) <= 1 + 1e-6


@pytest.mark.long
def test_logits_that_are_not_finite_count_for_nothing_in_blocks():
    small = EVERY_PART_OF_GEMMA
    broken = jax.tree_util.tree_map(np.array, small.params)
    broken["embedding"]["table"][7] = np.inf
    batch = random_batch()
    batch = batch._replace(tokens=jnp.where(batch.tokens == 7, 8, batch.tokens))
    with in_blocks():
        found = compiled_anew(Clipping("bookkeeping", 0.5), small.model, 4)(broken, batch)
    assert not np.isfinite(found.norms).any()
    assert all(not np.any(leaf) for leaf in jax.tree_util.tree_leaves(found.gradient))


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


@pytest.mark.long
def test_no_array_of_the_vocabularys_size_for_each_example():
    vocabulary, width, examples, length = 5000, 32, 16, 4
    big = every_use(vocabulary, width)
    params = big.init(jax.random.key(0))
    batch = random_units(np.random.default_rng(0), examples, 1, length, vocabulary)
    for method in FAST:
        lowered = jax.jit(clipped_sum, static_argnums=(0, 1), static_argnames="units").lower(
            Clipping(method, 1.0), big, params, batch, units=examples
        )
        text = lowered.as_text()
        assert f"{examples}x{length}x{vocabulary}" in text
        assert f"{examples}x{vocabulary}x{width}" not in text


@pytest.mark.parametrize(
    "change", [{"method": "fast"}, {"clip_norm": 1e-18}, {"clip_norm": np.nan}, {"function": "hard"}]
)
def test_refuses_what_makes_no_sense(change):
    (value,) = change.values()
    with pytest.raises(ConfigurationError, match=f"is {value!r}, but"):
        Clipping(**{"method": "vmap", "clip_norm": 1.0} | change)
