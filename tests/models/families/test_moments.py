"""Each formula against 100,000 draws. A mean or a variance may be off by 5 standard errors: with a few hundred of
them compared, on seeds that are fixed, that would happen by chance in one of 5,000 choices of seeds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from fedlm.models.families import moments

DRAWS = 100_000
ERRORS = 5


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def assert_moments(draws, mean, variance, relative=0.0):
    """Compare with draws [draws, ...], to so many standard errors and a relative error."""
    centred = draws - draws.mean(axis=0)
    square = np.square(centred)
    found = square.mean(axis=0)
    root = len(draws) ** 0.5
    assert np.all(np.abs(draws.mean(axis=0) - mean) <= ERRORS * np.sqrt(found) / root + 1e-5 * np.abs(mean) + 1e-9)
    assert np.all(np.abs(found - variance) <= ERRORS * square.std(axis=0) / root + (1e-5 + relative) * found + 1e-12)


def test_activations_are_exact():
    """Against adaptive quadrature, in float64, over means and deviations far beyond those of a network; without noise
    the mean is the value."""
    grid = [(m, s) for m in (-30, -1, 0, 2, 100) for s in (0.0, 1e-3, 0.3, 4, 50)]
    with jax.enable_x64(True):
        found = np.array([moments.relu_moments(jnp.float64(m), jnp.float64(s**2)) for m, s in grid]).tolist()
    for (m, s), (mean, variance) in zip(grid, found, strict=True):
        expected = expectation(lambda x: max(x, 0), m, s) if s else max(m, 0)
        square = expectation(lambda x, c=expected: (max(x, 0) - c) ** 2, m, s) if s else 0
        np.testing.assert_allclose(mean, expected, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(variance, square, rtol=1e-6, atol=1e-10 * s**2)

    # A variance that is the difference of two large moments would have no digit left in single precision.
    np.testing.assert_allclose(moments.relu_moments(jnp.float32(20), jnp.float32(1e-8))[1], 1e-8, rtol=1e-4)
    # Table 3 of the paper.
    np.testing.assert_allclose(moments.relu_moments(jnp.float32(0), jnp.float32(1))[1], 0.3408, atol=1e-4)


def expectation(function, mean, deviation):
    edges = (-mean / deviation, (-mean - 4) / deviation, (-mean + 4) / deviation)
    points = sorted({float(np.clip(edge, -12, 12)) for edge in edges})
    return integrate.quad(
        lambda z: function(mean + deviation * z) * stats.norm.pdf(z), -12, 12, points=points, limit=500, epsabs=1e-15
    )[0]


INPUTS, OUTPUTS = 3, 4


def linear_variances(mean, variance, weights, of_weights):
    """Of each output of a linear map of independent Gaussians."""
    return np.sum(variance + mean**2, axis=-1, keepdims=True) * of_weights + variance @ weights**2


def test_linear_maps():
    mean, weights = normal(0, INPUTS), normal(1, INPUTS, OUTPUTS)
    variance, of_weights = np.array([0.5, 0.0, 2.0]), 0.3
    x = mean + np.sqrt(variance) * normal(2, DRAWS, INPUTS)
    noisy = weights + np.sqrt(of_weights) * normal(3, DRAWS, INPUTS, OUTPUTS)
    draws = np.einsum("di,dio->do", x, noisy)
    assert_moments(draws, mean @ weights, linear_variances(mean, variance, weights, of_weights))
    # With the same variance in all inputs of a row.
    rows = normal(0, 2, INPUTS)
    each = linear_variances(rows, np.repeat([[0.4], [1.5]], INPUTS, axis=1), weights, of_weights)
    alike = moments.linear_variance(
        jnp.float32(rows), jnp.array([0.4, 1.5]), jnp.float32(np.sum(weights**2) / OUTPUTS), of_weights
    )
    np.testing.assert_allclose(alike, each.mean(axis=-1), rtol=1e-5)
    shares = np.array([[0.7, 0.3, 0.0], [0.2, 0.2, 0.6]])
    mixed = moments.weighted_sum_variance(jnp.float32(shares), jnp.float32(variance))
    np.testing.assert_allclose(mixed, shares**2 @ variance, rtol=1e-5)


WIDTH = 16


@pytest.mark.parametrize("deviation", [0.02, 1.0, 30.0])
def test_layer_norms(deviation):
    """Off by less than the width's inverse of what it is; and by less where there is little noise, or little else."""
    x, scale = normal(0, WIDTH), 1 + 0.2 * normal(1, WIDTH)
    noisy = x + deviation * normal(2, DRAWS, WIDTH)
    centred = noisy - noisy.mean(axis=1, keepdims=True)
    variance = np.mean(np.var(scale * centred / np.sqrt(np.square(centred).mean(axis=1, keepdims=True)), axis=0))
    found = moments.layer_norm_variance(jnp.float32(x), jnp.float32(deviation**2), jnp.float32(scale), 0.0)
    np.testing.assert_allclose(found, variance, rtol=2 / WIDTH)


def test_layer_norms_whose_parameters_are_noisy():
    x, error = normal(0, 4), 0.3
    centred = x - x.mean()
    normalised = centred / centred.std()
    draws = (1 + error * normal(1, DRAWS, 4)) * normalised + error * normal(2, DRAWS, 4)
    found = moments.layer_norm_variance(jnp.float32(x), jnp.float32(0), jnp.ones(4), error**2)
    per_draw = np.square(draws - normalised).mean(axis=1)
    assert abs(per_draw.mean() - found) <= ERRORS * per_draw.std() / DRAWS**0.5
    # A row without signal is all noise.
    for variance in (0.5, 0.0):
        assert moments.layer_norm_variance(jnp.ones(8), jnp.float32(variance), jnp.ones(8), 0.0) == (variance > 0)


def test_inflation_of_exponential_scores():
    """E exp<q, K> over exp<q, k> with isotropic noise in K; |q| s below 1, where so many draws tell the mean."""
    q, k, s = normal(0, 6) / 2.5, normal(1, 6) / 2, 0.7
    draws = np.exp((k + s * normal(2, DRAWS, 6)) @ q)
    expected = np.exp(q @ k + moments.exponential_inflation(q @ q * s**2))
    assert abs(draws.mean() - expected) <= ERRORS * draws.std() / DRAWS**0.5


@pytest.mark.parametrize("size", [0.1, 5.0])
def test_inflation_of_scores_of_relu(size):
    q, k, s = size * normal(0, 6), normal(1, 6) + 0.5, 0.7
    score = q @ k
    sign = np.sign(score)
    draws = np.maximum(sign * ((k + s * normal(2, DRAWS, 6)) @ q), 0)
    found = moments.without_relu_inflation(jnp.float32(abs(score)), jnp.float32(q @ q * s**2))
    inflation = draws.mean() / abs(score)
    np.testing.assert_allclose(abs(score) / found, inflation, rtol=ERRORS * draws.std() / draws.mean() / DRAWS**0.5)


def test_corrected_relu_scores_are_homogeneous():
    score, variance = jnp.array([-1.0, 0.0, 0.3, 2.0]), jnp.array([0.5, 1.0, 2.0, 0.0])
    one = moments.without_relu_inflation(score, variance)
    np.testing.assert_array_equal(moments.without_relu_inflation(4 * score, 16 * variance), 4 * one)
    assert one[0] == one[1] == 0
    assert one[3] == 2
    assert 0 < one[2] < 0.3
    gradient = jax.grad(lambda s, v: jnp.sum(moments.without_relu_inflation(s, v)), argnums=(0, 1))(score, variance)
    assert all(np.all(np.isfinite(leaf)) for leaf in gradient)
