import jax
import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.models.registry import create_model
from fedlm.models.special_tokens import PAD_ID
from fedlm.simulations.evaluation.memorization.extraction import edit_distances
from fedlm.simulations.evaluation.memorization.greedy_decoding import decode, greedy_suffixes

VOCABULARY, PREFIX, SUFFIX = 20, 3, 9
SMALL = "tests.simulations.evaluation.memorization.overfit_run:SMALL"


def scrambled(model):
    """Parameters whose continuations are neither a token repeated nor the same for all (those of a fresh model are)."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    rng = np.random.default_rng(3)
    return jax.tree_util.tree_map(lambda leaf: rng.normal(0, 0.4, leaf.shape).astype(np.float32), shapes)


def one_by_one(model, params, prompt, suffix):
    """Decode one sequence as it is defined: append the most likely token to what the model reads, again and again."""
    apply = jax.jit(model.apply)
    tokens = list(prompt)
    for _ in range(suffix):
        # Padded to one shape: what follows a position does not matter for a causal model.
        padded = np.zeros((1, len(prompt) + suffix), np.int32)
        padded[0, : len(tokens)] = tokens
        tokens.append(int(np.argmax(apply(params, padded)[0, len(tokens) - 1])))
    return tokens[len(prompt) :]


@pytest.mark.long
def test_decoding_equals_a_loop_over_tokens():
    model = create_model(SMALL, VOCABULARY)
    sequences = np.random.default_rng(0).integers(4, VOCABULARY, (67, PREFIX + SUFFIX)).astype(np.int32)
    params = scrambled(model)
    done = []
    found = greedy_suffixes(model, params, sequences, PREFIX, observe=done.append)
    assert found.shape == (67, SUFFIX)
    assert found.dtype == np.int32
    assert (done[0], done[-1]) == (64, 67)
    assert len(np.unique(found, axis=0)) > 10
    # The loop sees nothing of what follows the prefix.
    for row in (0, 5, 41, 66):
        assert found[row].tolist() == one_by_one(model, params, sequences[row, :PREFIX], SUFFIX)
    assert greedy_suffixes(model, params, np.zeros((0, 5), np.int32), 2).shape == (0, 3)
    with pytest.raises(ConfigurationError, match="'bert_tiny' has the masked objective and does not continue text"):
        greedy_suffixes(create_model("bert_tiny", VOCABULARY), None, np.ones((1, 5), np.int32), 2)


@pytest.mark.long
def test_sequences_that_cannot_be_near_the_truth_are_given_up():
    model = create_model(SMALL, VOCABULARY)
    params, rng = scrambled(model), np.random.default_rng(2)
    sequences = rng.integers(4, VOCABULARY, (64, PREFIX + SUFFIX)).astype(np.int32)
    truth = np.array(decode(model, params, sequences, prefix=PREFIX)[0])
    for row in range(64):  # up to 4 edits from what is decoded: some replaced, some moved
        truth[row, rng.choice(SUFFIX, row % 5, replace=False)] = 3
        truth[row] = np.roll(truth[row], row % 3 == 0)
    sequences[:, PREFIX:] = truth
    exact, _ = decode(model, params, sequences, prefix=PREFIX)
    for most in (0, 2):
        found, _ = decode(model, params, sequences, prefix=PREFIX, most_edits=most)
        near = edit_distances(np.asarray(exact), truth) <= most / SUFFIX
        assert 0 < near.sum() < 64
        np.testing.assert_array_equal(edit_distances(np.asarray(found), truth) <= most / SUFFIX, near)
        np.testing.assert_array_equal(np.asarray(found)[near], np.asarray(exact)[near])
    found, steps = decode(model, params, np.full_like(sequences, 3), prefix=PREFIX, most_edits=2)
    assert (steps <= 4).all()
    assert (np.asarray(found)[:, 4:] == PAD_ID).all()
