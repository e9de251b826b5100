"""Populations have the rates that they are asked for. Each bound on a rate is broken by chance once in 10^6 tests."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from fedlm.clients.fleet.population import Population
from fedlm.fl_core.errors import ConfigurationError

FALSE_ALARMS = 1e-6
POPULATION = Population(seed=3)
DAY = POPULATION.day_seconds


def assert_rate(count, tries, probability):
    """A binomial count, on either side."""
    low, high = binom.ppf([FALSE_ALARMS / 2, 1 - FALSE_ALARMS / 2], tries, probability)
    assert low <= count <= high, (count, tries, probability)


@given(seed=st.integers(0, 2**31), client=st.integers(0, 10**6), time=st.floats(0, 1e9))
def test_everything_follows_from_seed_client_and_time(seed, client, time):
    one, same = Population(seed=seed), Population(seed=seed)
    traits = one.traits(client)
    assert traits == same.traits(client)
    assert one.is_available(client, time, traits.shift) == same.is_available(client, time, traits.shift)
    assert one.dropout_of(client, 1) == same.dropout_of(client, 1)
    assert 0 <= one.expected_availability(time, traits.shift) <= 1


@pytest.mark.parametrize("hour", [2, 8, 14])
def test_availability_follows_the_day(hour):
    clients, time = 4000, 3 * DAY + hour / 24 * DAY
    expected = POPULATION.expected_availability((math.floor(time / 900) + 0.5) * 900, 0.0)
    assert expected == pytest.approx({2: 0.8, 8: 0.5, 14: 0.2}[hour], abs=0.02)
    assert_rate(sum(POPULATION.is_available(client, time, 0.0) for client in range(clients)), clients, expected)


def test_over_whole_days_devices_are_there_as_often_as_asked_for():
    # Slots of a day are independent, with other probabilities each: their sum varies less than a binomial one.
    times = np.arange(0, 40 * DAY, POPULATION.stay_seconds)
    count = sum(POPULATION.is_available(7, time, 0.1) for time in times)
    assert_rate(count, len(times), POPULATION.availability)


def test_dropouts():
    tries, population = 4000, Population(dropout=0.08, away_seconds=300.0)
    found = [population.dropout_of(client, number) for client in range(400) for number in range(10)]
    dropped = [one for one in found if one is not None]
    assert_rate(len(dropped), tries, 0.08)
    assert_rate(sum(one.during == "upload" for one in dropped), len(dropped), 0.5)
    assert_rate(sum(one.share < 0.25 for one in dropped), len(dropped), 0.25)
    assert_rate(sum(one.away > 300.0 for one in dropped), len(dropped), math.exp(-1))
    assert Population(dropout=0.0).dropout_of(1, 1) is None


def test_examples_have_a_heavy_tail():
    clients, population = 8000, Population(examples=100.0)
    found = np.array([population.examples_of(client) for client in range(clients)])
    for times in (1, 4, 20):
        assert_rate((found > 100 * times).sum(), clients, 0.5 * times**-1.2)
    assert found.min() == round(100 * 0.5 ** (1 / 1.2))
    assert POPULATION.examples_of(1) is None


@pytest.mark.parametrize(
    "change",
    [
        {"availability": 1.2},
        {"availability": 0.9, "diurnal": 0.5},
        {"dropout": -0.1},
        {"day_seconds": 0.0},
        {"link_bytes": -1.0},
        {"speeds": (1.0,)},
        {"speed_shares": (0.5, 0.5, 0.5)},
        {"examples": 0.0},
        {"seed": -1},
    ],
)
def test_impossible_populations_are_refused(change):
    with pytest.raises(ConfigurationError, match=next(iter(change))):
        dataclasses.replace(POPULATION, **change)
