"""What every registered model must do, checked at shrunken sizes (and, where it costs nothing, at its own)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.base import Batch
from fedlm.models.errors import ConfigurationError
from fedlm.models.registry import MODELS, create_model
from fedlm.models.special_tokens import PAD_ID
from fedlm.models.training_shapes import check_length, shapes_of_training
from tests.models.small_models import (
    EVERY_PART_OF_GEMMA,
    LENGTH,
    SMALL_MODELS,
    VOCABULARY,
    each,
    inputs_of,
    perturbed,
    random_batch,
)

leaves = jax.tree_util.tree_leaves


GEMMA = pytest.param(EVERY_PART_OF_GEMMA, marks=pytest.mark.long, id="gemma")


@pytest.fixture(params=[*each(SMALL_MODELS), GEMMA])
def small(request):
    return request.param


CAUSAL = {name: small for name, small in SMALL_MODELS.items() if small.model.objective == "causal"}


@pytest.fixture(params=[*each(CAUSAL), GEMMA])
def causal(request):
    return request.param


def assert_trees_close(a, b, rtol=1e-4, atol=1e-6):
    jax.tree_util.tree_map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), a, b)


def batch_sums(small, batch):
    return small.loss_sums_and_gradient(small.params, batch)[0][1]


def mean_over_tokens(small, batch):
    """The loss that is trained on and its gradient, from examples taken one by one."""
    examples = small.per_example(small.params, batch.tokens)
    n = np.sum(np.asarray(batch.tokens[:, 1:] != PAD_ID) * batch.weight[:, None])
    return jax.tree_util.tree_map(lambda leaf: np.tensordot(batch.weight, leaf, axes=1) / n, examples)


# Parameters


def test_one_key_draws_the_same_parameters(small):
    a, b = (small.model.init(jax.random.key(7)) for _ in range(2))
    jax.tree_util.tree_map(np.testing.assert_array_equal, a, b)


def test_another_key_draws_others(small):
    a, b = (leaves(small.model.init(jax.random.key(seed))) for seed in (7, 8))
    drawn = [(x, y) for x, y in zip(a, b, strict=True) if np.ptp(x) > 0]
    assert drawn
    assert all(np.mean(np.asarray(x) == np.asarray(y)) < 0.01 for x, y in drawn)


def test_no_two_parameters_share_their_draws(small):
    drawn = [np.asarray(x) for x in leaves(small.model.init(jax.random.key(7))) if np.ptp(x) > 0]
    normalised = [(x / np.abs(x).max()).ravel()[:20] for x in drawn]
    for i, x in enumerate(normalised):
        assert not any(np.allclose(x, y, rtol=1e-3) for y in normalised[:i])


def test_parameters_are_float32(small):
    assert {leaf.dtype for leaf in leaves(small.model.init(jax.random.key(0)))} == {jnp.dtype("float32")}


# Logits


@pytest.mark.parametrize("name", MODELS)
def test_every_named_model_gives_logits_of_its_vocabulary(name):
    model = create_model(name)
    params = jax.eval_shape(model.init, jax.random.key(0))
    logits = jax.eval_shape(model.apply, params, jax.ShapeDtypeStruct((2, 20), jnp.int32))
    assert (model.name, logits.shape, logits.dtype) == (name, (2, 20, model.vocabulary_size), jnp.float32)


def test_logits_are_finite_and_of_the_vocabulary(small):
    logits = small.apply(small.params, random_batch().tokens[:, :-1])
    assert (logits.shape, logits.dtype) == ((4, LENGTH, VOCABULARY), jnp.float32)
    assert np.all(np.isfinite(logits))


def test_a_single_position_is_enough(small):
    shapes = [
        jax.eval_shape(small.model.apply, small.params, jax.ShapeDtypeStruct((2, n), jnp.int32)).shape for n in (1, 2)
    ]
    assert shapes == [(2, 1, VOCABULARY), (2, 2, VOCABULARY)]


# Causality


def test_later_tokens_leave_earlier_logits_alone_bit_for_bit(causal):
    tokens = random_batch().tokens[:, :-1]
    before = causal.apply(causal.params, tokens)
    for t in range(LENGTH - 1):
        changed = causal.apply(causal.params, tokens.at[:, t + 1 :].set((tokens[:, t + 1 :] + 5) % VOCABULARY))
        np.testing.assert_array_equal(changed[:, : t + 1], before[:, : t + 1])
        assert np.all(np.any(changed[:, t + 1] != before[:, t + 1], axis=-1))


# Each position has a token of its own, whose logit is not looked at: a row of a table of tokens is then
# used by one position's input and, tied or not, by no output.
INPUTS = np.arange(4, 4 + LENGTH)
UNSEEN = np.isin(np.arange(VOCABULARY), INPUTS)
LOGIT_WEIGHTS = np.where(UNSEEN, 0, np.random.default_rng(0).normal(size=VOCABULARY))


@functools.cache
def scores_and_jacobian(small):
    """A score for each position, and its derivative by the parameters, in float64."""

    def scores(params):
        found = small.model.apply(params, jnp.asarray(INPUTS)[None])[0] @ LOGIT_WEIGHTS
        return found, found

    compiled = jax.jit(jax.jacrev(scores, has_aux=True))

    def run(params):
        with jax.enable_x64(True):
            jacobian, found = compiled(jax.tree_util.tree_map(np.float64, params))
        return np.asarray(found), jax.tree_util.tree_map(np.asarray, jacobian)

    return run


@pytest.mark.long
def test_gradients_by_later_inputs_are_exactly_zero(causal):
    _, jacobian = scores_and_jacobian(causal)(causal.params)
    by_token = [leaf for leaf in leaves(jacobian) if leaf.shape[1:2] == (VOCABULARY,)]
    influence = sum(np.abs(leaf[:, INPUTS]).reshape(LENGTH, LENGTH, -1).sum(-1) for leaf in by_token)
    assert np.all(np.triu(influence, 1) == 0)
    assert np.all(np.diag(influence) > 0)
    assert np.all(np.tril(influence, -1).sum(axis=1)[1:] > 0)


# Padding

SHORT = (3, 1, 2, 0)


@pytest.mark.long
def test_padding_leaves_earlier_logits_alone(small):
    short, padded = (small.apply(small.params, inputs_of(random_batch(SHORT, n))) for n in (4, LENGTH))
    np.testing.assert_allclose(padded[:, :4], short, rtol=1e-5, atol=1e-5)


# Reading bit by bit


def test_every_causal_model_has_a_decoder(causal):
    assert causal.model.decoder is not None


def read_in(small, parts, length):
    """Read parts, each (tokens [rows, time], counts [rows]); returns the logits after each, [parts, rows, vocabulary].

    One program is compiled: parts are padded to the longest.
    """
    decoder, params = small.model.decoder, small.model.decoder.prepare(small.params)
    width = max(tokens.shape[1] for tokens, _ in parts)
    padded = np.stack([np.pad(tokens, ((0, 0), (0, width - tokens.shape[1]))) for tokens, _ in parts])

    @jax.jit
    def read_all(params, tokens, counts):
        def read(state, part):
            logits, state = decoder.read(params, state, *part)
            return state, logits

        return jax.lax.scan(read, decoder.begin(params, tokens.shape[1], length), (tokens, counts))[1]

    return np.asarray(read_all(params, padded, np.stack([counts for _, counts in parts])))


def test_a_decoder_reads_as_many_tokens_as_the_loss(causal):
    limit = causal.model.decoder.max_length
    for length in (1, 100) if limit is None else (limit, limit + 1):
        for check in (check_length, shapes_of_training):
            if limit is None or length <= limit:
                check("one", causal.model, length)
            else:
                why = f"model one cannot be used with length {length}: .* {limit}"
                with pytest.raises(ConfigurationError, match=why):
                    check("one", causal.model, length)


@pytest.mark.long
def test_logits_of_what_is_read_bit_by_bit_are_those_of_the_whole(causal):
    tokens = np.asarray(random_batch().tokens[:, :-1])
    expected = np.asarray(causal.apply(causal.params, tokens))
    # Prompts of 1 to 4 tokens, then one at a time; a row that has all of its tokens reads none.
    prompts = np.array([3, 1, 4, 2], np.int32)
    parts, places = [(tokens[:, :4], prompts)], [prompts]
    while (places[-1] < LENGTH).any():
        reading = places[-1] < LENGTH
        parts.append((tokens[np.arange(4), np.minimum(places[-1], LENGTH - 1)][:, None], reading.astype(np.int32)))
        places.append(places[-1] + reading)
    found = read_in(causal, parts, 4 * len(parts))
    for logits, (_, counts), place in zip(found, parts, places, strict=True):
        rows = np.flatnonzero(counts)
        np.testing.assert_allclose(logits[rows], expected[rows, place[rows] - 1], rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_what_a_row_reads_is_its_own(causal):
    tokens = np.asarray(random_batch().tokens[:, :-1])
    counts = np.array([5, 1, 0, 3], np.int32)
    parts = [(tokens[:, :5], counts), (tokens[:, 5:6], np.array([1, 1, 1, 0], np.int32))]
    other = [(tokens.copy(), counts.copy()) for tokens, counts in parts]
    for changed, lengths in other:
        changed[0] = (changed[0] + 7) % VOCABULARY
        lengths[2] = 1 - lengths[2]
    one, another = read_in(causal, parts, 10), read_in(causal, other, 10)
    np.testing.assert_array_equal(one[:, 1], another[:, 1])
    np.testing.assert_array_equal(one[0, 3], another[0, 3])
    assert np.all(np.any(one[:, 0] != another[:, 0], axis=-1))


# Batches


@pytest.mark.long
def test_an_example_has_the_same_sums_alone_and_in_a_batch_that_pads_it(small):
    unpadded = random_batch(SHORT, 4)
    together = batch_sums(small, random_batch(SHORT))
    for i in range(len(SHORT)):
        alone = small.sums(small.params, Batch(unpadded.tokens[i : i + 1], unpadded.weight[:1]))
        assert_trees_close(alone, jax.tree_util.tree_map(lambda total, i=i: total[i : i + 1], together), rtol=1e-5)


def test_the_order_of_a_batch_is_of_no_consequence(small):
    batch = random_batch()
    order = jnp.array([2, 0, 3, 1])
    shuffled = batch_sums(small, Batch(batch.tokens[order], batch.weight))
    assert_trees_close(shuffled, jax.tree_util.tree_map(lambda s: s[order], batch_sums(small, batch)), rtol=1e-5)


GARBAGE = {
    "words": np.random.default_rng(3).integers(0, VOCABULARY, size=(4, LENGTH + 1)),
    "padding": np.full((4, LENGTH + 1), PAD_ID),
    "out of range": np.full((4, LENGTH + 1), VOCABULARY + 1000),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_rows_of_weight_zero_change_neither_loss_nor_gradient(small, garbage):
    full = random_batch()
    weight = jnp.array([1.0, 0.0, 1.0, 0.0])
    filled = Batch(jnp.where(weight[:, None] > 0, full.tokens, garbage), weight)
    expected = mean_over_tokens(small, Batch(full.tokens, weight))
    assert_trees_close(small.loss_and_gradient(small.params, filled), expected, atol=1e-5)


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_batch_of_weight_zero_has_loss_zero_and_gradient_zero(small, garbage):
    nothing = Batch(jnp.asarray(garbage, jnp.int32), jnp.zeros(4))
    loss, gradient = small.loss_and_gradient(small.params, nothing)
    assert loss == 0
    assert all(np.all(np.asarray(leaf) == 0) for leaf in leaves(gradient))


# Losses and gradients


def test_the_loss_is_that_of_the_next_token(small):
    batch = random_batch()
    logits = np.asarray(small.apply(small.params, inputs_of(batch)), np.float64)
    log_normalizer = np.log(np.exp(logits).sum(-1))
    expected = [
        sum(log_normalizer[b, t] - logits[b, t, row[t + 1]] for t in range(LENGTH) if row[t + 1] != PAD_ID)
        for b, row in enumerate(np.asarray(batch.tokens))
    ]
    np.testing.assert_allclose(batch_sums(small, batch).loss, expected, rtol=1e-5)


@pytest.mark.long
def test_compiled_or_not_is_the_same(small):
    batch = random_batch()
    assert_trees_close(batch_sums(small, batch), small.model.loss(small.params, batch), rtol=1e-5)


def test_gradients_are_finite_float32_and_reach_every_parameter(small):
    _, gradient = small.loss_and_gradient(small.params, random_batch())
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert leaf.dtype == jnp.float32, path
        assert np.all(np.isfinite(leaf)), path
        # A softmax does not feel what a key's bias adds to all scores of a query alike.
        assert np.any(np.asarray(leaf) != 0) or jax.tree_util.keystr(path).endswith("['key']['bias']"), path


def test_the_gradient_at_freshly_drawn_parameters_is_finite(small):
    loss, gradient = small.loss_and_gradient(small.model.init(jax.random.key(1)), random_batch())
    assert np.isfinite(loss)
    assert all(np.all(np.isfinite(leaf)) for leaf in leaves(gradient))


@pytest.mark.long
def test_gradients_agree_with_finite_differences(small):
    if hasattr(small.config, "parameter_errors"):
        pytest.skip("by design no gradient passes through the errors of parameters; see test_reattention.py")
    run = scores_and_jacobian(small)
    params, elsewhere = (jax.tree_util.tree_map(np.float64, perturbed(small.params, seed)) for seed in (1, 2))
    # So small a step hardly ever crosses a kink of a rectifier or a maximum.
    step = 1e-6
    after, before = (
        run(jax.tree_util.tree_map(lambda a, b, step=step: a + step * (b - a), params, elsewhere))[0]
        for step in (step, -step)
    )
    products = jax.tree_util.tree_map(
        lambda derivative, a, b: np.tensordot(derivative, b - a, axes=a.ndim), run(params)[1], params, elsewhere
    )
    expected = sum(leaves(products))
    difference = (after - before) / (2 * step)
    np.testing.assert_allclose(expected, difference, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_gradients_per_example_add_up_to_that_of_the_batch(small):
    batch = random_batch()
    expected = mean_over_tokens(small, batch)
    assert_trees_close(small.loss_and_gradient(small.params, batch), expected, atol=1e-5)


def test_the_mean_gradient_of_equally_long_examples_is_that_of_the_batch(small):
    batch = random_batch((5, 5, 5, 5))
    _, gradients = small.per_example(small.params, batch.tokens)
    mean = jax.tree_util.tree_map(lambda leaf: np.mean(leaf, axis=0) / 6, gradients)
    assert_trees_close(small.loss_and_gradient(small.params, batch)[1], mean, atol=1e-5)
