"""One suite for every noise mechanism: the exact covariance of its noise, its horizon, and going on after a stop."""

from typing import ClassVar

import numpy as np
import pytest
import scipy.stats

from fedlm.fl_core.privacy.mechanisms.interface import MECHANISMS, make_mechanism
from fedlm.fl_core.privacy.mechanisms.planned_rounds import HorizonError
from fedlm.fl_core.privacy.mechanisms.prefix_error import prefix_variance
from fedlm.fl_core.privacy.mechanisms.toeplitz_sensitivity import strategy_column
from fedlm.fl_core.privacy.noise_source import fresh_secret, noise_from
from tests.fl_core.privacy.mechanisms.noise_matrices import LIKE, WIDTH, UnitNoise, mixing_matrix, plan_of

PLANS = {name: plan_of(name) for name in MECHANISMS}
PLANS |= {f"{name}, restarts": plan_of(name, restart_every=5) for name in ("tree", "tree_honaker")}
PLANS |= {
    f"{name}, completed": plan_of(name, restart_every=5, complete_trees=True) for name in ("tree", "tree_honaker")
}
every_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())


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
    if plan.mechanism in ("blt", "banded"):
        column = strategy_column(plan, plan.rounds)
        strategy = sum(np.diag(np.full(plan.rounds - lag, column[lag]), -lag) for lag in range(plan.rounds))
        prefix = np.tri(plan.rounds) @ np.linalg.inv(strategy)
        return prefix @ prefix.T
    if plan.mechanism == "gaussian":
        return np.tri(plan.rounds) @ np.tri(plan.rounds).T
    nodes, rows, kept, start = {}, [], {}, 0
    every = plan.restart_every or plan.rounds
    for number in range(plan.rounds):
        leaf = number % every + 1
        ends = leaf == every and number + 1 < plan.rounds
        reach = 1 << (leaf - 1).bit_length() if plan.complete_trees and ends else leaf
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


@every_plan
def test_covariance_of_prefix_sums_is_exactly_that_of_the_mechanisms_matrix(plan):
    prefix = np.tri(plan.rounds) @ mixing_matrix(plan)
    np.testing.assert_allclose(prefix @ prefix.T, expected_covariance(plan), atol=3e-5)


@every_plan
def test_prefix_variance_is_the_diagonal_of_that_covariance(plan):
    np.testing.assert_allclose(prefix_variance(plan), np.diag(expected_covariance(plan)), rtol=1e-6)


@every_plan
@pytest.mark.parametrize("stop_after", [1, 4, 5, 6, 12])
def test_going_on_from_what_is_durable_changes_nothing(plan, stop_after):
    np.testing.assert_array_equal(mixing_matrix(plan), mixing_matrix(plan, stop_after=stop_after))


@every_plan
def test_nothing_runs_past_the_horizon(plan):
    mechanism, draw = make_mechanism(plan), UnitNoise()
    state = mechanism.init(LIKE)
    for _ in range(plan.rounds):
        _, state = mechanism.next(state, draw)
    with pytest.raises(HorizonError, match=f"round {plan.rounds} lies beyond the {plan.rounds} rounds"):
        mechanism.next(state, draw)
    shorter = make_mechanism(plan, 0, 2)
    state = shorter.restore(mechanism.durable(mechanism.init(LIKE)), LIKE, draw)
    for _ in range(2):
        _, state = shorter.next(state, draw)
    with pytest.raises(HorizonError):
        shorter.next(state, draw)


@every_plan
def test_a_generation_that_begins_late_uses_draws_that_no_other_used(plan):
    whole, late = UnitNoise(), UnitNoise()
    for draw, first in ((whole, 0), (late, 7)):
        mechanism = make_mechanism(plan, first)
        state = mechanism.init(LIKE)
        for _ in range(first, plan.rounds):
            _, state = mechanism.next(state, draw)
    rows = mixing_matrix(plan, first=7)
    assert np.linalg.matrix_rank(rows) == plan.rounds - 7


def test_root_mean_square_errors_of_a_thousand_rounds():
    """At equal privacy for one participation; published figures of these mechanisms."""
    expected = {"gaussian": (31.6, 22.4), "tree": (9.49, 7.03), "tree_honaker": (7.28, 5.36)}
    for name, (largest, mean) in expected.items():
        sensitivity = {"gaussian": 1.0}.get(name, np.sqrt(10))
        error = np.sqrt(prefix_variance(plan_of(name, rounds=1000))) * sensitivity
        assert error.max() == pytest.approx(largest, abs=0.05)
        assert np.sqrt(np.mean(error**2)) == pytest.approx(mean, abs=0.05)


@pytest.mark.parametrize("honaker", [False, True])
def test_a_tree_draws_two_nodes_a_round_on_average(honaker):
    drawn = []

    class Counting(UnitNoise):
        def __call__(self, terms):
            drawn.extend(terms)
            return {"x": np.zeros(WIDTH)}

    rounds = 1024
    mechanism = make_mechanism(plan_of("tree_honaker" if honaker else "tree", rounds))
    state, draw = mechanism.init(LIKE), Counting()
    for _ in range(rounds):
        _, state = mechanism.next(state, draw)
    assert len(drawn) <= 2 * rounds


class TestNoiseSource:
    """Every statistical test here has a false-alarm rate of 1e-6."""

    LIKE: ClassVar = {"a": np.zeros((300, 100), np.float32), "b": np.zeros(20_000, np.float32)}

    def test_draws_are_standard_normal(self):
        drawn = noise_from(fresh_secret(), self.LIKE)([(1.0, (3,))])
        for leaf in drawn.values():
            assert scipy.stats.kstest(np.asarray(leaf).ravel(), "norm").pvalue > 1e-6

    def test_draws_add_up_with_their_coefficients(self):
        draw = noise_from(fresh_secret(), self.LIKE)
        terms = [(0.5 + number, (number, 1)) for number in range(70)]
        expected = sum(coefficient * np.asarray(draw([(1.0, name)])["b"], np.float64) for coefficient, name in terms)
        np.testing.assert_allclose(draw(terms)["b"], expected, rtol=1e-4, atol=1e-3)

    @pytest.mark.parametrize("other", ["name", "secret", "leaf"])
    def test_names_secrets_and_leaves_are_independent(self, other):
        secret = fresh_secret()
        one = noise_from(secret, self.LIKE)([(1.0, (1, 2))])
        two = {
            "name": lambda: noise_from(secret, self.LIKE)([(1.0, (2, 1))])["b"],
            "secret": lambda: noise_from(fresh_secret(), self.LIKE)([(1.0, (1, 2))])["b"],
            "leaf": lambda: one["a"].reshape(-1)[:20_000],
        }[other]()
        assert scipy.stats.pearsonr(np.asarray(one["b"]), np.asarray(two)).pvalue > 1e-6

    def test_the_same_name_gives_the_same_bits(self):
        secret = fresh_secret()
        first, second = (noise_from(secret, self.LIKE)([(1.0, (-1, 7))])["a"] for _ in range(2))
        np.testing.assert_array_equal(first, second)
