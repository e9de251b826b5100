"""The output layer block by block, held to the one whose logits are whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.layers import blocked_head
from fedlm.models.layers.basic import soft_cap
from fedlm.models.layers.blocked_head import blocked_cross_entropy
from fedlm.models.losses import cross_entropy, first_of_highest
from tests.models.small_models import EVERY_PART_OF_GEMMA, SMALL_MODELS, random_batch

WIDTH, VOCABULARY, SHAPE = 6, 11, (3, 4)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 4 tokens, which do not divide the vocabulary."""
    monkeypatch.setattr(blocked_head, "MOST_LOGITS", 0)
    monkeypatch.setattr(blocked_head, "BLOCK", 0)
    monkeypatch.setattr(blocked_head, "_LEAST", 4)


def inputs():
    rng = np.random.default_rng(0)
    x, table, bias = (
        jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((*SHAPE, WIDTH), (VOCABULARY, WIDTH), VOCABULARY)
    )
    return (x, table, bias), jnp.asarray(rng.integers(0, VOCABULARY, SHAPE)), jnp.asarray(rng.normal(size=SHAPE))


def whole(x, table, bias, targets, cap):
    logits = soft_cap(x @ table.T + bias, cap)
    return cross_entropy(logits, targets), first_of_highest(logits, targets)


@pytest.mark.parametrize("cap", [None, 2.0])
def test_values_and_gradients_are_those_of_whole_logits(small_blocks, cap):
    arrays, targets, weights = inputs()

    def run(scores):
        def loss(*arrays):
            losses, correct = scores(*arrays, targets, cap=cap)
            return jnp.sum(losses * weights), (losses, correct)

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays)

    found, expected = run(blocked_cross_entropy), run(whole)
    np.testing.assert_array_equal(found[1][1], expected[1][1])
    jax.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)


def test_of_equal_logits_the_first_is_the_prediction(small_blocks):
    x, table = jnp.ones((1, VOCABULARY, WIDTH)), jnp.ones((VOCABULARY, WIDTH))
    _, correct = blocked_cross_entropy(x, table, None, jnp.arange(VOCABULARY)[None], cap=None)
    np.testing.assert_array_equal(correct[0], np.arange(VOCABULARY) == 0)


@pytest.mark.long
@pytest.mark.parametrize("small", [SMALL_MODELS["transformer_tiny"], EVERY_PART_OF_GEMMA], ids=["bias", "cap"])
def test_sums_of_models_are_the_same(small_blocks, small):
    expected = small.sums(small.params, random_batch())
    found = jax.jit(lambda params, batch: small.model.loss(params, batch))(small.params, random_batch())
    jax.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


@pytest.mark.long
def test_no_logits_of_all_tokens_are_in_memory():
    positions, vocabulary, width = 1024, 256_000, 64

    def loss(x, table, targets):
        return jnp.sum(blocked_cross_entropy(x, table, None, targets, cap=None)[0])

    shapes = [((1, positions, width), jnp.float32), ((vocabulary, width), jnp.float32), ((1, positions), jnp.int32)]
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*(jax.ShapeDtypeStruct(*one) for one in shapes)).compile()
    assert blocked_head.needs_blocks(positions, vocabulary)
    assert compiled.memory_analysis().temp_size_in_bytes < positions * vocabulary * 4 / 2
