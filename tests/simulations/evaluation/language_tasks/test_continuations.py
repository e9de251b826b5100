"""Scores of many continuations at once are those of each alone."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from fedlm.models.base import language_model
from fedlm.simulations.evaluation.language_tasks.continuations import Continuation, is_cut, score_continuations

VOCABULARY, LONGEST = 40, 48


@pytest.fixture(scope="module")
def model():
    """One that sees the mean of all tokens so far, and its parameters."""
    rng = np.random.default_rng(1)
    params = {"table": rng.normal(size=(VOCABULARY, 8)), "output": rng.normal(size=(8, VOCABULARY))}
    params = {name: array.astype(np.float32) for name, array in params.items()}

    def apply(params, tokens):
        seen = jnp.cumsum(params["table"][tokens], axis=1) / jnp.arange(1.0, tokens.shape[1] + 1)[:, None]
        return 5 * seen @ params["output"]

    return language_model("means", VOCABULARY, lambda key: params, apply), params


def alone(params, continuation):
    """The sum of the tokens' log-probabilities in float64, and whether each is the likeliest, with no padding."""
    tokens = [*continuation.context, *continuation.tokens][-LONGEST - 1 :]
    seen = np.cumsum(params["table"][tokens[:-1]], axis=0) / np.arange(1, len(tokens))[:, None]
    logits = (5 * seen @ params["output"])[-len(continuation.tokens) :]
    picked = log_softmax(logits, axis=-1)[np.arange(len(logits)), continuation.tokens]
    return picked.sum(), logits.argmax(axis=-1).tolist() == continuation.tokens


def test_padding_batches_and_cutting_change_no_score(model):
    rng = np.random.default_rng(0)
    lengths = [(1, 1), (1, 3), (31, 1), (31, 2), (20, 20), (47, 1), (48, 1), (48, 2), (100, 5), (3, 48)]
    continuations = [Continuation(*(rng.integers(4, 40, size).tolist() for size in pair)) for pair in lengths]
    # One that greedy decoding gives.
    context = continuations[4].context
    likeliest = max(range(VOCABULARY), key=lambda token: alone(model[1], Continuation(context, [token])))
    continuations.append(Continuation(context, [likeliest]))
    expected = [alone(model[1], continuation) for continuation in continuations]
    assert [greedy for _, greedy in expected] == [False] * (len(expected) - 1) + [True]
    for batch_size in (None, 1):
        seen = []
        found = score_continuations(*model, continuations, LONGEST, batch_size=batch_size, observe=seen.append)
        np.testing.assert_allclose([score.log_likelihood for score in found], [ll for ll, _ in expected], rtol=1e-5)
        assert [score.is_greedy for score in found] == [greedy for _, greedy in expected]
        assert sum(seen) == len(continuations)
    assert [is_cut(continuation, LONGEST) for continuation in continuations] == [sum(p) > 49 for p in lengths] + [False]


def test_nothing_to_score_is_no_error(model):
    assert score_continuations(*model, [], LONGEST) == []
