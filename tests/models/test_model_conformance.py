"""What every registered model must do, checked at shrunken sizes (and, where it costs nothing, at its own)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.base import Batch
from fedlm.models.errors import ConfigurationError
from fedlm.models.special_tokens import PAD_ID
from fedlm.models.training_shapes import check_length, shapes_of_training
from tests.models.small_models import (
    LENGTH,
    PUBLISHED_DECODERS,
    SMALL_MODELS,
    VOCABULARY,
    each,
    inputs_of,
    perturbed,
    random_batch,
)

leaves = jax.tree_util.tree_leaves
CAUSAL = {name: small for name, small in SMALL_MODELS.items() if small.model.objective == "causal"}


@pytest.fixture(params=each(SMALL_MODELS | PUBLISHED_DECODERS))
def small(request):
    return request.param


@pytest.fixture(params=each(CAUSAL | PUBLISHED_DECODERS))
def causal(request):
    return request.param


def assert_trees_close(a, b, rtol=1e-4, atol=1e-6):
    jax.tree_util.tree_map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), a, b)


def test_parameters_are_float32_and_each_has_its_own_draws_from_the_key(small):
    first, again, other = (leaves(small.init(jax.random.key(seed))) for seed in (7, 7, 8))
    assert {leaf.dtype for leaf in first} == {jnp.dtype("float32")}
    jax.tree_util.tree_map(np.testing.assert_array_equal, first, again)
    drawn = [(np.asarray(x), np.asarray(y)) for x, y in zip(first, other, strict=True) if np.ptp(x) > 0]
    assert drawn
    assert all(np.mean(x == y) < 0.01 for x, y in drawn)
    normalised = [(x / np.abs(x).max()).ravel()[:20] for x, _ in drawn]
    for i, x in enumerate(normalised):
        assert not any(np.allclose(x, y, rtol=1e-3) for y in normalised[:i])


# Logits


def test_logits_are_finite_and_of_the_vocabulary(small):
    logits = small.apply(small.params, random_batch().tokens[:, :-1])
    assert (logits.shape, logits.dtype) == ((4, LENGTH, VOCABULARY), jnp.float32)
    assert np.all(np.isfinite(logits))
    one = jax.eval_shape(small.model.apply, small.params, jax.ShapeDtypeStruct((2, 1), jnp.int32))
    assert one.shape == (2, 1, VOCABULARY), "a single position is enough"


def test_later_tokens_leave_earlier_logits_and_other_rows_alone_bit_for_bit(causal):
    tokens = random_batch().tokens[:, :-1]
    before = causal.apply(causal.params, tokens)
    for t in range(LENGTH - 1):
        changed = causal.apply(causal.params, tokens.at[1:, t + 1 :].set((tokens[1:, t + 1 :] + 5) % VOCABULARY))
        np.testing.assert_array_equal(changed[0], before[0])
        np.testing.assert_array_equal(changed[1:, : t + 1], before[1:, : t + 1])
        assert np.all(np.any(changed[1:, t + 1] != before[1:, t + 1], axis=-1))


# Reading bit by bit


def test_a_decoder_reads_as_many_tokens_as_the_loss(causal):
    limit = causal.model.decoder.max_length
    for check in (check_length, shapes_of_training):
        check("one", causal.model, limit or 100)
        if limit is not None:
            why = f"model one cannot be used with length {limit + 1}: .* {limit}"
            with pytest.raises(ConfigurationError, match=why):
                check("one", causal.model, limit + 1)


@pytest.mark.long
def test_logits_of_what_is_read_bit_by_bit_are_those_of_the_whole(causal):
    tokens = np.asarray(random_batch().tokens[:, :-1])
    expected = np.asarray(causal.apply(causal.params, tokens))
    # Prompts of 1 to 4 tokens, then one at a time; a row pauses now and then, reads beyond no end, and what is
    # beside the tokens that it reads is garbage.
    counts, places = np.array([3, 1, 4, 2], np.int32), np.zeros(4, np.int32)
    parts, ends = [], []
    while (places < LENGTH).any():
        part = np.full((4, 4), VOCABULARY - 1, np.int32)
        for row, count in enumerate(counts):
            part[row, :count] = tokens[row, places[row] : places[row] + count]
        places = places + counts
        parts.append((part, counts))
        ends.append(places)
        counts = ((places < LENGTH) & ((len(parts) + np.arange(4)) % 3 > 0)).astype(np.int32)
    found = read_in(causal, parts, 4 * len(parts))
    for logits, (_, counts), end in zip(found, parts, ends, strict=True):
        rows = np.flatnonzero(counts)
        np.testing.assert_allclose(logits[rows], expected[rows, end[rows] - 1], rtol=1e-4, atol=1e-4)


def read_in(small, parts, length):
    """Read parts, each (tokens [rows, time], counts [rows]); returns logits after each, [parts, rows, vocabulary]."""
    decoder, params = small.model.decoder, small.model.decoder.prepare(small.params)

    @jax.jit
    def read_all(params, tokens, counts):
        def read(state, part):
            logits, state = decoder.read(params, state, *part)
            return state, logits

        return jax.lax.scan(read, decoder.begin(params, tokens.shape[1], length), (tokens, counts))[1]

    return np.asarray(read_all(params, *map(np.stack, zip(*parts, strict=True))))


# Losses and gradients of batches


def test_the_loss_is_that_of_the_next_token(small):
    batch = random_batch()
    logits = np.asarray(small.apply(small.params, inputs_of(batch)), np.float64)
    log_normalizer = np.log(np.exp(logits).sum(-1))
    expected = [
        sum(log_normalizer[b, t] - logits[b, t, row[t + 1]] for t in range(LENGTH) if row[t + 1] != PAD_ID)
        for b, row in enumerate(np.asarray(batch.tokens))
    ]
    np.testing.assert_allclose(small.loss_sums_and_gradient(small.params, batch)[0][1].loss, expected, rtol=1e-5)


@pytest.mark.long
def test_an_example_has_the_same_sums_alone_and_in_a_batch_that_pads_it(small):
    words = (3, 1, 2, 0)
    unpadded = random_batch(words, 4)
    together = small.sums(small.params, random_batch(words))
    for i in range(len(words)):
        alone = small.sums(small.params, Batch(unpadded.tokens[i : i + 1], unpadded.weight[:1]))
        assert_trees_close(alone, jax.tree_util.tree_map(lambda total, i=i: total[i : i + 1], together), rtol=1e-5)


def test_loss_and_gradient_are_means_over_the_tokens_of_rows_that_count(small):
    tokens, weight = random_batch().tokens, jnp.array([1.0, 0.0, 1.0, 0.0])
    counts = np.sum(np.asarray(tokens[:, 1:] != PAD_ID), axis=1)
    one, other = (small.loss_and_gradient(small.params, Batch(tokens, jnp.eye(4)[row])) for row in (0, 2))
    expected = jax.tree_util.tree_map(
        lambda a, b: (counts[0] * a + counts[2] * b) / (counts[0] + counts[2]), one, other
    )
    words = np.random.default_rng(3).integers(0, VOCABULARY, size=tokens.shape)
    for garbage in (words, np.full_like(words, PAD_ID), np.full_like(words, VOCABULARY + 1000)):
        batch = Batch(jnp.where(weight[:, None] > 0, tokens, garbage), weight)
        assert_trees_close(small.loss_and_gradient(small.params, batch), expected, atol=1e-5)
        loss, gradient = small.loss_and_gradient(small.params, Batch(jnp.asarray(garbage, jnp.int32), jnp.zeros(4)))
        assert loss == 0
        assert not any(np.any(leaf) for leaf in leaves(gradient)), "nothing counts, so that nothing is learned"


def test_gradients_are_finite_float32_and_reach_every_parameter(small):
    _, gradient = small.loss_and_gradient(small.params, random_batch())
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert leaf.dtype == jnp.float32, path
        assert np.all(np.isfinite(leaf)), path
        # A softmax does not feel what a key's bias adds to all scores of a query alike.
        assert np.any(np.asarray(leaf) != 0) or jax.tree_util.keystr(path).endswith("['key']['bias']"), path
    at_first = small.loss_and_gradient(small.init(jax.random.key(1)), random_batch())
    assert all(np.all(np.isfinite(leaf)) for leaf in leaves(at_first))


@pytest.mark.long
def test_gradients_agree_with_finite_differences(small):
    """In float64, of a score of each position, along one direction that all parameters have a part in."""
    if hasattr(small.config, "parameter_errors"):
        pytest.skip("by design no gradient passes through the errors of parameters; see test_reattention.py")
    weights = np.random.default_rng(0).normal(size=VOCABULARY)

    def scores(params):
        return small.model.apply(params, random_batch((7,)).tokens[:, :-1])[0] @ weights

    params, elsewhere = (jax.tree_util.tree_map(np.float64, perturbed(small.params, seed)) for seed in (1, 2))
    direction = jax.tree_util.tree_map(np.subtract, elsewhere, params)
    with jax.enable_x64(True):
        # So small a step hardly ever crosses a kink of a rectifier or a maximum.
        step, run = 1e-6, jax.jit(scores)
        after, before = (
            np.asarray(run(jax.tree_util.tree_map(lambda a, b, step=step: a + step * b, params, direction)))
            for step in (step, -step)
        )
        along = jax.tree_util.tree_map(np.asarray, jax.jit(jax.jacrev(scores))(params))
    products = jax.tree_util.tree_map(lambda slope, to: np.tensordot(slope, to, axes=to.ndim), along, direction)
    expected = sum(leaves(products))
    np.testing.assert_allclose(expected, (after - before) / (2 * step), rtol=1e-5, atol=1e-6 * np.abs(expected).max())
