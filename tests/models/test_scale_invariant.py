import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlm.models.scale_invariant import si_attention_weights, si_sigmoid, si_tanh, unit_rms

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
properties = settings(max_examples=40, deadline=None)


def reference(function, x):
    """The definition in float64 NumPy, row by row."""
    out = np.zeros(x.shape)
    for i, row in enumerate(np.asarray(x, np.float64)):
        if function is attend_to_earlier:
            row = np.where(CAUSAL[i], row, 0.0)
        positive = np.maximum(row, 0)
        over, under = {
            si_sigmoid: (positive, positive.max()),
            si_tanh: (row, np.abs(row).max()),
            unit_rms: (row, np.sqrt(np.mean(row**2))),
        }.get(function, (positive, positive.sum()))
        if under > 0:
            out[i] = over / under
    return out


def reference_pullback(function, x, gradient):
    """The derivative worked out by hand, for rows of zeros and rows without ties."""
    out = np.zeros(x.shape)
    for i, (row, g) in enumerate(zip(np.asarray(x, np.float64), np.asarray(gradient, np.float64), strict=True)):
        visible = CAUSAL[i] if function is attend_to_earlier else np.ones(WIDTH, bool)
        y = reference(function, x)[i]
        if not np.any(y):
            continue
        if function is si_tanh:
            k = np.argmax(np.abs(row))
            out[i] = g / np.abs(row[k])
            out[i, k] -= np.sign(row[k]) * np.sum(g * y) / np.abs(row[k])
        elif function is unit_rms:
            out[i] = (g - y * np.mean(g * y)) / np.sqrt(np.mean(row**2))
        elif function is si_sigmoid:
            k = np.argmax(row)
            out[i] = np.where(row > 0, g, 0) / row[k]
            out[i, k] -= np.sum(g * y) / row[k]
        else:
            seen = visible & (row > 0)
            out[i] = np.where(seen, g - np.sum(g * y), 0) / np.sum(row[seen])
    return out


def ordinary_rows(seed=0, dtype=np.float64):
    """Rows without ties, with positive and negative entries, and a positive first entry for the causal mask."""
    x = np.random.default_rng(seed).normal(size=(ROWS, WIDTH))
    x[:, 0] = np.abs(x[:, 0])
    return x.astype(dtype)


def pullback(function, x, gradient):
    return np.asarray(jax.vjp(function, x)[1](gradient)[0])


# Values


@by_function
@properties
@given(x=matrices)
def test_values_are_those_of_the_definition(function, x):
    np.testing.assert_allclose(function(x), reference(function, x), rtol=1e-6)


@by_function
@properties
@given(x=matrices, power=st.integers(-50, 50))
def test_powers_of_two_change_no_bit(function, x, power):
    np.testing.assert_array_equal(function(x * np.float32(2.0**power)), function(x))


@by_function
@properties
@given(x=matrices, scale=magnitudes)
def test_no_scale_changes_the_value(function, x, scale):
    np.testing.assert_allclose(function(x * np.float32(scale)), function(x), rtol=1e-6)


@by_function
@by_dtype
def test_powers_of_two_change_no_bit_in_any_precision(function, dtype):
    x = jnp.asarray(ordinary_rows(), dtype)
    for power in (-4, 1, 9):
        np.testing.assert_array_equal(function(x * dtype(2.0**power)), function(x))


@properties
@given(x=matrices)
def test_si_sigmoid_lies_between_0_and_1_and_reaches_1(x):
    y = np.asarray(si_sigmoid(x))
    assert np.all((y >= 0) & (y <= 1))
    np.testing.assert_allclose(y.max(axis=-1), x.max(axis=-1) > 0, rtol=1e-6)


@properties
@given(x=matrices)
def test_si_tanh_lies_between_minus_1_and_1_and_reaches_one_of_them(x):
    y = np.asarray(si_tanh(x))
    assert np.all(np.abs(y) <= 1)
    np.testing.assert_allclose(np.abs(y).max(axis=-1), np.any(x != 0, axis=-1), rtol=1e-6)


@properties
@given(x=matrices)
def test_unit_rms_has_a_mean_square_of_1_or_0(x):
    np.testing.assert_allclose(np.mean(np.square(unit_rms(x)), axis=-1), np.any(x != 0, axis=-1), rtol=1e-5)


@properties
@given(x=matrices, mask=hnp.arrays(bool, (ROWS, WIDTH)))
def test_attention_sums_to_1_or_where_no_visible_score_is_positive_to_0(x, mask):
    weights = np.asarray(si_attention_weights(x, mask))
    assert np.all(weights >= 0)
    assert np.all(weights[~mask] == 0)
    np.testing.assert_allclose(weights.sum(axis=-1), np.any((x > 0) & mask, axis=-1), rtol=2e-6)


@properties
@given(x=matrices, mask=hnp.arrays(bool, (ROWS, WIDTH)), hidden=entries)
def test_attention_does_not_depend_on_hidden_scores(x, mask, hidden):
    changed = np.where(mask, x, np.float32(hidden))
    np.testing.assert_array_equal(si_attention_weights(changed, mask), si_attention_weights(x, mask))


@by_function
@by_dtype
def test_dtype_and_shape_are_kept(function, dtype):
    y = function(jnp.asarray(ordinary_rows(), dtype))
    assert (y.dtype, y.shape) == (dtype, (ROWS, WIDTH))


@by_function
@by_half
def test_half_precision_only_rounds(function, dtype):
    x = jnp.asarray(ordinary_rows(), dtype)
    roundings = 2 if function in (attend_to_all, attend_to_earlier) else 1
    np.testing.assert_allclose(
        np.asarray(function(x), np.float64), reference(function, x), rtol=0.51 * roundings * float(jnp.finfo(dtype).eps)
    )


@by_function
def test_half_precision_does_not_overflow(function):
    x = jnp.full((ROWS, WIDTH), 60_000, jnp.float16)
    np.testing.assert_allclose(function(x), reference(function, x), rtol=1e-3)


@by_function
@by_half
def test_half_precision_rows_far_below_one_are_normalised_too(function, dtype):
    x = np.tile([4.0, 2.0, -1.0, 0.0], (ROWS, WIDTH // 4)) * 2.0**-20
    expected = reference(function, x)
    np.testing.assert_allclose(np.asarray(function(jnp.asarray(x, dtype)), np.float64), expected, rtol=0.01)


@by_half
def test_the_sum_of_a_long_half_precision_row_is_not_rounded(dtype):
    # One more than the dtype counts to.
    length = int(2 / float(jnp.finfo(dtype).eps)) + 1
    weights = attend_to_all(jnp.ones((1, length), dtype))
    np.testing.assert_array_equal(weights, jnp.full((1, length), 1 / length, dtype))


# Rows without a maximum


def rows_of_zeros(dtype):
    return jnp.zeros((ROWS, WIDTH), dtype)


def negative_rows(dtype):
    return -jnp.abs(jnp.asarray(ordinary_rows(), dtype)) - jnp.ones((), dtype)


NOTHING = [(function, rows_of_zeros) for function in FUNCTIONS.values()] + [
    (function, negative_rows) for function in FUNCTIONS.values() if function not in (si_tanh, unit_rms)
]


@by_dtype
@pytest.mark.parametrize(("function", "rows"), NOTHING, ids=lambda value: value.__name__)
def test_rows_of_zeros_and_of_negatives_give_zeros_and_zero_gradients(function, rows, dtype):
    x = rows(dtype)

    @jax.jit
    def value_and_gradient(x):
        value, pull_back = jax.vjp(function, x)
        return value, *pull_back(jnp.ones_like(x))

    assert all(np.all(np.asarray(found) == 0) for found in value_and_gradient(x))


@by_dtype
def test_a_fully_masked_row_gives_zeros_and_zero_gradients(dtype):
    x = jnp.asarray(np.abs(ordinary_rows()), dtype)
    mask = np.array([True, False, True, False])[:, None]
    hidden = functools.partial(si_attention_weights, mask=mask)
    gradient = pullback(hidden, x, jnp.asarray(ordinary_rows(1), dtype))
    assert np.all(np.asarray(hidden(x))[1::2] == 0)
    assert np.all(gradient[1::2] == 0)
    assert np.all(np.any(gradient[::2] != 0, axis=-1))


@by_function
def test_a_row_of_zeros_leaves_the_rows_beside_it_alone(function):
    x = ordinary_rows(dtype=np.float32)
    x[2] = 0
    g = ordinary_rows(1, np.float32)
    others = np.array([0, 1, 3])
    np.testing.assert_allclose(function(x), reference(function, x), rtol=1e-6)
    gradient = pullback(function, x, g)
    assert np.all(gradient[2] == 0)
    np.testing.assert_allclose(gradient[others], reference_pullback(function, x, g)[others], rtol=1e-4, atol=1e-5)


# Gradients


@by_function
def test_the_hand_written_derivative_is_that_of_the_definition(function):
    x, g, along = (ordinary_rows(seed) for seed in (0, 1, 2))
    step = 1e-6
    change = np.sum(g * (reference(function, x + step * along) - reference(function, x - step * along))) / (2 * step)
    np.testing.assert_allclose(np.sum(reference_pullback(function, x, g) * along), change, rtol=1e-6)


@by_function
def test_gradients_in_float64(function):
    with jax.enable_x64(True):
        x, g = jnp.asarray(ordinary_rows(0)), jnp.asarray(ordinary_rows(1))
        np.testing.assert_allclose(pullback(function, x, g), reference_pullback(function, x, g), rtol=1e-12, atol=1e-12)


@by_function
@pytest.mark.parametrize("power", [-50, -20, 0, 20, 50])
def test_gradients_in_float32_at_any_scale(function, power):
    x = ordinary_rows(0, np.float32) * np.float32(2.0**power)
    g = ordinary_rows(1, np.float32)
    expected = reference_pullback(function, x, g)
    np.testing.assert_allclose(pullback(function, x, g), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@by_function
@by_half
def test_gradients_in_half_precision(function, dtype):
    x, g = (jnp.asarray(ordinary_rows(seed), dtype) for seed in (0, 1))
    gradient = pullback(function, x, g)
    expected = reference_pullback(function, x, g)
    assert gradient.dtype == dtype
    np.testing.assert_allclose(gradient.astype(np.float64), expected, rtol=0.02, atol=0.02 * np.abs(expected).max())


@by_function
@by_dtype
def test_gradients_at_ties_are_finite_and_bounded(function, dtype):
    x = jnp.ones((ROWS, WIDTH), dtype)
    gradient = pullback(function, x, jnp.asarray(ordinary_rows(1), dtype)).astype(np.float64)
    assert np.all(np.abs(gradient) < 20)


@by_function
def test_the_gradient_is_orthogonal_to_the_row(function):
    # The derivative along the row itself is that by the scale: none.
    x, g = ordinary_rows(0, np.float32), ordinary_rows(1, np.float32)
    np.testing.assert_allclose(np.sum(pullback(function, x, g) * x, axis=-1), 0, atol=1e-5)


# The ends of float32's range


def rows_with_maximum(largest):
    x = ordinary_rows(0)
    return (x * (largest / np.abs(x).max(axis=-1, keepdims=True))).astype(np.float32)


@by_function
@pytest.mark.parametrize(
    "largest",
    [
        1e-35,
        1e-20,
        1e20,
        8e37,
        1e38,
        3.4e38,
    ],
)
def test_values_at_the_ends_of_the_range(function, largest):
    x = rows_with_maximum(largest)
    np.testing.assert_allclose(function(x), reference(function, x), rtol=1e-5)


@by_function
@pytest.mark.parametrize("largest", [1e-35, 1e-20, 1e-18, 1e18, 1e20, 8e37])
def test_gradients_at_the_ends_of_the_range(function, largest):
    x = rows_with_maximum(largest)
    # Of the row's own size, so that the gradient is of size one.
    g = ordinary_rows(1).astype(np.float32) * np.float32(largest)
    # A product of g and a small entry, divided by the width, falls below the smallest normal number at 1e-35.
    atol = 1e-3 if function is unit_rms else 1e-4
    np.testing.assert_allclose(pullback(function, x, g), reference_pullback(function, x, g), rtol=1e-4, atol=atol)


@by_function
@by_dtype
def test_below_the_smallest_normal_number_nothing_is_not_a_number(function, dtype):
    for x in (1e-39, -1e-39, 1e-45):
        row = jnp.full((ROWS, WIDTH), x, dtype)
        assert np.all(np.isfinite(np.asarray(function(row), np.float32)))
        assert np.all(np.isfinite(pullback(function, row, jnp.ones_like(row)).astype(np.float32)))
