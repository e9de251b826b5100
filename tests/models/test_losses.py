import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlm.models.base import Batch, Model, batch_loss, language_model
from fedlm.models.errors import ConfigurationError
from fedlm.models.families.masked_language import MaskedBatch, masked_language_model
from fedlm.models.losses import ExampleSums, cross_entropy, next_token_sums
from fedlm.models.special_tokens import EOS_ID, OOV_ID, PAD_ID

VOCABULARY = 11
SHAPE = (3, 5)
TARGETS = np.array([[4, 7, OOV_ID, EOS_ID, PAD_ID], [10, 4, 5, 6, 7], [EOS_ID, PAD_ID, PAD_ID, PAD_ID, PAD_ID]])
any_targets = hnp.arrays(np.int32, SHAPE, elements=st.integers(0, VOCABULARY - 1))
# Few values, so that most maxima are shared.
any_logits = hnp.arrays(np.float32, (*SHAPE, VOCABULARY), elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0]))


def some_logits(scale=3.0, shape=(*SHAPE, VOCABULARY)):
    return (scale * np.random.default_rng(0).normal(size=shape)).astype(np.float32)


def expected_losses(logits, targets):
    found = scipy.special.log_softmax(np.asarray(logits, np.float64), axis=-1)
    return -np.take_along_axis(found, targets[..., None], axis=-1)[..., 0]


def expected_gradient(logits, targets, weights):
    probabilities = scipy.special.softmax(np.asarray(logits, np.float64), axis=-1)
    return weights[..., None] * (probabilities - np.eye(VOCABULARY)[targets])


def expected_sums(logits, targets):
    losses, correct = expected_losses(logits, targets), np.argmax(logits, axis=-1) == targets
    counted = targets != PAD_ID
    scored = counted & (targets != EOS_ID)
    known = scored & (targets != OOV_ID)
    parts = [losses * counted, counted, losses * scored, scored, correct & scored, known, correct & known]
    return ExampleSums(*(part.sum(axis=-1) for part in parts))


def sums_of(logits, targets):
    return next_token_sums(cross_entropy(logits, targets), logits, targets)


def assert_sums(found, expected):
    for name, a, b in zip(ExampleSums._fields, found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("scale", "shift", "error"), [(0.01, 0, 1e-8), (3.0, 500, 3e-4), (1000.0, 0, 1e-3)])
def test_cross_entropy_and_its_gradient_are_those_of_float64(scale, shift, error):
    logits, weights = some_logits(scale) + np.float32(shift), np.random.default_rng(1).normal(size=SHAPE)
    found = cross_entropy(logits, TARGETS)
    np.testing.assert_allclose(found, expected_losses(logits, TARGETS), rtol=1e-5, atol=error)
    gradient = jax.grad(lambda x: jnp.sum(cross_entropy(x, TARGETS) * weights))(logits)
    expected = expected_gradient(logits, TARGETS, weights)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=max(error, 1e-6))


def test_bfloat16_logits_give_float32_losses_and_bfloat16_gradients():
    logits = jnp.asarray(some_logits(), jnp.bfloat16)
    losses, pull_back = jax.vjp(lambda x: cross_entropy(x, TARGETS), logits)
    (gradient,) = pull_back(jnp.ones(SHAPE))
    assert (losses.dtype, gradient.dtype) == (jnp.float32, jnp.bfloat16)
    np.testing.assert_allclose(losses, expected_losses(logits, TARGETS), rtol=1e-5)
    expected = expected_gradient(logits, TARGETS, np.ones(SHAPE))
    np.testing.assert_allclose(np.asarray(gradient, np.float32), expected, rtol=0.01, atol=1e-6)


@given(logits=any_logits, targets=any_targets)
def test_sums_are_over_the_tokens_that_count_and_of_equal_logits_the_first_is_the_prediction(logits, targets):
    assert_sums(sums_of(logits, targets), expected_sums(logits, targets))


def test_at_padding_there_is_no_gradient_and_what_is_no_number_spoils_nothing():
    logits = np.where((TARGETS == PAD_ID)[..., None], np.nan, some_logits()).astype(np.float32)
    assert_sums(sums_of(logits, TARGETS), expected_sums(some_logits(), TARGETS))
    gradient = jax.grad(lambda x: jnp.sum(sums_of(x, TARGETS).loss))(some_logits())
    np.testing.assert_array_equal(np.any(gradient != 0, axis=-1), TARGETS != PAD_ID)


def test_the_batch_loss_is_the_mean_over_target_tokens_of_rows_that_count():
    """Not over examples; and what is no number in a row of weight zero does not spread."""
    sums = ExampleSums(*[jnp.array([6.0, jnp.nan, 8.0])] * 7)._replace(tokens=jnp.array([3.0, 50.0, 1.0]))
    model = Model("fixed", VOCABULARY, lambda rng: {}, lambda params, tokens: None, lambda params, batch: sums)
    loss, returned = batch_loss(model, {}, Batch(jnp.zeros((3, 2), jnp.int32), jnp.array([1.0, 0.0, 1.0])))
    assert float(loss) == (6 + 8) / (3 + 1)
    assert returned is sums


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


def test_prompts_are_no_targets():
    tokens = np.arange(1, 19).reshape(3, 6)
    found = np.asarray(Batch(jnp.asarray(tokens), jnp.ones(3), completion_start=jnp.array([1, 3, 6])).targets)
    np.testing.assert_array_equal(found, [tokens[0, 1:], [PAD_ID, PAD_ID, *tokens[1, 3:]], [PAD_ID] * 5])
