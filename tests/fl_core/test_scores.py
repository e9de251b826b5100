import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_core.scores import DEFINITIONS, Scores, evaluate
from models.base import Batch, language_model
from models.special_tokens import BOS_ID, EOS_ID, OOV_ID, PAD_ID

VOCABULARY = 8
LOGITS = jnp.log(jnp.array([0.0625, 0.0625, 0.25, 0.125, 0.25, 0.125, 0.0625, 0.0625]))
# Every position predicts the same distribution, in which tokens 2 (EOS) and 4 are the most likely.
MODEL = language_model(
    "fixed", VOCABULARY, lambda key: {}, lambda params, tokens: jnp.broadcast_to(LOGITS, (*tokens.shape, VOCABULARY))
)


def batch(*rows, weight=None):
    tokens = jnp.array([[BOS_ID, *row] for row in rows], jnp.int32)
    return Batch(tokens, jnp.ones(len(rows)) if weight is None else jnp.array(weight, jnp.float32))


def test_scores_count_exactly_the_targets_that_their_definitions_name():
    scores = evaluate(MODEL, {}, [batch([4, OOV_ID, EOS_ID, PAD_ID], [5, 4, 6, EOS_ID])])
    # Targets: 4, OOV, EOS | 5, 4, 6, EOS; probabilities 1/4, 1/8, 1/4 | 1/8, 1/4, 1/16, 1/4.
    np.testing.assert_allclose(scores.loss, np.log(2) * (2 + 3 + 2 + 3 + 2 + 4 + 2) / 7, rtol=1e-6)
    np.testing.assert_allclose(scores.perplexity, 2 ** ((2 + 3 + 3 + 2 + 4) / 5), rtol=1e-5)
    # EOS comes first among the two most likely, so no scored target is predicted.
    assert scores.accuracy == scores.in_vocabulary_accuracy == 0


def test_in_vocabulary_accuracy_leaves_oov_targets_out():
    sharp = language_model(
        "sharp",
        VOCABULARY,
        lambda key: {},
        lambda params, tokens: jnp.zeros((*tokens.shape, VOCABULARY)).at[..., 4].set(1.0),
    )
    scores = evaluate(sharp, {}, [batch([4, OOV_ID, 5, 4, EOS_ID])])
    assert scores.accuracy == 2 / 4
    assert scores.in_vocabulary_accuracy == pytest.approx(2 / 3)


def test_rows_of_weight_zero_and_the_cut_into_batches_change_nothing():
    rows = [[4, 5, EOS_ID], [6, EOS_ID, PAD_ID], [4, 4, 4]]
    whole = evaluate(MODEL, {}, [batch(*rows)])
    filled = evaluate(MODEL, {}, [batch(*rows[:2]), batch(rows[2], [7, 7, 7], weight=[1, 0])])
    np.testing.assert_allclose(whole, filled, rtol=1e-6)


def test_without_targets_scores_are_nan():
    for batches in ([], [batch([4, 4], weight=[0])], [batch([PAD_ID, PAD_ID])]):
        assert all(np.isnan(score) for score in evaluate(MODEL, {}, batches))


def test_batches_may_be_spread_over_devices():
    sharding = jax.sharding.NamedSharding(jax.make_mesh((4,), ("x",)), jax.sharding.PartitionSpec("x"))
    one = batch(*[[4, 5, index % 4 + 3] for index in range(8)])
    np.testing.assert_allclose(evaluate(MODEL, {}, [jax.device_put(one, sharding)]), evaluate(MODEL, {}, [one]))


def test_every_score_is_defined():
    assert set(DEFINITIONS) == set(Scores._fields)
