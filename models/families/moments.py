"""How the noise in a model's parameters spreads through its layers: means and variances of Gaussians, layer by layer.

Private training adds the same noise to every parameter, but not every parameter is in every example's gradient: what a
step tells of a rare token's embedding is little, and the noise is what it always is. DPFormer (arXiv 2305.17633,
section 5; "Delving into Differentially Private Transformer", arXiv 2405.18194) takes this error for the variance of a
Gaussian around each parameter, and follows it through the layers, each of which it replaces by the Gaussian that has
the layer's mean and variance (equation 5.4).

Where a formula is the paper's its equation is named; the paper says nothing of layer norms, residual sums, attention's
weighted sums and positions, and what is done there is ours:

- A row's noise is isotropic: one variance for all coordinates, the mean of theirs.
- A number that was computed of noisy parameters stands for its own mean.
- Errors in different places are taken to be independent, although the same parameters are behind many.
- Attention weights are taken for exact when values are summed by them.

Every function is held to a million random draws by the tests. All are exact for independent Gaussians but
`layer_norm_variance`, whose error is of the order of one over the width.
"""

import math

import jax
import jax.numpy as jnp


def effective_error(noise_batch_ratio: float, relevance: jax.Array) -> jax.Array:
    """Compute the effective error of parameters, a standard deviation (DPFormer, equation C.1, claims 5.3 and 5.4).

    The clip norm is 1; learning rate and number of steps do not enter.

    Args:
      noise_batch_ratio: noise multiplier divided by batch size, which is the error of the mean of a batch.
      relevance: float [...], positive: the probability that a unit's gradient has anything to do with the parameter;
        1 for those of blocks, for a token's embedding the probability that the token occurs in a unit.

    Returns:
      float [...].
    """
    return noise_batch_ratio / relevance


def linear_variance(
    mean: jax.Array, variance: jax.Array, squares: jax.typing.ArrayLike, weight_variance: jax.typing.ArrayLike
) -> jax.Array:
    """Compute the variance of `x @ W` of independent Gaussians, where that of x is the same in all inputs, on average
    over the outputs (DPFormer, equation 5.5 and appendix D.1).

    Args:
      mean: of x, float [..., inputs].
      variance: of each input, float [...].
      squares: the sum of the squares of W's entries, divided by the number of outputs.
      weight_variance: of every entry of W.

    Returns:
      float [...].
    """
    length = jnp.sum(jnp.square(mean), axis=-1)
    return (mean.shape[-1] * variance + length) * weight_variance + variance * squares


def relu_moments(mean: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute mean and variance of `max(x, 0)` of a Gaussian (DPFormer, equation 5.6 and appendix D.2), float [...].

    With t the mean in standard deviations s, the mean is `s (t Phi(t) + phi(t))`. The variance is the paper's
    `(t^2 + 1) Phi + t phi - (t Phi + phi)^2` in units of s^2, multiplied out so that nothing large cancels.
    """
    certain, deviation = _deviation(variance)
    ratio = mean / deviation
    above, below, density = _cumulative(ratio), _cumulative(-ratio), _density(ratio)
    expected = mean * above + deviation * density
    share = above + jnp.square(ratio) * above * below + ratio * density * (below - above) - jnp.square(density)
    return (
        jnp.where(certain, jnp.maximum(mean, 0.0), expected),
        jnp.where(certain, 0.0, variance * jnp.clip(share, 0.0, 1.0)),
    )


def layer_norm_variance(
    x: jax.Array, variance: jax.Array, scale: jax.Array, weight_variance: jax.typing.ArrayLike
) -> jax.Array:
    """Compute the variance of a layer norm's output, on average over the coordinates. Ours.

    A normalised row has mean square 1, noise or not, so that the noise in it is its share of the row: with n
    coordinates, s^2 their variance in the row and `u = v (1 - 1/n)` what centring leaves of the noise, `u / (s^2 + u)`.
    The errors of scale and shift add one variance each.

    Args:
      x: what comes in, float [..., width].
      variance: of each coordinate of it, float [...].
      scale: of the layer norm, float [width].
      weight_variance: of every entry of scale and shift.

    Returns:
      float [...].
    """
    noise = variance * (1 - 1 / x.shape[-1])
    signal = jnp.var(x, axis=-1)
    share = jnp.where(noise > 0, noise / jnp.where(noise > 0, signal + noise, 1.0), 0.0)
    return jnp.mean(jnp.square(scale)) * share + 2 * weight_variance


def weighted_sum_variance(weights: jax.Array, variance: jax.Array) -> jax.Array:
    """Compute the variance of sums of independent values by exact weights: `sum_j S_ij^2 v_j`. Ours.

    Args:
      weights: float [..., queries, keys].
      variance: of the values of each key, float [..., keys].

    Returns:
      float [..., queries].
    """
    return jnp.einsum("...qk,...k->...q", jnp.square(weights), variance)


def exponential_inflation(score_variance: jax.Array) -> jax.Array:
    """Compute the logarithm of how much noise in a score makes its exponential larger on average, `v / 2`, float [...]
    (DPFormer, equation 5.2: `E exp(x) = exp(E x + Var x / 2)`)."""
    return score_variance / 2


def without_relu_inflation(score: jax.Array, score_variance: jax.Array) -> jax.Array:
    """Divide `relu(score)` by how much noise in the score makes it larger on average. Ours: what equation 5.2 is to
    softmax attention, for attention that is proportional to `relu(score)`.

    With `E relu(x)` of `relu_moments` it is `relu(score)^2 / E relu(x)`. It is homogeneous: scores a > 0 times as
    large, with their standard deviations, give a times as much, so that scale-invariant attention stays that.

    Args:
      score: float [...].
      score_variance: float [...].

    Returns:
      float [...], between 0 and relu(score).
    """
    certain, deviation = _deviation(score_variance)
    positive = jax.nn.relu(score)
    ratio = positive / deviation
    expected = ratio * _cumulative(ratio) + _density(ratio)
    return jnp.where(certain, positive, positive * ratio / expected)


def _deviation(variance: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Say where there is no noise; the standard deviation, 1 there."""
    certain = variance <= 0
    return certain, jnp.sqrt(jnp.where(certain, 1.0, variance))


def _cumulative(x: jax.Array) -> jax.Array:
    # By erfc, which keeps its digits where it is small.
    return 0.5 * jax.lax.erfc(-x / math.sqrt(2))


def _density(x: jax.Array) -> jax.Array:
    return jnp.exp(-0.5 * jnp.square(x)) / math.sqrt(2 * math.pi)
