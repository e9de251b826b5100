import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlm.models.base import Batch, Model, batch_loss, language_model
from fedlm.models.errors import ConfigurationError
from fedlm.models.losses import ExampleSums, cross_entropy, next_token_sums
from fedlm.models.masked_language import MaskedBatch, masked_language_model
from fedlm.models.special_tokens import EOS_ID, OOV_ID, PAD_ID

VOCABULARY = 11
SHAPE = (3, 5)
TARGETS = np.array([[4, 7, OOV_ID, EOS_ID, PAD_ID], [10, 4, 5, 6, 7], [EOS_ID, PAD_ID, PAD_ID, PAD_ID, PAD_ID]])
any_targets = hnp.arrays(np.int32, SHAPE, elements=st.integers(0, VOCABULARY - 1))
# Few values, so that most maxima are shared.
tied_logits = hnp.arrays(np.float32, (*SHAPE, VOCABULARY), elements=st.sampled_from([-1.0, 0.0, 2.0]))


def some_logits(scale=3.0, shape=(*SHAPE, VOCABULARY)):
    return (scale * np.random.default_rng(0).normal(size=shape)).astype(np.float32)


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def expected_losses(logits, targets):
    return -np.take_along_axis(log_softmax(logits), targets[..., None], axis=-1)[..., 0]


def expected_gradient(logits, targets, weights):
    return weights[..., None] * (np.exp(log_softmax(logits)) - np.eye(VOCABULARY)[targets])


def expected_sums(logits, targets):
    rows = []
    for row_logits, row_targets in zip(np.asarray(logits), targets, strict=True):
        sums = dict.fromkeys(ExampleSums._fields, 0.0)
        for token_logits, target in zip(row_logits, row_targets, strict=True):
            if target == PAD_ID:
                continue
            loss = expected_losses(token_logits[None], np.array([target]))[0]
            correct = int(np.argmax(token_logits)) == target
            sums["loss"] += loss
            sums["tokens"] += 1
            if target == EOS_ID:
                continue
            sums["scored_loss"] += loss
            sums["scored_tokens"] += 1
            sums["scored_correct"] += correct
            if target == OOV_ID:
                continue
            sums["in_vocabulary_tokens"] += 1
            sums["in_vocabulary_correct"] += correct
        rows.append(sums)
    return ExampleSums(**{name: np.array([row[name] for row in rows]) for name in ExampleSums._fields})


def sums_of(logits, targets):
    return next_token_sums(cross_entropy(logits, targets), logits, targets)


def assert_sums(found, expected):
    for name, a, b in zip(ExampleSums._fields, found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)


# Cross-entropy


@pytest.mark.parametrize("scale", [0.01, 3.0, 1000.0])
def test_cross_entropy_is_that_of_float64(scale):
    logits = some_logits(scale)
    np.testing.assert_allclose(
        cross_entropy(logits, TARGETS), expected_losses(logits, TARGETS), rtol=1e-5, atol=1e-6 * scale
    )


@pytest.mark.parametrize("scale", [0.01, 3.0, 1000.0])
def test_gradient_of_cross_entropy_is_that_of_float64(scale):
    logits, weights = some_logits(scale), np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    gradient = jax.grad(lambda x: jnp.sum(cross_entropy(x, TARGETS) * weights))(logits)
    np.testing.assert_allclose(gradient, expected_gradient(logits, TARGETS, weights), rtol=1e-4, atol=1e-6)


def test_gradient_of_cross_entropy_is_that_of_the_plain_formula():
    logits, weights = some_logits(), np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)

    def plain(x):
        losses = -jnp.take_along_axis(jax.nn.log_softmax(x), TARGETS[..., None], axis=-1)[..., 0]
        return jnp.sum(losses * weights)

    gradient = jax.grad(lambda x: jnp.sum(cross_entropy(x, TARGETS) * weights))(logits)
    np.testing.assert_allclose(gradient, jax.grad(plain)(logits), rtol=1e-4, atol=1e-6)


def test_cross_entropy_does_not_depend_on_a_common_shift():
    logits = some_logits()
    shifted = cross_entropy(logits + np.float32(500), TARGETS)
    np.testing.assert_allclose(shifted, cross_entropy(logits, TARGETS), atol=5e-4)


def test_cross_entropy_per_example_under_vmap():
    logits = some_logits()
    mapped = jax.vmap(jax.value_and_grad(lambda x, y: jnp.sum(cross_entropy(x, y))))(logits, TARGETS)
    losses, gradients = expected_losses(logits, TARGETS).sum(-1), expected_gradient(logits, TARGETS, np.ones(SHAPE))
    np.testing.assert_allclose(mapped[0], losses, rtol=1e-5)
    np.testing.assert_allclose(mapped[1], gradients, rtol=1e-4, atol=1e-6)


def test_bfloat16_logits_give_float32_losses_and_bfloat16_gradients():
    logits = jnp.asarray(some_logits(), jnp.bfloat16)
    losses, pull_back = jax.vjp(lambda x: cross_entropy(x, TARGETS), logits)
    (gradient,) = pull_back(jnp.ones(SHAPE))
    assert (losses.dtype, gradient.dtype) == (jnp.float32, jnp.bfloat16)
    np.testing.assert_allclose(losses, expected_losses(logits, TARGETS), rtol=1e-5)
    expected = expected_gradient(logits, TARGETS, np.ones(SHAPE))
    np.testing.assert_allclose(np.asarray(gradient, np.float32), expected, rtol=0.01, atol=1e-6)


# Sums


def test_each_kind_of_target_is_counted_where_it_belongs():
    sums = sums_of(some_logits(), TARGETS)
    np.testing.assert_array_equal(sums.tokens, [4, 5, 1])
    np.testing.assert_array_equal(sums.scored_tokens, [3, 5, 0])
    np.testing.assert_array_equal(sums.in_vocabulary_tokens, [2, 5, 0])


@settings(max_examples=40, deadline=None)
@given(targets=any_targets, seed=st.integers(0, 2**32 - 1))
def test_sums_are_those_of_a_loop_over_tokens(targets, seed):
    logits = np.random.default_rng(seed).normal(size=(*SHAPE, VOCABULARY)).astype(np.float32)
    assert_sums(sums_of(logits, targets), expected_sums(logits, targets))


@settings(max_examples=60, deadline=None)
@given(logits=tied_logits, targets=any_targets)
def test_of_equal_logits_the_first_is_the_prediction(logits, targets):
    assert_sums(sums_of(logits, targets), expected_sums(logits, targets))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_the_prediction_is_argmax_also_in_half_precision(dtype):
    logits = jnp.asarray(some_logits(), dtype)
    best = np.argmax(np.asarray(logits, np.float32), axis=-1)
    sums = sums_of(logits, np.where(best > OOV_ID, best, PAD_ID))
    np.testing.assert_array_equal(sums.in_vocabulary_correct, np.sum(best > OOV_ID, axis=-1))


def test_sums_are_float32_whatever_the_logits():
    sums = sums_of(jnp.asarray(some_logits(), jnp.bfloat16), TARGETS)
    assert {leaf.dtype for leaf in sums} == {jnp.dtype("float32")}


def test_padding_targets_have_no_gradient_and_all_others_have():
    gradient = jax.grad(lambda x: jnp.sum(sums_of(x, TARGETS).loss))(some_logits())
    np.testing.assert_array_equal(np.any(gradient != 0, axis=-1), TARGETS != PAD_ID)


def test_logits_that_are_not_numbers_at_padding_spoil_nothing():
    logits = np.where((TARGETS == PAD_ID)[..., None], np.nan, some_logits()).astype(np.float32)
    assert_sums(sums_of(logits, TARGETS), expected_sums(some_logits(), TARGETS))


# The loss of a batch


def bigram_model():
    return language_model(
        "bigram",
        VOCABULARY,
        lambda rng: {"logits": jnp.asarray(some_logits(shape=(VOCABULARY, VOCABULARY)))},
        lambda params, tokens: params["logits"][tokens],
    )


@pytest.mark.long
def test_a_language_model_reads_all_but_the_last_token_and_predicts_all_but_the_first():
    model = bigram_model()
    params = model.init(jax.random.key(0))
    tokens = np.array([[1, 4, 5, 6, EOS_ID], [1, 7, EOS_ID, PAD_ID, PAD_ID]])
    expected = expected_sums(np.asarray(params["logits"])[tokens[:, :-1]], tokens[:, 1:])
    assert_sums(model.loss(params, Batch(jnp.asarray(tokens), jnp.ones(2))), expected)


def test_the_batch_loss_is_the_mean_over_target_tokens_not_over_examples():
    sums = ExampleSums(*[jnp.array([6.0, 100.0, 8.0])] * 7)._replace(tokens=jnp.array([3.0, 50.0, 1.0]))
    model = Model("fixed", VOCABULARY, lambda rng: {}, lambda params, tokens: None, lambda params, batch: sums)
    loss, returned = batch_loss(model, {}, Batch(jnp.zeros((3, 2), jnp.int32), jnp.array([1.0, 0.0, 1.0])))
    assert float(loss) == (6 + 8) / (3 + 1)
    assert returned is sums


def test_a_row_of_weight_zero_that_is_not_a_number_does_not_spread():
    sums = ExampleSums(*[jnp.array([6.0, jnp.nan])] * 7)._replace(tokens=jnp.array([3.0, 5.0]))
    model = Model("fixed", VOCABULARY, lambda rng: {}, lambda params, tokens: None, lambda params, batch: sums)
    loss, _ = batch_loss(model, {}, Batch(jnp.zeros((2, 2), jnp.int32), jnp.array([1.0, 0.0])))
    assert float(loss) == 2


@pytest.mark.long
def test_a_batch_of_padding_only_has_loss_zero():
    model = bigram_model()
    batch = Batch(jnp.full((2, 4), PAD_ID), jnp.ones(2))
    loss, gradient = jax.value_and_grad(lambda p: batch_loss(model, p, batch)[0])(model.init(jax.random.key(0)))
    assert loss == 0
    assert np.all(np.asarray(gradient["logits"]) == 0)


@pytest.mark.parametrize(
    ("gave", "what"),
    [
        (lambda tokens: jnp.zeros((*tokens.shape, 3)), r"logits of shape \(3, 5, 3\), but must give \(3, 5, 11\)"),
        (lambda tokens: jnp.zeros((*tokens.shape, 12)), r"logits of shape \(3, 5, 12\)"),
        (lambda tokens: jnp.zeros((tokens.shape[0], 11)), r"logits of shape \(3, 11\)"),
        (lambda tokens: (jnp.zeros((*tokens.shape, 11)), None), "a tuple"),
    ],
)
def test_logits_of_a_wrong_shape_are_refused_where_they_are_traced(gave, what):
    def apply(params, tokens):
        return gave(tokens)

    tokens, weight = jnp.zeros((3, 6), jnp.int32), jnp.ones(3)
    causal = language_model("own", 11, lambda key: {}, apply)
    with pytest.raises(ConfigurationError, match=f"model 'own': apply gave {what}"):
        jax.jit(causal.loss)({}, Batch(tokens, weight))
    masked = masked_language_model("own", 10, lambda key: {}, apply)
    with pytest.raises(ConfigurationError, match=f"model 'own': apply gave {what}"):
        jax.jit(masked.loss)({}, MaskedBatch(tokens[:, 1:], tokens[:, 1:], weight))
