import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.randomness import device_key, host_rng
from fedlm.fl_core.rounds.cohorts import UniformSampler, WhoeverChecksIn


def test_cohorts_are_distinct_clients_that_differ_between_rounds_and_follow_from_seed_and_round():
    first, second = UniformSampler(50, 20, 3), UniformSampler(50, 20, 3)
    cohorts = [first.sample(round_number).tolist() for round_number in range(30)]
    assert cohorts == [second.sample(round_number).tolist() for round_number in reversed(range(30))][::-1]
    assert all(len(set(cohort)) == 20 for cohort in cohorts)
    assert len({tuple(sorted(cohort)) for cohort in cohorts}) == 30
    assert cohorts[0] != UniformSampler(50, 20, 4).sample(0).tolist()


def test_every_client_is_drawn_equally_often():
    """Chi-squared statistic of 2,000 cohorts of 5 from 20: mean 19 * 0.75 or less, threshold 60.

    Under uniform sampling the statistic exceeds 60 with probability below 1e-5 (chi-squared, 19 degrees).
    """
    sampler = UniformSampler(20, 5, 1)
    counts = np.bincount(np.concatenate([sampler.sample(r) for r in range(2000)]), minlength=20)
    assert np.sum((counts - 500) ** 2 / 500) < 60


@pytest.mark.parametrize("size", [0, 3])
def test_more_clients_than_there_are_are_refused(size):
    with pytest.raises(ConfigurationError, match=f"cohort_size is {size}"):
        UniformSampler(2, size, 0)


def test_streams_are_independent_of_each_other():
    assert host_rng(0, "a").integers(2**62) != host_rng(0, "b").integers(2**62)
    assert host_rng(0, "a", 1).integers(2**62) != host_rng(0, "a", 2).integers(2**62)
    assert host_rng(0, "a", 1, 2).integers(2**62) == host_rng(0, "a", 1, 2).integers(2**62)
    assert device_key(0, "a", 1) != device_key(0, "b", 1)
    assert device_key(0, "a", 1) == device_key(0, "a", 1)


def test_a_secret_gives_each_stream_a_key_of_128_bits():
    secret = bytes(range(32))

    def key(secret, *name):
        return host_rng(secret, *name).bit_generator.state["state"]["key"]

    assert key(secret, "a", 1).nbytes * 8 == 128
    others = [key(secret, "b", 1), key(secret, "a", 2), key(secret, "a"), key(secret, "a", 1, 0)]
    others += [key(secret[:place] + b"\xff" + secret[place + 1 :], "a", 1) for place in range(32)]
    keys = {other.tobytes() for other in [*others, key(secret, "a", 1)]}
    assert len(keys) == len(others) + 1
    assert host_rng(secret, "a", 1).random() == host_rng(secret, "a", 1).random()


def test_where_clients_check_in_nobody_is_named():
    assert not len(WhoeverChecksIn().sample(3))
