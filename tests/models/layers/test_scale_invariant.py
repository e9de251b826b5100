import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlm.models.layers.scale_invariant import si_attention_weights, si_sigmoid, si_tanh, unit_rms

ROWS, WIDTH = 4, 8
CAUSAL = np.tril(np.ones((WIDTH, WIDTH), bool))[::2]


def attend_to_all(scores):
    return si_attention_weights(scores, jnp.ones((), bool))


def attend_to_earlier(scores):
    return si_attention_weights(scores, CAUSAL)


FUNCTIONS = {
    "si_sigmoid": si_sigmoid,
    "si_tanh": si_tanh,
    "unit_rms": unit_rms,
    "si_attention": attend_to_all,
    "causal si_attention": attend_to_earlier,
}
by_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
by_dtype = pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16], ids=lambda dtype: dtype.__name__)
by_half = pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16], ids=lambda dtype: dtype.__name__)

magnitudes = st.floats(2.0**-33, 2.0**33, width=32)
entries = st.one_of(st.just(0.0), magnitudes, magnitudes.map(lambda x: -x))
matrices = hnp.arrays(np.float32, (ROWS, WIDTH), elements=entries)


def definition(function, x):
    """As the papers write it; rows without a maximum are no numbers."""
    x = jnp.where(CAUSAL, x, 0) if function is attend_to_earlier else x
    positive = jnp.maximum(x, 0)
    over, under = {
        si_sigmoid: lambda: (positive, positive.max(-1)),
        si_tanh: lambda: (x, jnp.abs(x).max(-1)),
        unit_rms: lambda: (x, jnp.sqrt(jnp.mean(x**2, -1))),
    }.get(function, lambda: (positive, positive.sum(-1)))()
    return over / under[:, None]


def reference(function, x):
    """In float64, with zeros where there is no maximum."""
    with jax.enable_x64(True):
        return np.nan_to_num(definition(function, np.asarray(x, np.float64)))


def reference_pullback(function, x, gradient):
    with jax.enable_x64(True):
        _, pull_back = jax.vjp(functools.partial(definition, function), np.asarray(x, np.float64))
        return np.asarray(pull_back(np.asarray(gradient, np.float64))[0])


def ordinary_rows(seed=0, largest=None):
    """Rows without ties, with positive and negative entries, and a positive first entry for the causal mask."""
    x = np.random.default_rng(seed).normal(size=(ROWS, WIDTH))
    x[:, 0] = np.abs(x[:, 0])
    return x if largest is None else x * (largest / np.abs(x).max(axis=-1, keepdims=True))


def pullback(function, x, gradient):
    return np.asarray(jax.vjp(function, x)[1](gradient)[0])


# Values


@by_function
@given(x=matrices, power=st.integers(-50, 50))
def test_values_are_those_of_the_definition_and_powers_of_two_change_no_bit(function, x, power):
    np.testing.assert_allclose(function(x), reference(function, x), rtol=1e-6)
    np.testing.assert_array_equal(function(x * np.float32(2.0**power)), function(x))


@given(x=matrices, mask=hnp.arrays(bool, (ROWS, WIDTH)), hidden=entries)
def test_attention_is_to_visible_scores_alone_and_sums_to_1_or_to_0_where_none_is_positive(x, mask, hidden):
    weights = np.asarray(si_attention_weights(x, mask))
    assert np.all(weights >= 0)
    assert np.all(weights[~mask] == 0)
    np.testing.assert_allclose(weights.sum(axis=-1), np.any((x > 0) & mask, axis=-1), rtol=2e-6)
    np.testing.assert_array_equal(si_attention_weights(np.where(mask, x, np.float32(hidden)), mask), weights)


@by_function
@by_half
def test_half_precision_only_rounds(function, dtype):
    x, g = (jnp.asarray(ordinary_rows(seed), dtype) for seed in (0, 1))
    y = function(x)
    assert (y.dtype, y.shape) == (dtype, (ROWS, WIDTH))
    roundings = 2 if function in (attend_to_all, attend_to_earlier) else 1
    tolerance = 0.51 * roundings * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(y, np.float64), reference(function, x), rtol=tolerance)
    for power in (-4, 1, 9):
        np.testing.assert_array_equal(function(x * dtype(2.0**power)), y)
    small = np.tile([4.0, 2.0, -1.0, 0.0], (ROWS, WIDTH // 4)) * 2.0**-20
    for ends in (small, np.full((ROWS, WIDTH), 60_000.0)):
        found = np.asarray(function(jnp.asarray(ends, dtype)), np.float64)
        np.testing.assert_allclose(found, reference(function, ends), rtol=0.01)
    gradient, expected = pullback(function, x, g), reference_pullback(function, x, g)
    assert gradient.dtype == dtype
    np.testing.assert_allclose(gradient.astype(np.float64), expected, rtol=0.02, atol=0.02 * np.abs(expected).max())


@by_half
def test_the_sum_of_a_long_half_precision_row_is_not_rounded(dtype):
    # One more than the dtype counts to.
    length = int(2 / float(jnp.finfo(dtype).eps)) + 1
    weights = attend_to_all(jnp.ones((1, length), dtype))
    np.testing.assert_array_equal(weights, jnp.full((1, length), 1 / length, dtype))


# Rows without a maximum, with ties, and of next to nothing


@by_dtype
@by_function
def test_nothing_is_not_a_number_and_where_there_is_no_maximum_all_is_zero(function, dtype):
    ones = jnp.ones((ROWS, WIDTH), dtype)
    negative = -jnp.abs(jnp.asarray(ordinary_rows(), dtype)) - ones
    for x in (0 * ones, *([] if function in (si_tanh, unit_rms) else [negative])):
        assert not np.any(function(x))
        assert not np.any(pullback(function, x, ones))
    at_ties = pullback(function, ones, jnp.asarray(ordinary_rows(1), dtype))
    assert np.all(np.abs(at_ties.astype(np.float64)) < 20)
    for x in (1e-39, -1e-39, 1e-45):
        row = jnp.full((ROWS, WIDTH), x, dtype)
        assert np.all(np.isfinite(np.asarray(function(row), np.float32)))
        assert np.all(np.isfinite(pullback(function, row, ones).astype(np.float32)))


@by_dtype
def test_a_fully_masked_row_gives_zeros_and_zero_gradients(dtype):
    x = jnp.asarray(np.abs(ordinary_rows()), dtype)
    mask = np.array([True, False, True, False])[:, None]
    hidden = functools.partial(si_attention_weights, mask=mask)
    gradient = pullback(hidden, x, jnp.asarray(ordinary_rows(1), dtype))
    assert np.all(np.asarray(hidden(x))[1::2] == 0)
    assert np.all(gradient[1::2] == 0)
    assert np.all(np.any(gradient[::2] != 0, axis=-1))


# Gradients, and the ends of float32's range


@by_function
def test_gradients_are_those_of_the_definition_also_beside_a_row_of_zeros(function):
    with jax.enable_x64(True):
        x, g = jnp.asarray(ordinary_rows(0)), jnp.asarray(ordinary_rows(1))
        np.testing.assert_allclose(pullback(function, x, g), reference_pullback(function, x, g), rtol=1e-12, atol=1e-12)
    x, g = (ordinary_rows(seed).astype(np.float32) for seed in (0, 1))
    x[2] = 0
    gradient, others = pullback(function, x, g), np.array([0, 1, 3])
    assert np.all(gradient[2] == 0)
    np.testing.assert_allclose(gradient[others], reference_pullback(function, x, g)[others], rtol=1e-4, atol=1e-5)


@by_function
def test_values_and_gradients_at_the_ends_of_the_range(function):
    for largest in (1e-35, 1e-20, 1e20, 1e38, 3.4e38):
        x = ordinary_rows(0, largest).astype(np.float32)
        np.testing.assert_allclose(function(x), reference(function, x), rtol=1e-5)
    # A product of a gradient and a small entry, divided by the width, falls below the smallest normal number at 1e-35.
    atol = 1e-3 if function is unit_rms else 1e-4
    for largest in (1e-35, 1e-18, 1.0, 1e18, 8e37):
        x = ordinary_rows(0, largest).astype(np.float32)
        # Of the row's own size, so that the gradient is of size one.
        g = ordinary_rows(1).astype(np.float32) * np.float32(largest)
        np.testing.assert_allclose(pullback(function, x, g), reference_pullback(function, x, g), rtol=1e-4, atol=atol)
