import random

import numpy as np

from fedlm.fl_core.deployment.server.pacing import PaceSteering


def waits(population, rest=0, count=2000, round_seconds=100.0):
    pacing = PaceSteering(per_round=100, soonest=10.0, randomness=random.Random(0))
    for _ in range(50):
        pacing.round_took(round_seconds)
    return np.array([pacing.wait(population, rest) for _ in range(count)])


def test_few_clients_are_asked_back_soon():
    assert waits(150).max() <= 12.5


def test_many_clients_check_in_about_twice_as_often_as_a_round_needs():
    """10,000 clients that wait so long make so many check-ins in the 100 seconds of a round."""
    mean = waits(10_000).mean()
    assert 180 <= 10_000 * 100 / mean <= 220


def test_waits_are_spread_and_have_an_end():
    spread = waits(10_000)
    assert spread.std() > 0.1 * spread.mean()
    assert waits(10**9).max() <= 1.25 * 6 * 3600


def test_a_client_that_rests_is_asked_back_when_it_may_take_part_again():
    assert 375 < waits(150, rest=5).min() < waits(150, rest=5).max() < 625


def test_members_that_wait_ask_again_a_hundred_times_a_second_together_and_each_several_times_in_a_step():
    for cohort, step, about in ((10, 600.0, 2.0), (1000, 600.0, 10.0), (1000, 32.0, 4.0)):
        pacing = PaceSteering(cohort, 2.0, random.Random(0), step_seconds=step)
        assert 0.7 * about < min(found := [pacing.member_wait() for _ in range(100)]) < max(found) < 1.3 * about
