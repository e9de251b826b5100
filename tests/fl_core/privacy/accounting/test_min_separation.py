"""Monte Carlo bounds of sampling with a min-separation against enumeration and integrals; seeds are fixed."""

import itertools
import math

import numpy as np
import pytest
import scipy

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting import min_separation
from fedlm.fl_core.privacy.accounting.composition import epsilon_bounds
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_epsilon_above
from fedlm.fl_core.privacy.accounting.min_separation import SeparatedEvent

TWO = SeparatedEvent(0.8, 2, 0.4, 2, (0.8, 0.6))


def weights_of(event):
    """The probability of each pattern of steps, by trying all starts and draws."""
    p, apart, found = event.sampling_probability, event.separation, {}
    free = 1 / (1 + (apart - 1) * p)
    for pattern in itertools.product((0, 1), repeat=event.steps):
        total = 0.0
        for start in range(apart):
            weight, open_from = free if not start else free * p, start
            for step, takes in enumerate(pattern):
                if step < open_from:
                    weight *= not takes
                else:
                    weight *= p if takes else 1 - p
                    open_from = step + apart if takes else open_from
            total += weight
        found[pattern] = total
    return found


def exact_delta(event, epsilon, remove):
    """The integral over the two steps' likelihood ratios, by quadrature in two dimensions."""
    variance = event.noise_multiplier**-2
    overlap = np.prod(event.coefficients) * variance
    x, weights = np.polynomial.hermite_e.hermegauss(300)
    first, second = np.meshgrid(x, x, indexing="ij")
    root = np.linalg.cholesky([[variance, overlap], [overlap, variance]])
    steps = [root[0, 0] * first, root[1, 0] * first + root[1, 1] * second]
    ratio = sum(
        weight * np.exp(sum(on * (u - variance / 2) for on, u in zip(pattern, steps, strict=True)))
        for pattern, weight in weights_of(event).items()
    )
    factor = math.exp(epsilon)
    found = np.maximum(ratio - factor, 0) if remove else np.maximum(1 - factor * ratio, 0)
    return float(weights @ found @ weights) / (2 * math.pi)


def test_one_pass_sums_over_all_patterns():
    event = SeparatedEvent(1.0, 7, 0.3, 3, (1.0,))
    logs = np.random.default_rng(0).normal(size=(7, 4))
    weights = weights_of(event)
    by_hand = sum(weight * np.exp(np.array(pattern) @ logs) for pattern, weight in weights.items())
    np.testing.assert_allclose(np.exp(min_separation.log_sum(event, logs)), by_hand)
    assert sum(weights.values()) == pytest.approx(1)


@pytest.mark.parametrize("remove", [True, False])
def test_draws_estimate_delta_and_none_counts_more_than_most(remove):
    """An estimate is farther than six of its standard errors from what it estimates once in 1e8 tests or less."""
    tilt = min_separation.tilt_of(TWO, 1.0)
    counts = min_separation.drawn(TWO, tilt, 1.0, np.random.default_rng(3), remove=remove, draws=100_000)
    assert counts.max() <= math.exp(tilt.log_most) * (1 + 1e-9)
    error = counts.std() / math.sqrt(len(counts))
    assert abs(counts.mean() - exact_delta(TWO, 1.0, remove)) < 6 * error + 1e-5


def test_tilted_patterns_have_their_weights():
    tilt = min_separation.tilt_of(TWO, 1.0)
    gain = tilt.power * (tilt.power - 1) / 2 / TWO.noise_multiplier**2
    tilted = {pattern: weight * math.exp(gain * sum(pattern)) for pattern, weight in weights_of(TWO).items() if weight}
    assert math.fsum(tilted.values()) == pytest.approx(math.exp(tilt.log_constant))
    found = min_separation.patterns(TWO, tilt, 50_000, np.random.default_rng(1)).T @ (2, 1)
    counts = np.bincount(found.astype(int), minlength=4)
    expected = np.array([tilted.get(pattern, 0.0) for pattern in itertools.product((0, 1), repeat=2)])
    assert counts[3] == 0
    assert scipy.stats.chisquare(counts[:3], 50_000 * expected[:3] / expected.sum()).pvalue > 1e-6


@pytest.mark.long
@pytest.mark.parametrize(("event", "within"), [(TWO, 1.03), (SeparatedEvent(1.5, 2, 0.1, 2, (0.8, 0.6)), 1.1)])
def test_epsilon_is_no_lower_than_that_of_an_integral_and_close(event, within):
    found = event.epsilon_above(1e-4)
    assert max(exact_delta(event, found, remove) for remove in (True, False)) <= 1e-4
    assert exact_delta(event, found / within, True) > 1e-4
    assert epsilon_bounds([event], 1e-4).lower < found < gaussian_epsilon_above(event.noise_multiplier, 1e-4)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigurationError, match="at least the 2 bands"):
        SeparatedEvent(1.0, 2, 0.4, 1, (0.8, 0.6)).epsilon_above(1e-4)
    assert SeparatedEvent(1.0, 0, 0.4, 2, (0.8, 0.6)).epsilon_above(1e-4) == 0
