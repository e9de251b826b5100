import jax
import numpy as np
import pytest
from overfit_run import overfit

from fl_core.errors import ConfigurationError
from models.registry import create_model
from simulations.memorization.greedy_decoding import decode, greedy_suffixes

VOCABULARY, PREFIX, SUFFIX = 20, 3, 9


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


@pytest.mark.parametrize("name", ["transformer_tiny", "cifg_tiny"])
def test_decoding_equals_a_loop_over_tokens(name):
    model = create_model(name, VOCABULARY)
    sequences = np.random.default_rng(0).integers(4, VOCABULARY, (67, PREFIX + SUFFIX)).astype(np.int32)
    # A little training makes continuations that differ between sequences.
    params = overfit(model, model.init(jax.random.key(0)), sequences[:40], 30)
    done = []
    found = greedy_suffixes(model, params, sequences, PREFIX, done.append)
    assert found.shape == (67, SUFFIX)
    assert found.dtype == np.int32
    assert (done[0], done[-1]) == (64, 67)
    assert len(np.unique(found, axis=0)) > 20
    for row in (0, 5, 41, 66):
        assert found[row].tolist() == one_by_one(model, params, sequences[row, :PREFIX], SUFFIX)


def test_what_follows_the_prefix_does_not_change_what_is_decoded():
    model = create_model("transformer_tiny", VOCABULARY)
    params = model.init(jax.random.key(1))
    sequences = np.random.default_rng(1).integers(4, VOCABULARY, (8, PREFIX + SUFFIX)).astype(np.int32)
    found, passes = decode(model, params, sequences, PREFIX)
    assert 1 < passes <= SUFFIX
    other = np.concatenate([sequences[:, :PREFIX], sequences[::-1, PREFIX:]], axis=1)
    np.testing.assert_array_equal(decode(model, params, other, PREFIX)[0], found)
    # What is decoded already takes one pass to confirm.
    known = np.concatenate([sequences[:, :PREFIX], found], axis=1)
    again, passes = decode(model, params, known, PREFIX)
    assert passes == 1
    np.testing.assert_array_equal(again, found)


def test_no_sequences_and_masked_models():
    model = create_model("cifg_tiny", VOCABULARY)
    params = model.init(jax.random.key(0))
    assert greedy_suffixes(model, params, np.zeros((0, 5), np.int32), 2).shape == (0, 3)
    with pytest.raises(ConfigurationError, match="'bert_tiny' has the masked objective and does not continue text"):
        greedy_suffixes(create_model("bert_tiny", VOCABULARY), None, np.ones((1, 5), np.int32), 2)
