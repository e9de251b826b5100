import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.errors import ConfigurationError
from fedlm.models.families.parameter_errors import ParameterErrors
from fedlm.models.families.reattention import (
    DpFormerConfig,
    NoisyRows,
    ReattentionConfig,
    dpformer,
    reattention_block,
    reattention_transformer,
)
from fedlm.models.families.sasrec import SasRecConfig, sasrec
from fedlm.models.families.transformer import TransformerConfig, transformer
from fedlm.models.layers.attention import ATTENTION_WEIGHTS, softmax_attention_weights
from fedlm.models.layers.basic import layer_norm
from fedlm.models.layers.dropout import with_dropout
from fedlm.models.layers.lora import LoraConfig, lora_model
from fedlm.models.registry import create_model, has_reattention
from tests.models.small_models import VOCABULARY, dropout_keys, made_up_errors, perturbed, random_batch

SIZES = {"vocabulary_size": VOCABULARY, "layers": 2, "heads": 2, "embedding": 16, "mlp": 40}


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def corrected(attention, errors, **sizes):
    config = ReattentionConfig(**SIZES | sizes, attention=attention, parameter_errors=errors)
    return reattention_transformer("m", config)


def parameters():
    return perturbed(transformer("m", TransformerConfig(**SIZES)).init(jax.random.key(0)))


TOKENS = random_batch().tokens[:, :-1]


@pytest.mark.long
@pytest.mark.parametrize("attention", ATTENTION_WEIGHTS)
def test_without_noise_it_is_the_plain_transformer(attention):
    params = parameters()
    expected = transformer("m", TransformerConfig(**SIZES, attention=attention)).apply(params, TOKENS)
    for errors in (None, made_up_errors(VOCABULARY, 0.0)):
        np.testing.assert_array_equal(corrected(attention, errors).apply(params, TOKENS), expected)
    little = corrected(attention, made_up_errors(VOCABULARY, 1e-6)).apply(params, TOKENS)
    np.testing.assert_allclose(little, expected, rtol=1e-4, atol=1e-5)
    much = corrected(attention, made_up_errors(VOCABULARY, 0.1)).apply(params, TOKENS)
    assert np.abs(much - expected).max() > 1e-2


@pytest.mark.long
def test_without_noise_a_dpformer_is_a_sasrec_and_drops_what_it_drops():
    sizes = {"vocabulary_size": VOCABULARY, "layers": 2, "embedding": 16, "mlp": 20, "max_length": 12}
    config, plain = DpFormerConfig(**sizes), sasrec("m", SasRecConfig(**sizes))
    params = perturbed(dpformer("m", config).init(jax.random.key(0)))
    little, much = (
        dpformer("m", dataclasses.replace(config, parameter_errors=made_up_errors(VOCABULARY, ratio)))
        for ratio in (1e-6, 0.1)
    )
    expected = plain.apply(params, TOKENS)
    np.testing.assert_array_equal(dpformer("m", config).apply(params, TOKENS), expected)
    np.testing.assert_allclose(little.apply(params, TOKENS), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(much.apply(params, TOKENS) - expected).max() > 1e-2
    batch = random_batch()._replace(dropout=dropout_keys(4))
    one, other = (with_dropout(model, 0.3).loss(params, batch).loss for model in (little, plain))
    np.testing.assert_allclose(one, other, rtol=1e-4)
    assert np.all(one != little.loss(params, random_batch()).loss)


@pytest.mark.long
def test_scores_lose_half_the_variance_that_noise_gives_them():
    """One layer and one head in float64, from the definition: keys' variances by sums over all entries."""
    errors, e = made_up_errors(VOCABULARY, 0.03), SIZES["embedding"]
    model = corrected("softmax", errors, layers=1, heads=1)
    with jax.enable_x64(True):
        params = jax.tree_util.tree_map(np.float64, perturbed(model.init(jax.random.key(0))))
        found = np.asarray(jax.jit(model.apply)(params, TOKENS))
        x, block = _embedded(params, e), params["blocks"][0]
        y = layer_norm(block["attention_norm"], x)
        variance = e * errors.token_variance().astype(float)[TOKENS] * (1 - 1 / e)
        w, scale = errors.variance, block["attention_norm"]["scale"]
        row = np.mean(scale**2) * variance / (x.var(axis=-1) + variance) + 2 * w
        kernel = block["key"]["kernel"]
        entries = row[..., None, None] * (kernel**2 + w) + w * np.asarray(y)[..., None] ** 2
        of_keys = entries.sum(axis=-2).mean(axis=-1)
        q, k, v = (np.asarray(y @ block[part]["kernel"]) for part in ("query", "key", "value"))
        scores = np.einsum("bqd,bkd->bqk", q, k) / e**0.5
        scores -= np.sum(q**2, axis=-1)[..., None] * of_keys[:, None] / (2 * e)
        mask = np.tril(np.ones((TOKENS.shape[1],) * 2, bool))
        weights = np.where(mask, np.exp(scores), 0)
        weights /= weights.sum(axis=-1, keepdims=True)
        x = x + np.einsum("bqk,bkd->bqd", weights, v) @ block["attention_output"]["kernel"]
        hidden = np.maximum(layer_norm(block["mlp_norm"], x) @ block["mlp_input"]["kernel"], 0)
        x = layer_norm(params["final_norm"], x + hidden @ block["mlp_output"]["kernel"])
        expected = x @ params["embedding"]["table"].T + params["output_bias"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def _embedded(params, width):
    places = np.arange(TOKENS.shape[1])[:, None]
    angle = places * 10_000.0 ** (-np.arange(0, width, 2) / width)
    return params["embedding"]["table"][TOKENS] * width**0.5 + np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


BLOCK_DRAWS = 1000


def plain_weights(scores, variance, mask):
    return softmax_attention_weights(scores, mask)


@pytest.mark.long
def test_noise_after_a_block_is_what_draws_say():
    """End to end, with the same errors behind everything, a token's in several places, and in the weights: over
    a row's tokens the predicted variance is nearly what it is."""
    config = TransformerConfig(**SIZES | {"embedding": 32, "mlp": 64, "layers": 1})
    params = transformer("m", config).init(jax.random.key(1))
    block, table = params["blocks"][0], params["embedding"]["table"][:10] * 32**0.5
    tokens = np.array([4, 5, 6, 4, 7, 8, 9, 5])
    rarity = np.array([1, 1, 1, 1, 1, 2, 4, 8, 16, 32])
    mask = jnp.tril(jnp.ones((len(tokens),) * 2, bool))
    leaves, structure = jax.tree_util.tree_flatten(block)
    sizes = [leaf.size for leaf in leaves]

    def after(block, table, error):
        rows = NoisyRows(table[tokens][None], 32 * jnp.square(error * rarity[tokens])[None])
        return reattention_block(
            block, rows, heads=2, mask=mask, weight_variance=error**2, attention_weights=plain_weights
        )[0]

    def drawn(noise, error):
        of_table, *parts = jnp.split(noise, np.cumsum([table.size, *sizes[:-1]]))
        noisy = [leaf + error * part.reshape(leaf.shape) for leaf, part in zip(leaves, parts, strict=True)]
        scale = 32**0.5 * error * rarity[:, None]
        return after(
            jax.tree_util.tree_unflatten(structure, noisy), table + scale * of_table.reshape(table.shape), error
        ).x[0]

    noise = normal(3, BLOCK_DRAWS, table.size + sum(sizes)).astype(np.float32)
    draw, predict = jax.jit(jax.vmap(drawn, in_axes=(0, None))), jax.jit(after)
    for error in (0.003, 0.02):
        found = np.asarray(draw(noise, error)).var(axis=0).mean(axis=-1)
        predicted = np.asarray(predict(block, table, error).variance[0])
        assert 0.85 < np.mean(predicted) / np.mean(found) < 1.15


def test_no_gradient_passes_through_the_variances():
    """Neither of what comes out of a block, nor of the keys, by which scores are corrected."""
    block, x = parameters()["blocks"][0], jnp.float32(normal(0, 2, 5, SIZES["embedding"]))

    def variances(block, x):
        seen = []

        def weights(scores, variance, mask):
            seen.append(variance / jax.lax.stop_gradient(variance))
            return softmax_attention_weights(scores - variance / 2, mask)

        # Queries alone may have a gradient in what scores are corrected by.
        block = block | {"query": jax.lax.stop_gradient(block["query"])}
        rows = NoisyRows(x, jnp.full((2, 5), 0.1))
        mask = jnp.tril(jnp.ones((5, 5), bool))
        out = reattention_block(
            block, rows, heads=SIZES["heads"], mask=mask, weight_variance=0.01, attention_weights=weights
        )[0]
        by_keys = jnp.sum(jnp.diagonal(seen[0], axis1=2, axis2=3))
        return jnp.sum(out.variance), by_keys

    after, by_keys = (
        jax.jit(jax.grad(lambda block, x, which=which: variances(block, x)[which], argnums=(0, 1)))(block, x)
        for which in (0, 1)
    )
    assert not any(np.any(leaf) for leaf in jax.tree_util.tree_leaves(after))
    assert not np.any(by_keys[0]["key"]["kernel"])


def test_every_constant_is_in_the_fingerprint_and_permuted_relevances_are_the_same_ones():
    errors = ParameterErrors(0.1, (1.0, 0.5))
    others = [ParameterErrors(0.2, (1.0, 0.5)), ParameterErrors(0.1, (1.0, np.nextafter(0.5, 1)))]
    assert len({one.fingerprint() for one in (errors, *others, ParameterErrors(0.1, (1.0,)))}) == 4
    errors = made_up_errors(VOCABULARY)
    other = errors.permuted(3)
    assert sorted(other.relevance) == sorted(errors.relevance)
    assert other == errors.permuted(3)
    assert len({errors.fingerprint(), other.fingerprint(), errors.permuted(4).fingerprint()}) == 3


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda: ParameterErrors(-1.0, (1.0,)), "noise_batch_ratio is -1"),
        (lambda: ParameterErrors(1.0, (1.0, 0.0)), "token 1 is 0.0"),
        (lambda: ParameterErrors(1.0, (float("nan"),)), "token 0 is nan"),
        (lambda: create_model("transformer_tiny+reattention", 50, None, made_up_errors(49)), "of 49 tokens"),
        (lambda: create_model("transformer_tiny", 50, None, made_up_errors(50)), "no re-attention"),
        (
            lambda: lora_model(corrected("softmax", made_up_errors(VOCABULARY)), LoraConfig(rank=2, alpha=2.0)),
            "low-rank",
        ),
    ],
)
def test_constants_that_cannot_be(change, found):
    with pytest.raises(ConfigurationError, match=found):
        change()


def test_named_models_have_the_parameters_of_their_twins():
    name = "transformer_tiny+reattention"
    assert has_reattention(name)
    assert not has_reattention("transformer_tiny")
    plain, found = (
        create_model(*of_model).init(jax.random.key(5))
        for of_model in (("transformer_tiny", 50), (name, 50, None, made_up_errors(50)))
    )
    jax.tree_util.tree_map(np.testing.assert_array_equal, found, plain)
