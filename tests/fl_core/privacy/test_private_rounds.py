"""What the server does with a sum: noise, a fixed denominator, and a clip norm that moves."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.exact_sums import grid_step
from fedlm.fl_core.privacy.mechanisms.tree import Trees
from fedlm.fl_core.privacy.noise.noise_source import noise_from
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.private_rounds import AdaptiveClipping, PrivateAggregation, PrivateRounds
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.rounds.aggregation import empty_aggregate
from tests.support.exact_totals import exact_total

WIDTH = 50_000
LIKE = {"x": jnp.zeros(WIDTH)}
SECRET = bytes(range(32))


def plan_of(mechanism="gaussian", noise=1e-6, rounds=200, **more):
    return PrivacyPlan(mechanism, rounds, noise, BoundedParticipation(), **more)


def aggregate_of(total, clients, clipped=0, dropped=0, clip_norm=1.0):
    counts = {"clients": clients, "clipped": clipped, "dropped": dropped}
    delta = exact_total({"x": np.full(WIDTH, total)}, clip_norm)
    return empty_aggregate(LIKE)._replace(delta=delta, **{name: jnp.float32(count) for name, count in counts.items()})


@pytest.mark.parametrize("clients", [1, 25])
def test_a_sum_is_divided_by_the_report_goal_whoever_reported(clients):
    rounds = PrivateRounds(PrivateAggregation(plan_of(), 1.0, 10), SECRET, LIKE)
    mean = rounds.next(rounds.init(), aggregate_of(6.0, clients), 0)
    np.testing.assert_allclose(mean.delta["x"], 0.6, atol=1e-5)


@pytest.mark.parametrize("clients", [0, 8])
def test_noise_has_the_size_that_was_planned_also_without_clients(clients):
    rounds = PrivateRounds(PrivateAggregation(plan_of(noise=3.0), 0.5, 10), SECRET, LIKE)
    mean = rounds.next(rounds.init(), aggregate_of(0.0, clients), 0)
    assert np.std(mean.delta["x"]) == pytest.approx(3.0 * 0.5 / 10, rel=0.02)
    assert mean.metrics["noise_norm"] == pytest.approx(float(jnp.linalg.norm(mean.delta["x"])), rel=1e-5)
    assert mean.metrics["signal_to_noise"] == 0


@pytest.mark.parametrize(("noise", "count_noise"), [(1.0, 5.0), (4.0, 2.5)])
def test_sum_and_count_together_spend_what_the_plan_says(noise, count_noise):
    greater = AdaptiveClipping(0.5, 0.2, count_noise).sum_noise(noise)
    # One client moves the sum by one clip norm and `unclipped - 1/2` by a half.
    assert (1 / greater) ** 2 + (0.5 / count_noise) ** 2 == pytest.approx(1 / noise**2)
    assert greater > noise
    rounds = PrivateRounds(
        PrivateAggregation(plan_of(noise=noise), 0.5, 10, AdaptiveClipping(0.5, 0.2, count_noise)), SECRET, LIKE
    )
    mean = rounds.next(rounds.init(), aggregate_of(0.0, 10), 0)
    assert np.std(mean.delta["x"]) == pytest.approx(greater * 0.5 / 10, rel=0.02)


@pytest.mark.parametrize("clipped", [0, 1])
def test_a_client_that_adds_nothing_is_counted_nowhere(clipped):
    """With the neighbour that the statement names sum and count move by what is accounted. An update of zero would be
    counted as not clipped, and move the count twice as far."""
    noise, adaptive = 1.0, AdaptiveClipping(0.5, 0.2, 2.0)
    plan = plan_of(noise=noise)
    rounds = PrivateRounds(PrivateAggregation(plan, 0.5, 10, adaptive), SECRET, LIKE)
    clip_norm_each = 0.5 / np.sqrt(WIDTH)

    def released(clients, clipped, total):
        # A clip norm that moves shows the count.
        mean = rounds.next(rounds.init(), aggregate_of(total, clients, clipped, clip_norm=0.5), 0)
        return np.asarray(mean.delta["x"], np.float64) * 10, -np.log(float(mean.state.clip_norm) / 0.5) / 0.2 * 10

    sum_with, count_with = released(6, clipped, clip_norm_each)
    sum_without, count_without = released(5, 0, 0.0)
    moved = np.linalg.norm(sum_with - sum_without) / (0.5 * adaptive.sum_noise(noise))
    counted = abs(count_with - count_without) / adaptive.count_noise
    assert np.hypot(moved, counted) == pytest.approx(1 / noise, rel=1e-3)
    assert abs(released(6, 0, 0.0)[1] - released(6, 1, 0.0)[1]) == pytest.approx(1, rel=1e-3)
    assert "adds zero to every sum and to every count" in account(plan, 1e-6).adjacency


def test_a_count_that_would_spend_everything_is_refused():
    with pytest.raises(ConfigurationError, match=r"must be above half the noise multiplier, 1\.0"):
        PrivateAggregation(plan_of(noise=2.0), 1.0, 10, AdaptiveClipping(0.5, 0.2, 1.0))


def clip_norms(aggregation, norms, rounds):
    """The clip norm after each round in which clients' updates have these norms."""
    private = PrivateRounds(aggregation, SECRET, {"x": jnp.zeros(1)})
    state, seen = private.init(), []
    for number in range(rounds):
        clipped = int(np.sum(norms > state.clip_norm))
        aggregate = empty_aggregate({"x": jnp.zeros(1)}, exact=True)._replace(
            clients=jnp.float32(len(norms)), clipped=jnp.float32(clipped)
        )
        state = private.next(state, aggregate, number).state
        seen.append(float(state.clip_norm))
    return seen


@pytest.mark.long
@pytest.mark.parametrize(("quantile", "start"), [(0.2, 50.0), (0.9, 0.05)])
def test_the_clip_norm_moves_to_the_quantile(quantile, start):
    norms = np.random.default_rng(0).lognormal(0.5, 0.8, 400)
    adaptive = AdaptiveClipping(quantile, 0.3, 1e-3)
    found = clip_norms(PrivateAggregation(plan_of(), start, len(norms), adaptive), norms, 150)
    assert np.mean(norms <= found[-1]) == pytest.approx(quantile, abs=0.02)


@pytest.mark.parametrize("mechanism", ["tree", "tree_honaker"])
def test_within_a_tree_the_clip_norm_stays(mechanism):
    norms, adaptive = np.full(100, 5.0), AdaptiveClipping(0.5, 0.3, 1e-3)
    found = clip_norms(PrivateAggregation(plan_of(mechanism, own=Trees(4)), 1.0, len(norms), adaptive), norms, 8)
    # All are clipped, so it grows as fast as it may.
    grown = np.exp(0.3 * 0.5)
    np.testing.assert_allclose(found, [1, 1, 1, *[grown] * 4, grown**2], rtol=1e-3)
    assert found[0] == found[2]
    assert found[3] == found[6]


@pytest.mark.parametrize("mechanism", ["blt", "banded", "tree", "tree_honaker"])
def test_no_clip_norm_moves_under_correlated_noise(mechanism):
    more = {"blt": {"coefficients": (0.9, 0.4, 0.2, 0.15)}, "banded": {"coefficients": (1.0, 0.5)}}.get(mechanism, {})
    with pytest.raises(ConfigurationError, match="clip norm may change only where a tree restarts"):
        PrivateAggregation(plan_of(mechanism, **more), 1.0, 10, AdaptiveClipping(0.5, 0.2, 5.0))


@pytest.mark.parametrize(
    ("place", "value", "name"), [(0, 0.0, "quantile"), (0, 1.0, "quantile"), (1, 0.0, "rate"), (2, 0.0, "count_noise")]
)
def test_settings_out_of_range_are_refused(place, value, name):
    values = [0.5, 0.2, 1.0]
    values[place] = value
    with pytest.raises(ConfigurationError, match=f"clip_{name} is {value}"):
        AdaptiveClipping(*values)


def whole_steps(mean, goal):
    """The released sum in steps of the grid."""
    steps = np.asarray(mean.delta["x"], np.float64) * goal / float(grid_step(np.float32(1.0), WIDTH))
    np.testing.assert_array_equal(steps, np.round(steps))
    return steps.astype(np.int64)


def test_a_released_sum_is_the_exact_sum_and_noise_rounded_to_the_grid():
    """Its low bits say nothing of the sum; a false alarm in one of a million runs."""
    # With few steps and a power of two for a goal, float32 holds all bits of what is released.
    rounds = PrivateRounds(PrivateAggregation(plan_of(noise=1.0), 1.0, 8), SECRET, LIKE)
    without, total = (rounds.next(rounds.init(), aggregate_of(value, 3), 0) for value in (0.0, 0.3))
    expected = round(float(np.float32(0.3)) / float(grid_step(np.float32(1.0), WIDTH)))
    np.testing.assert_array_equal(whole_steps(total, 8) - whole_steps(without, 8), expected)
    low_bits = np.bincount(whole_steps(total, 8) & 63, minlength=64)
    assert scipy.stats.chisquare(low_bits).pvalue > 1e-6
    noise = noise_from(SECRET, {"delta": LIKE})([(1.0, (0,))])["delta"]["x"]
    in_steps = np.asarray(noise) / float(grid_step(np.float32(1.0), WIDTH))
    np.testing.assert_array_equal(whole_steps(without, 8), np.round(in_steps))


def test_a_released_count_stays_a_multiple_of_a_half():
    adaptive = AdaptiveClipping(0.5, 0.2, 3.3)
    rounds = PrivateRounds(PrivateAggregation(plan_of("tree", 1.0, own=Trees(8)), 1.0, 8, adaptive), SECRET, LIKE)
    state, counts = rounds.init(), []
    for number in range(7):
        state = rounds.next(state, aggregate_of(0.0, 7, 2), number).state
        counts.append(float(state.unclipped))
    assert all(2 * count == round(2 * count) for count in counts)
    assert len(set(counts)) > 3
