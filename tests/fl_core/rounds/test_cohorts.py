import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.randomness import device_key, host_rng
from fedlm.fl_core.rounds.cohorts import (
    Availability,
    AvailabilitySampler,
    UniformSampler,
    WeightedSampler,
    WhoeverChecksIn,
)


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


def weighted(weights, cohort_size, seed=0):
    with np.errstate(divide="ignore"):
        return WeightedSampler(np.log(np.asarray(weights, float)), cohort_size, seed)


WEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40)


@given(WEIGHTS, st.integers(0, 10), st.integers(0, 2**32 - 1), st.integers(0, 5000), st.data())
def test_weighted_cohorts_are_distinct_clients_of_weight_and_a_pure_function(weights, zeros, seed, number, data):
    size = data.draw(st.integers(1, len(weights)))
    everyone = data.draw(st.permutations([*weights, *[0.0] * zeros]))
    cohort = weighted(everyone, size, seed).sample(number)
    assert len(set(cohort.tolist())) == len(cohort) == size
    assert all(everyone[client] > 0 for client in cohort)
    assert cohort.tolist() == weighted(everyone, size, seed).sample(number).tolist()


def test_clients_are_drawn_one_after_another_in_proportion_to_their_weights():
    """The order of 3 of 4 clients, 24 outcomes of 6,000: above 68 with probability 3e-6 (23 degrees of freedom)."""
    weights = np.array([1.0, 2.0, 4.0, 8.0])
    sampler = weighted(weights, 3)
    found = [tuple(sampler.sample(number).tolist()) for number in range(6000)]
    statistic = 0.0
    for order in itertools.permutations(range(4), 3):
        left, probability = weights.sum(), 1.0
        for client in order:
            probability *= weights[client] / left
            left -= weights[client]
        statistic += (found.count(order) - 6000 * probability) ** 2 / (6000 * probability)
    assert statistic < 68


def test_weights_beyond_any_float_are_no_trouble():
    sampler = WeightedSampler(np.array([5000.0, 4000.0, -np.inf]), 2, 0)
    assert sampler.sample(0).tolist() == [0, 1]


@pytest.mark.parametrize("size", [0, 3])
def test_more_clients_than_have_weight_are_refused(size):
    with pytest.raises(ConfigurationError, match=f"cohort_size is {size}.*above 0, 2"):
        weighted([1, 0, 2], size)
    with pytest.raises(ConfigurationError, match=f"cohort_size is {size}"):
        UniformSampler(2, size, 0)


def available(intervals, num_clients=6, cycle=24.0):
    columns = np.array(intervals, float).reshape(-1, 3).T
    return Availability(num_clients, cycle, columns[0].astype(np.int64), columns[1], columns[2])


def intervals_of(draw):
    start, end = sorted(draw.draw(st.tuples(st.integers(0, 24), st.integers(0, 24)).filter(lambda p: p[0] != p[1])))
    return draw.draw(st.integers(0, 5)), start, end


@given(st.data(), st.integers(0, 12), st.integers(0, 2**32 - 1), st.integers(0, 5000), st.integers(1, 6))
def test_available_cohorts_are_distinct_available_clients_and_a_pure_function(data, count, seed, number, size):
    intervals = [intervals_of(data) for _ in range(count)]
    availability = available(intervals)
    sampler = AvailabilitySampler(availability, 30.0, size, seed)
    hour = number * 0.5 % 24
    expected = sorted({client for client, start, end in intervals if start <= hour < end})
    assert availability.clients_at(hour).tolist() == expected
    assert (availability.count_intervals_at(np.array([hour]))[0] > 0) == bool(expected)
    if not expected:
        with pytest.raises(ConfigurationError, match=f"no client is available in round {number}, which begins at hour"):
            sampler.sample(number)
        return
    cohort = sampler.sample(number).tolist()
    assert len(set(cohort)) == len(cohort) == min(size, len(expected))
    assert set(cohort) <= set(expected)
    assert cohort == AvailabilitySampler(availability, 30.0, size, seed).sample(number).tolist()


def test_available_clients_are_drawn_like_any():
    """Of twelve every second one is available in the first hour alone."""
    sampler = AvailabilitySampler(available([(one, 0, 1 if one % 2 else 24) for one in range(12)], 12), 60.0, 4, 3)
    uniform = UniformSampler(6, 4, 3)
    for number in range(1, 24):
        assert sampler.sample(number).tolist() == (2 * uniform.sample(number)).tolist()


def test_a_round_begins_where_the_one_before_ended_and_the_cycle_repeats():
    sampler = AvailabilitySampler(available([(0, 0, 1), (1, 1, 24)]), 10.0, 2, 0)
    assert [int(sampler.sample(number)[0]) for number in range(144)] == [0] * 6 + [1] * 138
    assert sampler.sample(144 * 7 + 5).tolist() == [0]
    assert sampler.sample(144 * 7 + 6).tolist() == [1]


def test_every_round_of_the_run_and_of_the_first_cycle_is_checked():
    gap = AvailabilitySampler(available([(0, 0, 20), (1, 20.25, 24)]), 10.0, 1, 0)
    for rounds in (1, 5000):
        with pytest.raises(ConfigurationError, match="round 120, which begins at hour 20 of a cycle of 24 hours"):
            gap.check_rounds(rounds)
    # Rounds of 5 hours meet hours 0, 5, 10, 15 and 20 in the first cycle, and hour 21 only on the second day.
    meets = AvailabilitySampler(available([(0, 0, 21), (1, 23, 24)]), 60 * 5.0, 1, 0)
    meets.check_rounds(9)
    with pytest.raises(ConfigurationError, match="round 9, which begins at hour 21"):
        meets.check_rounds(10)


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
