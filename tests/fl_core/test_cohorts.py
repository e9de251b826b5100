import numpy as np
import pytest

from fl_core.cohorts import UniformSampler
from fl_core.errors import ConfigurationError
from fl_core.randomness import device_key, host_rng


def test_a_cohort_is_a_pure_function_of_seed_and_round():
    first, second = UniformSampler(100, 10, 3), UniformSampler(100, 10, 3)
    later = [second.sample(round_number).tolist() for round_number in reversed(range(20))]
    assert [first.sample(round_number).tolist() for round_number in range(20)] == later[::-1]
    assert first.sample(0).tolist() != UniformSampler(100, 10, 4).sample(0).tolist()


def test_cohorts_have_distinct_clients_and_differ_between_rounds():
    sampler = UniformSampler(50, 20, 0)
    cohorts = [sampler.sample(round_number) for round_number in range(30)]
    assert all(len(set(cohort.tolist())) == 20 for cohort in cohorts)
    assert len({tuple(sorted(cohort.tolist())) for cohort in cohorts}) == 30


def test_every_client_is_drawn_equally_often():
    """Chi-squared statistic of 2,000 cohorts of 5 from 20: mean 19 * 0.75 or less, threshold 60.

    Under uniform sampling the statistic exceeds 60 with probability below 1e-5 (chi-squared, 19 degrees).
    """
    sampler = UniformSampler(20, 5, 1)
    counts = np.bincount(np.concatenate([sampler.sample(r) for r in range(2000)]), minlength=20)
    assert np.sum((counts - 500) ** 2 / 500) < 60


@pytest.mark.parametrize("size", [0, 21])
def test_an_impossible_cohort_size_is_refused(size):
    with pytest.raises(ConfigurationError, match=f"cohort_size is {size}"):
        UniformSampler(20, size, 0)


def test_streams_are_independent_of_each_other():
    assert host_rng(0, "a").integers(2**62) != host_rng(0, "b").integers(2**62)
    assert host_rng(0, "a", 1).integers(2**62) != host_rng(0, "a", 2).integers(2**62)
    assert host_rng(0, "a", 1, 2).integers(2**62) == host_rng(0, "a", 1, 2).integers(2**62)
    assert device_key(0, "a", 1) != device_key(0, "b", 1)
    assert device_key(0, "a", 1) == device_key(0, "a", 1)
