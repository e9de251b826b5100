import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.private_cohorts import (
    MinSeparationSampler,
    ParticipationLimiter,
    PoissonSampler,
    ShuffledEpochSampler,
)


def test_poisson_cohorts_are_independent_draws_of_every_client():
    """False-alarm rate 1e-6 each: sizes are binomial, and clients come equally often."""
    sampler = PoissonSampler(40, 8, seed=1)
    cohorts = [sampler.sample(number) for number in range(4000)]
    sizes = np.array([len(cohort) for cohort in cohorts])
    expected = scipy.stats.binom(40, 0.2)
    assert abs(sizes.mean() - 8) < 4.9 * expected.std() / np.sqrt(len(sizes))
    assert abs(sizes.var() / expected.var() - 1) < 4.9 * np.sqrt(2 / len(sizes)) * 1.1
    counts = np.bincount(np.concatenate(cohorts), minlength=40)
    assert scipy.stats.chisquare(counts).pvalue > 1e-6
    together = sum(np.isin([0, 1], cohort).all() for cohort in cohorts)
    assert scipy.stats.binomtest(int(together), 4000, 0.04).pvalue > 1e-6


def check(cohorts, num_clients, bound):
    """Look at every client's rounds, with nothing but what was handed out."""
    rounds = [[] for _ in range(num_clients)]
    for number, cohort in enumerate(cohorts):
        assert len(set(cohort.tolist())) == len(cohort)
        for client in cohort:
            rounds[client].append(number)
    for of_client in rounds:
        assert bound.max_participations is None or len(of_client) <= bound.max_participations
        assert np.all(np.diff(of_client) >= bound.min_separation)


@given(st.integers(1, 6), st.integers(1, 5), st.one_of(st.none(), st.integers(1, 4)), st.integers(0, 100))
def test_min_separation_and_participations_are_kept(cohort_size, apart, most, seed):
    bound = BoundedParticipation(most, apart)
    clients = cohort_size * apart + 3
    sampler = MinSeparationSampler(clients, cohort_size, seed, bound)
    cohorts = [sampler.sample(number) for number in range(40)]
    check(cohorts, clients, bound)
    if most is None:
        assert {len(cohort) for cohort in cohorts} == {cohort_size}


def test_a_cohort_does_not_depend_on_what_was_asked_before():
    bound = BoundedParticipation(5, 3)
    in_order = MinSeparationSampler(60, 10, 3, bound)
    cohorts = [in_order.sample(number) for number in range(20)]
    for number in (19, 4, 4, 0, 11):
        np.testing.assert_array_equal(MinSeparationSampler(60, 10, 3, bound).sample(number), cohorts[number])
        np.testing.assert_array_equal(in_order.sample(number), cohorts[number])


def test_three_thousand_rounds_of_check_ins():
    """Clients check in as they like; restarts of the server every now and then. The promise holds to the end."""
    rounds, clients, bound = 3_000, 50, BoundedParticipation(60, 7)
    limiter = ParticipationLimiter(clients, bound)
    admitted = []
    for number, eager in enumerate(np.random.default_rng(0).integers(0, clients, (rounds, 2))):
        if number % 97 == 0:
            limiter = ParticipationLimiter.from_state(limiter.state(), bound)
        checked_in = np.unique(eager)
        admitted.append(checked_in[limiter.eligible(number)[checked_in]])
        limiter.admit(number, admitted[-1])
    check(admitted, clients, bound)
    assert len(np.concatenate(admitted)) == 60 * clients


def test_who_may_not_take_part_is_not_admitted():
    limiter = ParticipationLimiter(4, BoundedParticipation(2, 3))
    limiter.admit(0, np.array([0, 1]))
    with pytest.raises(ValueError, match=r"clients \[0\] may not take part in round 2"):
        limiter.admit(2, np.array([2, 0]))
    with pytest.raises(ValueError, match="named twice"):
        limiter.admit(6, np.array([3, 3]))


def test_epochs_contain_every_client_once():
    sampler = ShuffledEpochSampler(23, 5, seed=2)
    assert sampler.participation.rounds_per_epoch == 4
    orders = []
    for epoch in range(300):
        cohorts = [sampler.sample(4 * epoch + place) for place in range(4)]
        order = np.concatenate(cohorts)
        assert len(order) == len(set(order.tolist())) == 20
        orders.append(order)
    assert not np.array_equal(orders[0], orders[1])
    # False-alarm rate 1e-6: who sits an epoch out is drawn evenly.
    assert scipy.stats.chisquare(np.bincount(np.concatenate(orders), minlength=23)).pvalue > 1e-6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoissonSampler(5, 6, 0), "cohort_size is 6"),
        (lambda: ShuffledEpochSampler(5, 0, 0), "cohort_size is 0"),
        (
            lambda: MinSeparationSampler(19, 5, 0, BoundedParticipation(None, 4)),
            "cohort_size 5 times min_separation 4 is 20, .* training clients, 19: .* Change one of the two",
        ),
        (lambda: MinSeparationSampler(20, 5, 0, BoundedParticipation(2, 2)).check_rounds(9), "need 45 participations"),
    ],
)
def test_what_cannot_be_kept_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
