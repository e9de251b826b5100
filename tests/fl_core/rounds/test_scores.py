import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.rounds import scores as scores_module
from fedlm.fl_core.rounds.scores import Scores, evaluate, evaluate_clients, scores_of_each, sum_by_client
from fedlm.models.base import Batch, language_model
from fedlm.models.losses import ExampleSums
from fedlm.models.special_tokens import BOS_ID, EOS_ID, OOV_ID, PAD_ID

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

    # The other model says 4 alone; accuracy among words leaves unknown ones out.
    peak = jnp.zeros(VOCABULARY).at[4].set(1.0)
    sharp = language_model("sharp", VOCABULARY, lambda key: {}, lambda _, t: jnp.broadcast_to(peak, (*t.shape, 8)))
    scores = evaluate(sharp, {}, [batch([4, OOV_ID, 5, 4, EOS_ID])])
    assert (scores.accuracy, scores.in_vocabulary_accuracy) == (2 / 4, pytest.approx(2 / 3))


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


def some_batches(count, rows=4):
    rng = np.random.default_rng(0)
    return [batch(*rng.integers(2, VOCABULARY, (rows, 5)).tolist()) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 3, 40])
def test_totals_are_the_same_bits_with_and_without_clients(count):
    """40 batches are more than are in flight at once; the totals are sums in float64 over all rows in order."""
    batches = some_batches(count)
    owners = np.arange(4 * count) // 3
    scores, found = evaluate_clients(MODEL, {}, batches, owners)
    assert scores == evaluate(MODEL, {}, batches)
    rows = [scores_module._weighted_sums(MODEL, {}, one) for one in batches]
    totals = [np.concatenate(column).sum(dtype=np.float64) for column in zip(*rows, strict=True)]
    by_hand = ExampleSums(*totals)
    losses = np.concatenate([row.loss for row in rows]).astype(np.float64)
    np.testing.assert_allclose(
        found.sums.loss, [losses[owners == client].sum() for client in found.clients], rtol=1e-12
    )
    assert scores.loss == float(by_hand.loss) / float(by_hand.tokens)
    assert scores.perplexity == float(np.exp(float(by_hand.scored_loss) / float(by_hand.scored_tokens)))


def test_each_client_is_scored_on_its_own_rows():
    batches = [batch([4, 5, EOS_ID], [6, 6, 6]), batch([5, OOV_ID, 4], [7, 7, 7], weight=[1, 0])]
    _, found = evaluate_clients(MODEL, {}, batches, np.array([9, 2, 9]))
    assert found.clients.tolist() == [2, 9]
    assert found.examples.tolist() == [1, 2]
    scores = scores_of_each(found.sums)
    alone = {2: [batch([6, 6, 6])], 9: [batch([4, 5, EOS_ID], [5, OOV_ID, 4])]}
    for row, client in enumerate(found.clients):
        expected = evaluate(MODEL, {}, alone[client])
        np.testing.assert_allclose([scores[name][row] for name in Scores._fields], expected, rtol=1e-6)


def test_clients_without_targets_have_no_score_and_disturb_nobody():
    _, found = evaluate_clients(MODEL, {}, [batch([PAD_ID, PAD_ID], [4, 4])], np.array([0, 1]))
    scores = scores_of_each(found.sums)
    assert all(np.isnan(values[0]) and np.isfinite(values[1]) for values in scores.values())

    with pytest.raises(ValueError, match="2 rows for 3 owners"):
        sum_by_client(ExampleSums(*np.ones((7, 2))), np.array([0, 0, 1]))
