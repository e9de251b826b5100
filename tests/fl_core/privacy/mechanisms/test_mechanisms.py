"""One suite for every registered noise mechanism: the exact covariance of its noise, its sensitivity, its horizon, and
going on after a stop."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.stats

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.mechanisms.interface import HorizonError
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS, make_noise
from fedlm.fl_core.privacy.mechanisms.toeplitz import ToeplitzMechanism
from fedlm.fl_core.privacy.mechanisms.tree import Trees
from fedlm.fl_core.privacy.noise.noise_source import fresh_secret, noise_from
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.participation.sampling import PoissonParticipation
from fedlm.fl_core.privacy.promise.guarantee import sensitivity_squared
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.settings import PrivacySettings
from tests.fl_core.privacy.mechanisms.noise_matrices import (
    LIKE,
    UnitNoise,
    mixing_matrix,
    plan_of,
    strategy_matrix,
)

PLANS = {name: plan_of(name) for name in MECHANISMS}
for _name in ("tree", "tree_honaker"):
    PLANS[f"{_name}, restarts"] = plan_of(_name, own=Trees(5))
    PLANS[f"{_name}, completed"] = plan_of(_name, own=Trees(5, complete_trees=True))
TOEPLITZ = tuple(name for name, mechanism in MECHANISMS.items() if isinstance(mechanism, ToeplitzMechanism))
EXACT = ("gaussian", *TOEPLITZ)
INDEPENDENT = ("gaussian", "skellam", "discrete_gaussian")


every_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
# The bound on a dense matrix is compiled anew for every number of rounds.
every_plan_in_its_time = pytest.mark.parametrize(
    "plan", [pytest.param(one, id=name, marks=[pytest.mark.long] * (name == "dense")) for name, one in PLANS.items()]
)


def honaker_value(leaf, level, place):
    """The estimate of a node as {node: weight}, by its definition."""
    if level == 0:
        return {(0, place): 1.0}
    weights = {(level, place): 1.0}
    for child in (2 * place, 2 * place + 1):
        for node, weight in honaker_value(leaf, level - 1, child).items():
            weights[node] = weights.get(node, 0) + weight / 2
    return weights


def tree_prefix(leaf, honaker):
    """The noise of the sum of the first rounds as {node: weight}, by its definition."""
    weights, start = {}, 0
    for level in reversed(range(leaf.bit_length())):
        if leaf >> level & 1:
            place = start >> level
            if honaker:
                for node, weight in honaker_value(leaf, level, place).items():
                    weights[node] = weights.get(node, 0) + weight / (2 - 2.0**-level)
            else:
                weights[level, place] = 1.0
            start += 1 << level
    return weights


def expected_covariance(plan):
    """In float64, from the definitions alone: the covariance of the noise of the prefix sums."""
    if plan.mechanism in TOEPLITZ:
        prefix = np.tri(plan.rounds) @ np.linalg.inv(strategy_matrix(plan))
        return prefix @ prefix.T
    if plan.mechanism in INDEPENDENT:
        return np.tri(plan.rounds) @ np.tri(plan.rounds).T
    nodes, rows, kept, start = {}, [], {}, 0
    trees = Trees.of(plan)
    every = trees.restart_every or plan.rounds
    for number in range(plan.rounds):
        leaf = number % every + 1
        ends = leaf == every and number + 1 < plan.rounds
        reach = 1 << (leaf - 1).bit_length() if trees.complete_trees and ends else leaf
        prefix = tree_prefix(reach, plan.mechanism == "tree_honaker")
        row = dict(kept)
        for node, weight in prefix.items():
            row[start, *node] = weight
        rows.append(row)
        if ends:
            kept, start = row, number + 1
        for node in row:
            nodes.setdefault(node, len(nodes))
    matrix = np.zeros((plan.rounds, len(nodes)))
    for number, row in enumerate(rows):
        for node, weight in row.items():
            matrix[number, nodes[node]] = weight
    return matrix @ matrix.T


@pytest.mark.parametrize("name", [name for name in PLANS if name != "dense"])
def test_covariance_of_prefix_sums_is_exactly_that_of_the_mechanisms_matrix(name):
    plan = PLANS[name]
    prefix = np.tri(plan.rounds) @ mixing_matrix(plan)
    np.testing.assert_allclose(prefix @ prefix.T, expected_covariance(plan), atol=3e-5)


@every_plan
def test_prefix_variance_is_the_diagonal_of_the_noises_own_covariance(plan):
    prefix = np.tri(plan.rounds) @ mixing_matrix(plan)
    np.testing.assert_allclose(MECHANISMS[plan.mechanism].prefix_variance(plan), np.sum(prefix**2, axis=1), rtol=1e-5)


def largest_shift(covariance, most, apart):
    """The most that one client can move the mean of noise of this covariance, in its standard deviations, squared.

    Over all patterns of participation, with updates that are one vector or its negative.
    """
    precision, rounds = np.linalg.inv(covariance), range(len(covariance))
    return max(
        signs @ precision[np.ix_(pattern, pattern)] @ signs
        for count in range(1, most + 1)
        for pattern in itertools.combinations(rounds, count)
        if all(later - earlier >= apart for earlier, later in itertools.pairwise(pattern))
        for signs in map(np.array, itertools.product((1, -1), repeat=count))
    )


@every_plan_in_its_time
@pytest.mark.parametrize(("most", "apart", "cut"), [(1, 1, 10), (2, 1, 13), (3, 3, 13), (3, 3, 6), (3, 5, 1)])
def test_sensitivity_is_never_below_what_the_noise_itself_lets_through(plan, most, apart, cut):
    """By brute force from the covariance of the noise as it is drawn, with one secret or with another from a cut on."""
    plan = dataclasses.replace(plan, participation=BoundedParticipation(most, apart))
    generations = [(first, end) for first, end in ((0, cut), (cut, plan.rounds)) if end > first]
    covariance = np.zeros((plan.rounds, plan.rounds))
    for first, end in generations:
        mixing = mixing_matrix(plan, first, end)
        covariance[first:end, first:end] = mixing @ mixing.T
    least, accounted = largest_shift(covariance, most, apart), sensitivity_squared(plan, generations)
    assert accounted >= least * (1 - 1e-5)
    if plan.mechanism in EXACT and cut == plan.rounds:
        assert accounted <= least * (1 + 1e-5)
    # A bound is of no use where it is far off: trees release more than the differences that are looked at here.
    assert accounted <= 2 * least + 1


@every_plan
def test_rounds_further_apart_than_the_run_is_long_are_one(plan):
    """A statement may say any separation; no array is as long as that."""
    bounds = BoundedParticipation(1), BoundedParticipation(3, 10**12)
    once, apart = (dataclasses.replace(plan, participation=bound) for bound in bounds)
    assert sensitivity_squared(apart, [(0, plan.rounds)]) == pytest.approx(
        sensitivity_squared(once, [(0, plan.rounds)])
    )


@every_plan_in_its_time
def test_sensitivity_of_rounds_so_far_does_not_fall(plan):
    plan = dataclasses.replace(plan, participation=BoundedParticipation(3, 4))
    spent = [sensitivity_squared(plan, [(0, end)]) for end in range(1, plan.rounds + 1)]
    assert spent == sorted(spent)
    assert spent[0] > 0


@every_plan
def test_going_on_from_what_is_durable_changes_nothing(plan):
    whole = mixing_matrix(plan)
    for stop_after in (1, 4, 5, 6, 12):
        np.testing.assert_array_equal(mixing_matrix(plan, stop_after=stop_after), whole)


@every_plan
def test_nothing_runs_past_the_horizon(plan):
    noise, draw = make_noise(plan), UnitNoise()
    state = noise.init(LIKE)
    for _ in range(plan.rounds):
        _, state = noise.next(state, draw)
    with pytest.raises(HorizonError, match=f"round {plan.rounds} lies beyond the {plan.rounds} rounds"):
        noise.next(state, draw)
    shorter = make_noise(plan, 0, 2)
    state = shorter.restore(noise.durable(noise.init(LIKE)), LIKE, draw)
    for _ in range(2):
        _, state = shorter.next(state, draw)
    with pytest.raises(HorizonError):
        shorter.next(state, draw)


@every_plan
def test_every_round_of_a_generation_that_begins_late_has_noise_of_its_own(plan):
    assert np.linalg.matrix_rank(mixing_matrix(plan, first=7)) == plan.rounds - 7


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS.keys())
def test_a_mechanism_says_what_it_is(mechanism):
    assert MECHANISMS[mechanism.name] is mechanism
    for text in (mechanism.label, mechanism.summary, mechanism.help):
        assert text
        assert not text.endswith(".")
    settings = PrivacySettings(privacy=mechanism.name)
    assert mechanism.options_of(settings) == mechanism.options(), "both have the same defaults"
    assert not mechanism.restarts_optimizer(settings)


def test_no_two_settings_have_the_same_name():
    kinds = {mechanism.settings for mechanism in MECHANISMS.values()}
    names = [field.name for kind in kinds for field in dataclasses.fields(kind)]
    assert len(names) == len(set(names))
    assert {field.name for field in dataclasses.fields(PrivacySettings)} > set(names)


@pytest.mark.parametrize("name", MECHANISMS)
def test_what_has_no_sound_analysis_is_refused(name):
    plan = plan_of(name)
    assert PrivacyPlan.from_json(plan.as_json()) == plan
    if MECHANISMS[name].independent_rounds:
        np.testing.assert_array_equal(mixing_matrix(plan) @ mixing_matrix(plan).T, np.eye(plan.rounds))
    else:
        with pytest.raises(ConfigurationError, match="no sound analysis"):
            dataclasses.replace(plan, participation=PoissonParticipation(0.1), adjacency=None)
    with pytest.raises(ConfigurationError, match="not by a sensitivity"):
        MECHANISMS[name].sensitivity_squared(
            dataclasses.replace(plan_of("gaussian"), participation=PoissonParticipation(0.1), adjacency=None), [(0, 3)]
        )
    with pytest.raises(ConfigurationError, match="coefficients"):
        dataclasses.replace(plan, coefficients=() if plan.coefficients else (1.0,))


@every_plan
def test_the_clip_norm_moves_only_where_noise_begins_anew(plan):
    """What is released of the rounds before says nothing of noise that scales with the next clip norm."""
    every = MECHANISMS[plan.mechanism].clip_norm_moves_every(plan)
    if every is None:
        return
    used = mixing_matrix(plan) != 0
    for number in range(every, plan.rounds, every):
        assert not np.any(used[:number].any(axis=0) & used[number:].any(axis=0))


@pytest.mark.parametrize("name", MECHANISMS)
def test_rounds_that_there_is_no_plan_for_are_refused(name):
    most = MECHANISMS[name].most_rounds
    for rounds in (0, -1, *([] if most is None else [most + 1])):
        with pytest.raises(ConfigurationError, match=f"rounds is {rounds}, but"):
            dataclasses.replace(plan_of(name), rounds=rounds)


def test_root_mean_square_errors_of_a_thousand_rounds():
    """At equal privacy for one participation; published figures of these mechanisms."""
    expected = {"gaussian": (31.6, 22.4), "tree": (9.49, 7.03), "tree_honaker": (7.28, 5.36)}
    for name, (largest, mean) in expected.items():
        sensitivity = {"gaussian": 1.0}.get(name, np.sqrt(10))
        error = np.sqrt(MECHANISMS[name].prefix_variance(plan_of(name, rounds=1000))) * sensitivity
        assert error.max() == pytest.approx(largest, abs=0.05)
        assert np.sqrt(np.mean(error**2)) == pytest.approx(mean, abs=0.05)


# Of the source of noise; each statistical test has a false-alarm rate of 1e-6.

LEAVES = {"a": np.zeros((300, 100), np.float32), "b": np.zeros(20_000, np.float32)}


def test_draws_add_up_with_their_coefficients_and_each_has_bits_of_its_own_that_come_again():
    draw = noise_from(fresh_secret(), LEAVES)
    terms = [(0.5 + number, (number, 1)) for number in range(70)]
    expected = sum(coefficient * np.asarray(draw([(1.0, name)])["b"], np.float64) for coefficient, name in terms)
    np.testing.assert_allclose(draw(terms)["b"], expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(draw([(1.0, (-1, 7))])["a"], draw([(1.0, (-1, 7))])["a"])


def test_names_secrets_and_leaves_are_independent():
    draw = noise_from(fresh_secret(), LEAVES)
    one = draw([(1.0, (1, 2))])
    of_another_name, of_another_secret = (
        source([(1.0, name)])["b"] for source, name in ((draw, (2, 1)), (noise_from(fresh_secret(), LEAVES), (1, 2)))
    )
    for other in (of_another_name, of_another_secret, one["a"].reshape(-1)[:20_000]):
        assert scipy.stats.pearsonr(np.asarray(one["b"]), np.asarray(other)).pvalue > 1e-6
