import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.composition import GaussianEvent, epsilon_above
from fedlm.fl_core.privacy.many_calibrations import many_noise_multipliers


def test_noise_found_for_many_is_enough_and_little_more_than_needed():
    rng = np.random.default_rng(0)
    count = 16
    probability, steps = 10 ** rng.uniform(-5, -1, count), np.round(10 ** rng.uniform(1, 5, count))
    epsilon, delta = 10 ** rng.uniform(-0.5, 1.2, count), 10 ** rng.uniform(-12, -5, count)
    found = many_noise_multipliers(probability, steps, epsilon, delta)
    for q, rounds, target, at, noise in zip(probability, steps, epsilon, delta, found, strict=True):

        def spent(noise, q=q, rounds=rounds, at=at):
            return epsilon_above([GaussianEvent(float(noise), int(rounds), float(q))], float(at))

        assert spent(noise) <= target
        if noise > 0.2501:
            assert spent(noise * 0.8) > target


def test_arguments_are_broadcast_and_checked():
    found = many_noise_multipliers([[0.01], [0.02]], 100, [1.0, 2.0, 4.0], 1e-6)
    assert found.shape == (2, 3)
    assert (np.diff(found, axis=0) > 0).all()
    assert (np.diff(found, axis=1) < 0).all()
    with pytest.raises(ConfigurationError, match="delta has 2"):
        many_noise_multipliers(0.1, 10, 1.0, [1e-6, 2.0])
    with pytest.raises(ConfigurationError, match=r"delta has 9.9e-16, but must be at least 1e-15 and below 1"):
        many_noise_multipliers(0.1, 10, 1.0, [1e-6, 9.9e-16])
