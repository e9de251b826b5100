"""Low-rank adapters of every registered architecture."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.base import given_frozen, language_model, parameter_count
from fedlm.models.errors import ConfigurationError
from fedlm.models.layers.lora import LORA_A, LORA_B, LoraConfig, lora_model, merge
from fedlm.models.layers.parameter_uses import record_uses
from fedlm.models.registry import create_model
from tests.models.small_models import (
    ADAPTABLE,
    PUBLISHED_DECODERS,
    SMALL_MODELS,
    dropout_keys,
    each,
    perturbed,
    random_batch,
)

leaves = jax.tree_util.tree_leaves
CONFIG = LoraConfig(rank=2, alpha=3.0)


@functools.cache
def adapted(small, config=CONFIG):
    model = lora_model(small.model, config)
    return model, perturbed(model.init(jax.random.key(1)))


def on_device(small):
    return jax.tree_util.tree_map(jnp.asarray, small.params)


@pytest.fixture(params=each(ADAPTABLE | PUBLISHED_DECODERS, long=("gemma",)))
def small(request):
    return request.param


@pytest.mark.long
def test_loss_and_gradient_are_those_of_the_merged_matrices(small):
    """Of `K + s A B` the gradient by A is `s G B^T` and by B `s A^T G`, where G is that by K."""
    model, adapters = adapted(small)
    batch = random_batch()

    def loss(adapters, frozen):
        losses = given_frozen(model, frozen).loss(adapters, batch).loss
        return jnp.sum(losses), losses

    (_, found), of_adapters = jax.jit(jax.value_and_grad(loss, has_aux=True))(adapters, small.params)
    by_matrix = jax.jit(jax.grad(lambda params: jnp.sum(small.model.loss(params, batch).loss)))
    merged = merge(CONFIG, small.params, adapters)
    np.testing.assert_allclose(found, small.sums(merged, batch).loss, rtol=1e-5)
    assert np.abs(found - small.sums(small.params, batch).loss).max() > 1e-3

    def check(found, own, whole):
        if isinstance(found, dict) and LORA_A in found:
            scaled = CONFIG.scale * np.asarray(whole["kernel"])
            expected = {LORA_A: scaled @ np.asarray(own[LORA_B]).T, LORA_B: np.asarray(own[LORA_A]).T @ scaled}
            for name, leaf in expected.items():
                np.testing.assert_allclose(found[name], leaf, rtol=1e-3, atol=1e-4 * np.abs(leaf).max())
        else:
            for key in found if isinstance(found, dict) else range(len(found)):
                check(found[key], own[key], whole[key])

    check(of_adapters, adapters, by_matrix(merged))


def test_every_dense_layer_has_an_adapter_which_changes_nothing_at_first(small):
    model, adapters = adapted(small)
    kernels = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(small.params) if path[-1].key == "kernel"]
    assert sum(leaf.size for leaf in leaves(adapters)) == sum(2 * sum(leaf.shape) for leaf in kernels)
    assert parameter_count(model) == sum(leaf.size for leaf in leaves(adapters))
    fresh = jax.jit(model.init)(jax.random.key(3))
    jax.tree_util.tree_map(np.testing.assert_array_equal, merge(CONFIG, small.params, fresh), small.params)
    drawn = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(fresh) if path[-1].key == LORA_A]
    assert all(np.ptp(leaf) > 0 and np.max(np.abs(leaf)) <= leaf.shape[0] ** -0.5 for leaf in drawn)


def test_only_the_matrices_that_are_named_have_adapters_and_without_the_frozen_parameters_there_is_no_loss():
    config = dataclasses.replace(CONFIG, matrices=("query", "value"))
    model, adapters = adapted(SMALL_MODELS["transformer_tiny"], config)
    assert {path[-2].key for path, _ in jax.tree_util.tree_leaves_with_path(adapters)} == {"query", "value"}
    with pytest.raises(TypeError, match="needs the frozen parameters"):
        model.loss(adapters, random_batch())


def test_adapters_that_do_not_fit_are_refused():
    for change, message in (
        ({"matrices": ("querry",)}, "querry, but transformer_tiny has attention_output, key, mlp_input"),
        ({"rank": 17}, "lora_rank is 17, but attention_output of transformer_tiny is a matrix of 16 by 16; give at mo"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            lora_model(SMALL_MODELS["transformer_tiny"].model, dataclasses.replace(CONFIG, **change))


def test_a_matrix_that_an_adapter_would_not_reach_is_refused():
    def init(rng):
        return {"mix": {"kernel": jax.random.normal(rng, (9, 9))}}

    model = language_model("bigrams", 9, init, lambda params, tokens: params["mix"]["kernel"][tokens])
    with pytest.raises(ConfigurationError, match=r"does not use its matrix .*mix"):
        lora_model(model, CONFIG)
    model = language_model("none", 9, lambda rng: jnp.zeros((9, 9)), lambda params, tokens: params[tokens])
    with pytest.raises(ConfigurationError, match="none has no dense layer"):
        lora_model(model, CONFIG)


@pytest.mark.long
def test_frozen_parameters_are_arguments_of_the_program_and_have_no_gradient():
    """A literal of 16 MB would be in the program's text."""
    base = create_model("transformer_1m", 20_000)
    shapes = jax.eval_shape(base.init, jax.random.key(0))
    model = lora_model(base, CONFIG)
    adapters = jax.eval_shape(model.init, jax.random.key(0))

    def gradient(adapters, frozen):
        bound = given_frozen(model, frozen)
        return jax.grad(lambda adapters: jnp.sum(bound.loss(adapters, random_batch()).loss))(adapters)

    lowered = jax.jit(gradient).lower(adapters, shapes)
    assert len(lowered.as_text()) < 1_000_000
    frozen = sum(leaf.size for leaf in leaves(shapes))
    compiled = lowered.compile().memory_analysis()
    assert compiled.argument_size_in_bytes >= 4 * frozen
    # Among the temporaries is no gradient of the table, which is half of all parameters.
    assert compiled.temp_size_in_bytes < 4 * shapes["embedding"]["table"].size


# Dropout

DROPPING = dataclasses.replace(CONFIG, dropout=0.4)


@pytest.mark.long
def test_what_is_dropped_of_a_row_follows_from_its_key_alone_and_without_keys_nothing_is():
    small, plain = SMALL_MODELS["cifg_tiny"], random_batch()
    model, adapters = adapted(small, DROPPING)
    program = jax.jit(lambda frozen, batch: given_frozen(model, frozen).loss(adapters, batch).loss)
    loss = functools.partial(program, small.params)
    batch, order = plain._replace(dropout=dropout_keys(4)), jnp.array([2, 0, 3, 1])
    found = loss(batch)
    moved = loss(batch._replace(tokens=batch.tokens[order], dropout=batch.dropout[order]))
    np.testing.assert_allclose(moved, found[order], rtol=1e-6)
    assert np.all(np.abs(found - loss(batch._replace(dropout=dropout_keys(4, seed=1)))) > 1e-5)
    whole = given_frozen(adapted(small)[0], small.params).loss(adapters, plain).loss
    np.testing.assert_allclose(loss(plain), whole, rtol=1e-5)


@pytest.mark.long
def test_rows_and_layers_have_masks_of_their_own_whose_mean_is_one():
    small = SMALL_MODELS["transformer_tiny"]
    model, adapters = adapted(small, DROPPING)
    batch = random_batch((7,) * 600)._replace(dropout=dropout_keys(600))
    run = record_uses(given_frozen(model, on_device(small)).loss, adapters, batch)
    # What comes into the A of queries and keys is the same, but for what is dropped.
    names = [path[-2].key for path, _ in jax.tree_util.tree_leaves_with_path(adapters)]
    inputs = {names[use.parameter]: np.asarray(use.inputs) for use in run.uses if use.inputs.shape[-1] == 16}
    dropped = {name: inputs[name] == 0 for name in ("query", "key", "value")}
    for mask in dropped.values():
        assert abs(mask.mean() - DROPPING.dropout) < 0.01
        assert abs((mask[::2] & mask[1::2]).mean() - DROPPING.dropout**2) < 0.01
    assert abs((dropped["query"] & dropped["key"]).mean() - DROPPING.dropout**2) < 0.01
    kept = ~dropped["query"] & ~dropped["key"]
    np.testing.assert_allclose(inputs["query"][kept], inputs["key"][kept])
    whole = given_frozen(adapted(small)[0], on_device(small))
    plain = record_uses(whole.loss, adapters, batch)
    x = next(np.asarray(use.inputs) for use in plain.uses if names[use.parameter] == "query")
    np.testing.assert_allclose(inputs["query"][kept], x[kept] / (1 - DROPPING.dropout), rtol=1e-5)
