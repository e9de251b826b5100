"""Dropout of models, with a key for every example."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.errors import ConfigurationError
from fedlm.models.families.recurrent_recommenders import RecurrentRecommenderConfig, gru4rec, lstm4rec
from fedlm.models.families.sasrec import SasRecConfig, sasrec
from fedlm.models.layers.dropout import dropping, kept, with_dropout
from fedlm.models.layers.lora import LoraConfig, lora_model
from fedlm.models.precision import with_precision
from tests.models import numpy_reference as reference
from tests.models.small_models import SMALL_MODELS, perturbed, random_batch

RATE, VOCABULARY = 0.4, 29
RECURRENT = RecurrentRecommenderConfig(vocabulary_size=VOCABULARY, embedding=6, hidden=7, layers=2)
UNTIED = dataclasses.replace(RECURRENT, tied=False, layers=1)
SASREC = SasRecConfig(vocabulary_size=VOCABULARY, heads=2, embedding=6, mlp=5, max_length=8)
recurrent = reference.recurrent_recommender_logits
MODELS = {
    "gru4rec": (gru4rec, RECURRENT, functools.partial(recurrent, layer=reference.gru)),
    "lstm4rec": (lstm4rec, UNTIED, functools.partial(recurrent, layer=reference.lstm)),
    "sasrec": (sasrec, SASREC, functools.partial(reference.sasrec_logits, heads=2)),
    "sasrec+tied=false": (
        sasrec,
        dataclasses.replace(SASREC, tied=False),
        functools.partial(reference.sasrec_logits, heads=2),
    ),
}
BATCH = random_batch((9, 2, 0, 5), 6, VOCABULARY)


def keys(number, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(0, 2**32, (number, 2), dtype=np.uint32))


@functools.cache
def dropped(name):
    """A model that drops, its parameters, and its compiled loss of a batch."""
    build, config, _ = MODELS[name]
    model = with_dropout(build(name, config), RATE)
    params = jax.tree_util.tree_map(jnp.asarray, perturbed(model.init(jax.random.key(3))))
    return model, params, jax.jit(lambda batch: model.loss(params, batch).loss)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_the_loss_is_that_of_what_is_left(name):
    """Every place of the model has a mask of its own, and no more is dropped."""
    (_, params, losses), logits_of = dropped(name), MODELS[name][2]
    batch = BATCH._replace(dropout=keys(4))

    @functools.cache
    def mask(place, shape):
        return np.asarray(kept(RATE, batch.dropout, (1 << 16) + place)((4, *shape), jnp.float32), np.float64)

    def drop(x, row, place):
        return x * mask(place, x.shape)[row]

    params = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf, np.float64), params)
    logits = logits_of(params, np.asarray(batch.tokens[:, :-1]), drop=drop)
    log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(log_softmax, np.asarray(batch.targets)[..., None], -1)[..., 0]
    expected = -np.sum(np.where(batch.targets != 0, picked, 0), axis=-1)
    np.testing.assert_allclose(losses(batch), expected, rtol=1e-4)


def test_what_is_dropped_of_a_row_follows_from_its_key_alone():
    _, _, losses = dropped("gru4rec")
    batch = BATCH._replace(dropout=keys(4))
    found, order = losses(batch), jnp.array([2, 0, 3, 1])
    moved = losses(batch._replace(tokens=batch.tokens[order], dropout=batch.dropout[order]))
    np.testing.assert_allclose(moved, found[order], rtol=1e-6)
    assert np.all(np.abs(found - losses(batch._replace(dropout=keys(4, seed=1)))) > 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_without_keys_nothing_is_dropped(name):
    model, params, losses = dropped(name)
    build, config, _ = MODELS[name]
    plain = build(name, config)
    # A model that is not told to drops nothing, whatever keys there are.
    for batch in (BATCH, BATCH._replace(dropout=keys(4))):
        np.testing.assert_allclose(jax.jit(plain.loss)(params, batch).loss, losses(BATCH), rtol=1e-6)
    assert with_dropout(plain, 0.0) is plain
    tokens = BATCH.tokens[:, :-1]
    np.testing.assert_array_equal(model.apply(params, tokens), plain.apply(params, tokens))


def test_rows_and_places_have_masks_of_their_own_whose_mean_is_one():
    """Shares of 240,000 draws are off by 0.01, ten standard deviations, with a probability below 1e-20."""
    drop = dropping(RATE, keys(600))
    masks = [np.asarray(drop(jnp.ones((600, 20, 20)), place)) for place in (0, 1)]
    for mask in masks:
        np.testing.assert_allclose(mask[mask > 0], 1 / (1 - RATE), rtol=1e-6)
        assert abs(np.mean(mask == 0) - RATE) < 0.01
        assert abs(np.mean((mask[::2] == 0) & (mask[1::2] == 0)) - RATE**2) < 0.01
    assert abs(np.mean((masks[0] == 0) & (masks[1] == 0)) - RATE**2) < 0.01


def test_a_model_without_dropout_and_a_share_of_all_are_refused():
    with pytest.raises(ConfigurationError, match=r"dropout is 0\.1, but the model 'cifg_tiny' has none; .* sasrec"):
        with_dropout(SMALL_MODELS["cifg_tiny"].model, 0.1)


@pytest.mark.long
def test_adapters_and_the_model_that_they_are_of_drop_by_themselves():
    small = SMALL_MODELS["sasrec_tiny"]
    batch = random_batch()._replace(dropout=keys(4))
    found = {}
    for rate, own in ((0.0, 0.0), (0.4, 0.0), (0.0, 0.4), (0.4, 0.4)):
        model = lora_model(with_dropout(small.model, own), LoraConfig(rank=2, alpha=3.0, dropout=rate))
        adapters = perturbed(model.init(jax.random.key(1)))
        loss = jax.jit(
            lambda frozen, model=model, adapters=adapters: model.with_frozen(frozen).loss(adapters, batch).loss
        )
        found[rate, own] = np.asarray(loss(small.params))
    pairs = [(one, other) for one in found for other in found if one < other]
    assert all(np.all(np.abs(found[one] - found[other]) > 1e-5) for one, other in pairs)


@pytest.mark.long
def test_a_precision_keeps_dropout():
    small = SMALL_MODELS["sasrec_tiny"]
    batch, params = random_batch()._replace(dropout=keys(4)), jax.tree_util.tree_map(jnp.asarray, small.params)
    one = with_dropout(with_precision(small.model, "bfloat16"), RATE).loss(params, batch).loss
    other = with_precision(with_dropout(small.model, RATE), "bfloat16").loss(params, batch).loss
    np.testing.assert_array_equal(one, other)
    assert np.all(one != small.model.loss(params, batch).loss)
