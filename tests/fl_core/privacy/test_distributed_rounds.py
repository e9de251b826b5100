"""Simulated rounds with noise of every client. Statistical tests have a false-alarm rate of 1e-6 each."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.distributed_rounds import DistributedRounds
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.private_rounds import PrivateAggregation, PrivateRounds
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.promise.selection.number_of_trials import TrialsLaw
from fedlm.fl_core.privacy.promise.spending import Spending
from fedlm.fl_core.rounds.aggregation import AggregationRules, contribution
from fedlm.fl_core.rounds.local_sgd import TrainingSums
from fedlm.fl_core.rounds.round_loop import CohortResult, RoundPlan

LIKE = {"a": np.zeros((30, 20), np.float32), "b": np.zeros(100, np.float32)}
SECRET = bytes(range(32))


class Clients:
    """A runner whose clients' updates are known."""

    def run(self, params, plan, clip_norm=None, memory=()):
        assert clip_norm is None
        (client,) = plan.clients.tolist()
        update = {name: jnp.full(leaf.shape, self.value(client), jnp.float32) for name, leaf in LIKE.items()}
        rules = AggregationRules("uniform")
        return CohortResult(contribution(update, jnp.ones(()), TrainingSums.zero(), rules), 1, 2, 3)

    def value(self, client):
        return np.nan if client == 7 else 0.01 * client


def private(mechanism="skellam", noise=0.5, survivors=5, coordinates=700, secret=SECRET):
    plan = PrivacyPlan(
        mechanism, 4, noise, BoundedParticipation(1), coefficients=(20.0, 6.0, float(survivors), float(coordinates))
    )
    return DistributedRounds(PrivateAggregation(plan, 1.0, 6), secret, LIKE)


def mean_of(rounds, clients, number=0):
    plan = RoundPlan(number, np.array(clients), 3, 0.1)
    found = rounds.over(Clients()).run(LIKE, plan, 1.0)
    return found, rounds.next(rounds.init(), found.aggregate, number)


@pytest.mark.parametrize("mechanism", ["skellam", "discrete_gaussian"])
def test_a_mean_is_that_of_clipped_updates_with_noise_of_the_planned_size(mechanism):
    found, mean = mean_of(private(mechanism, secret=np.random.default_rng().bytes(32)), [1, 2, 3, 5, 9])
    lengths = np.sqrt(700) * 0.01 * np.array([1, 2, 3, 5, 9])
    expected = np.sum(np.minimum(lengths, 1.0)) / np.sqrt(700) / 6
    off = np.concatenate([np.ravel(leaf) for leaf in mean.delta.values()]).astype(float) - expected
    low, high = scipy.stats.chi2.interval(1 - 1e-6, 700)
    assert low < off @ off / (0.5 / 6) ** 2 < high * 1.01
    assert mean.delta["a"].shape == (30, 20)
    assert (float(found.aggregate.clients), float(found.aggregate.clipped), found.steps) == (5, 2, 5)
    assert mean.metrics["wrapped_coordinates"] == 0
    assert mean.metrics["noise_norm"] == pytest.approx(np.sqrt(1024) * 0.5 / 6, rel=0.2)
    assert found.bytes_up == 5 * 1024 * 20 / 8


def test_an_update_that_is_not_finite_adds_zero_and_the_noise_of_its_client():
    rounds = private(noise=1e-3)
    with_it, mean = mean_of(rounds, [1, 2, 3, 5, 7])
    assert (float(with_it.aggregate.dropped), with_it.aggregate.delta.clients) == (1, 5)
    without, _ = mean_of(rounds, [1, 2, 3, 5])
    assert with_it.aggregate.delta.noise != without.aggregate.delta.noise
    assert float(mean.delta["b"][0]) == pytest.approx(0.11 / 6, abs=3e-3)


def test_a_round_with_too_few_clients_is_given_up_and_noise_follows_from_the_secret_alone():
    rounds = private()
    _, given_up = mean_of(rounds, [1, 2, 3, 4])
    assert given_up.delta is None
    assert given_up.metrics["noise_norm"] is None
    one, again, other = (mean_of(which, [1, 2, 3, 4, 5])[1] for which in (rounds, private(), private(secret=bytes(32))))
    np.testing.assert_array_equal(one.delta["a"], again.delta["a"])
    assert np.all(one.delta["a"] != other.delta["a"])
    later = mean_of(rounds, [1, 2, 3, 4, 5], 1)[1]
    assert np.all(one.delta["a"] != later.delta["a"])


def test_what_a_plan_is_not_for_is_refused():
    with pytest.raises(ConfigurationError, match="700 numbers, but the plan of the noise is for 701"):
        private(coordinates=701)
    with pytest.raises(ConfigurationError, match="here the server adds noise"):
        PrivateRounds(private().aggregation, SECRET, LIKE)
    selected = Spending(private().aggregation.plan, [(0, 1)], TrialsLaw("truncated_negative_binomial", 3.0, 1.0))
    with pytest.raises(ConfigurationError, match="private selection among runs with the mechanism skellam"):
        selected.events()


def test_the_statement_adds_up_a_clients_rounds_and_says_what_holds_against_the_server():
    once, twice = (
        account(replace(private().aggregation.plan, participation=BoundedParticipation(most)), 1e-6) for most in (1, 2)
    )
    assert once.epsilon < twice.epsilon < 2 * once.epsilon
    assert twice.rho is None
    assert twice.against_server.startswith("with secure aggregation, the same epsilon and delta")
    assert "at least 5 clients of a round add their noise" in " ".join(twice.assumptions)
    central = account(PrivacyPlan("gaussian", 4, 0.5, BoundedParticipation(2)), 1e-6)
    assert central.against_server is None
    # Rounding and the looser accounting cost little, and cost something.
    assert central.epsilon < twice.epsilon < 1.1 * central.epsilon
