"""Dropout of models, with a key for every example."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from fedlm.models.errors import ConfigurationError
from fedlm.models.families.recurrent_recommenders import RecurrentRecommenderConfig, gru4rec, lstm4rec
from fedlm.models.families.sasrec import SasRecConfig, sasrec
from fedlm.models.layers.dropout import dropping, kept, with_dropout
from fedlm.models.layers.lora import LoraConfig, lora_model
from fedlm.models.precision import with_precision
from tests.models.lines_of_the_page import lines_of_the_page, tensors_of
from tests.models.small_models import SMALL_MODELS, dropout_keys, perturbed, random_batch

RATE, VOCABULARY = 0.4, 29
RECURRENT = RecurrentRecommenderConfig(vocabulary_size=VOCABULARY, embedding=6, hidden=7, layers=2)
SASREC = SasRecConfig(vocabulary_size=VOCABULARY, heads=2, embedding=6, mlp=5, max_length=8)
MODELS = {
    "gru4rec": (gru4rec, RECURRENT),
    "lstm4rec": (lstm4rec, dataclasses.replace(RECURRENT, tied=False, layers=1)),
    "sasrec": (sasrec, SASREC),
}
BATCH = random_batch((9, 2, 0, 5), 6, VOCABULARY)
DROPPING = BATCH._replace(dropout=dropout_keys(4))


@functools.cache
def dropped(name):
    """A model that drops, its parameters, and its compiled loss of a batch."""
    build, config = MODELS[name]
    model = with_dropout(build(name, config), RATE)
    params = jax.tree_util.tree_map(jnp.asarray, perturbed(model.init(jax.random.key(3))))
    return model, params, jax.jit(lambda batch: model.loss(params, batch).loss)


def lines_that_drop(layers, mask):
    """The page's lines with masks, each of a place of its own, wherever the papers drop."""
    page = lines_of_the_page()
    dense, attention, blocks = page["dense"], page["attention"], page["blocks"]

    def drop(x, place):
        return x * mask(place, x.shape)

    def dense_that_drops(t, name, x):
        before = {f"recurrent.{layer}.input": layer for layer in range(layers)} | {"projection": layers}
        after = {f"blocks.{layer}.mlp_output": 3 * layer + 3 for layer in range(layers)}
        found = dense(t, name, drop(x, before[name]) if name in before else x)
        return drop(found, after[name]) if name in after else found

    def attention_that_drops(t, block, x, heads, share):
        place = 3 * int(block.removeprefix("blocks.")) + 1
        of_heads = iter(mask(place, (heads, len(x), len(x))))
        return drop(attention(t, block, x, heads, lambda scores: share(scores) * next(of_heads)), place + 1)

    page |= {"dense": dense_that_drops, "attention": attention_that_drops}
    page["blocks"] = lambda t, x, *more: blocks(t, drop(x, 0), *more)
    return page


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_the_loss_is_that_of_what_is_left(name):
    """Every place of the model has a mask of its own, and no more is dropped."""
    (_, params, losses), (_, config), expected = dropped(name), MODELS[name], []
    for row, tokens in enumerate(np.asarray(BATCH.tokens[:, :-1])):

        def mask(place, shape, row=row):
            return np.asarray(kept(RATE, DROPPING.dropout, (1 << 16) + place)((4, *shape), jnp.float32))[row]

        logits = lines_that_drop(config.layers, mask)[name](tensors_of(params), tokens, dataclasses.asdict(config))
        targets = np.asarray(BATCH.targets[row])
        losses_of_row = -scipy.special.log_softmax(logits, axis=-1)[np.arange(len(targets)), targets]
        expected.append(np.sum(losses_of_row[targets != 0]))
    np.testing.assert_allclose(losses(DROPPING), expected, rtol=1e-4)


def test_what_is_dropped_of_a_row_follows_from_its_key_alone():
    _, _, losses = dropped("gru4rec")
    found, order = losses(DROPPING), jnp.array([2, 0, 3, 1])
    moved = losses(DROPPING._replace(tokens=DROPPING.tokens[order], dropout=DROPPING.dropout[order]))
    np.testing.assert_allclose(moved, found[order], rtol=1e-6)
    assert np.all(np.abs(found - losses(DROPPING._replace(dropout=dropout_keys(4, seed=1)))) > 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_without_keys_nothing_is_dropped(name):
    (model, params, losses), (build, config) = dropped(name), MODELS[name]
    plain = build(name, config)
    # A model that is not told to drops nothing, whatever keys there are.
    for batch in (BATCH, DROPPING):
        np.testing.assert_allclose(jax.jit(plain.loss)(params, batch).loss, losses(BATCH), rtol=1e-6)
    assert with_dropout(plain, 0.0) is plain
    tokens = BATCH.tokens[:, :-1]
    np.testing.assert_array_equal(model.apply(params, tokens), plain.apply(params, tokens))


def test_rows_and_places_have_masks_of_their_own_whose_mean_is_one():
    """Shares of 240,000 draws are off by 0.01, ten standard deviations, with a probability below 1e-20."""
    drop = dropping(RATE, dropout_keys(600))
    masks = [np.asarray(drop(jnp.ones((600, 20, 20)), place)) for place in (0, 1)]
    for mask in masks:
        np.testing.assert_allclose(mask[mask > 0], 1 / (1 - RATE), rtol=1e-6)
        assert abs(np.mean(mask == 0) - RATE) < 0.01
        assert abs(np.mean((mask[::2] == 0) & (mask[1::2] == 0)) - RATE**2) < 0.01
    assert abs(np.mean((masks[0] == 0) & (masks[1] == 0)) - RATE**2) < 0.01


def test_a_model_without_dropout_is_refused():
    with pytest.raises(ConfigurationError, match=r"dropout is 0\.1, but the model 'cifg_tiny' has none; .* sasrec"):
        with_dropout(SMALL_MODELS["cifg_tiny"].model, 0.1)


@pytest.mark.long
def test_adapters_and_the_model_that_they_are_of_drop_by_themselves():
    small = SMALL_MODELS["sasrec_tiny"]
    batch = random_batch()._replace(dropout=dropout_keys(4))
    found = []
    for rate, own in ((0.0, 0.0), (0.4, 0.0), (0.0, 0.4), (0.4, 0.4)):
        model = lora_model(with_dropout(small.model, own), LoraConfig(rank=2, alpha=3.0, dropout=rate))
        adapters = perturbed(model.init(jax.random.key(1)))
        loss = jax.jit(lambda frozen, model=model, own=adapters: model.with_frozen(frozen).loss(own, batch).loss)
        found.append(np.asarray(loss(small.params)))
    assert np.min(np.abs(np.diff(np.sort(found, axis=0), axis=0))) > 1e-5


@pytest.mark.long
def test_a_precision_keeps_dropout():
    small = SMALL_MODELS["sasrec_tiny"]
    batch, params = random_batch()._replace(dropout=dropout_keys(4)), jax.tree_util.tree_map(jnp.asarray, small.params)
    one = with_dropout(with_precision(small.model, "bfloat16"), RATE).loss(params, batch).loss
    other = with_precision(with_dropout(small.model, RATE), "bfloat16").loss(params, batch).loss
    np.testing.assert_array_equal(one, other)
    assert np.all(one != small.model.loss(params, batch).loss)
