import dataclasses
import json
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.composition import epsilon_above, epsilon_bounds
from fedlm.fl_core.privacy.accounting.monte_carlo.balls_in_bins import BinnedEvent
from fedlm.fl_core.privacy.accounting.monte_carlo.min_separation import SeparatedEvent
from fedlm.fl_core.privacy.accounting.release_events import GaussianEvent, StatedEvent
from fedlm.fl_core.privacy.mechanisms.banded import BandedSettings
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.mechanisms.tree import Trees
from fedlm.fl_core.privacy.mechanisms.tree_sensitivity import tree_sensitivity_squared
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, EpochParticipation
from fedlm.fl_core.privacy.participation.sampling import PoissonParticipation
from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.promise.guarantee import (
    account,
    calibrate,
    events_of,
    least_noise,
    privacy_profile,
    sensitivity_squared,
)
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan, plan_noise
from fedlm.fl_core.privacy.promise.selection.number_of_trials import TrialsLaw
from fedlm.fl_core.privacy.promise.spending import Spending
from tests.fl_core.privacy.mechanisms.noise_matrices import ONCE, plan_of

DELTA = 1e-6


def composed(event):
    return pld.PLDAccountant().compose(event).get_epsilon(DELTA)


@pytest.mark.parametrize(("noise", "most"), [(1.0, 1), (12.0, 30)])
def test_gaussian_noise_is_the_composition_of_a_clients_rounds(noise, most):
    guarantee = account(plan_of("gaussian", 1000, noise, BoundedParticipation(most, 5)), DELTA)
    theirs = composed(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise), most))
    assert theirs * (1 - 1e-3) <= guarantee.epsilon <= theirs * (1 + 1e-6)
    assert guarantee.rho == pytest.approx(most / (2 * noise**2))
    assert guarantee.sensitivity == pytest.approx(math.sqrt(most))


@pytest.mark.parametrize(
    ("rounds", "participation", "restart_every", "expected"),
    [
        # Once a tree: the sum of the trees' heights, floor(log2 T) + 1.
        (13, EpochParticipation(10), 10, 4 + 2),
        (33, EpochParticipation(10), 10, 3 * 4 + 2),
        # Trees that restart within an epoch charge a client once in it.
        (20, EpochParticipation(10), 5, 2 * 3),
        # An epoch that ends within a tree bounds nothing but how often.
        (20, EpochParticipation(10), None, tree_sensitivity_squared([20], 2, 1)),
    ],
)
def test_sensitivity_of_trees_is_that_of_who_takes_part(rounds, participation, restart_every, expected):
    plan = plan_of("tree", rounds, 2.0, participation, own=Trees(restart_every))
    assert sensitivity_squared(plan, [(0, plan.rounds)]) == expected
    assert account(plan, DELTA).rho == pytest.approx(expected / (2 * 2.0**2))


@pytest.mark.parametrize(("rounds", "probability", "noise"), [(1, 0.2, 1.0), (400, 0.01, 1.3)])
def test_poisson_sampling_is_what_dp_accounting_says(rounds, probability, noise):
    plan = plan_of("gaussian", rounds, noise, PoissonParticipation(probability))
    event = dp_accounting.PoissonSampledDpEvent(probability, dp_accounting.GaussianDpEvent(noise))
    expected = composed(dp_accounting.SelfComposedDpEvent(event, rounds))
    assert account(plan, DELTA).epsilon == pytest.approx(expected, rel=1e-3)
    assert account(plan, DELTA).rho is None
    without = account(plan_of("gaussian", rounds, noise, BoundedParticipation(None, 1)), DELTA)
    assert account(plan, DELTA).epsilon < without.epsilon


def sampled(noise):
    return plan_of("gaussian", 100, noise, PoissonParticipation(0.02))


@pytest.mark.parametrize(
    ("with_noise", "target"),
    [
        (lambda noise: plan_of("gaussian", 100, noise, BoundedParticipation(4, 10)), {"epsilon": 0.5}),
        (lambda noise: plan_of("tree", 100, noise, BoundedParticipation(4, 10)), {"rho": 0.3}),
        (lambda noise: plan_of("banded", 100, noise, BoundedParticipation(4, 10)), {"epsilon": 8.0}),
        (sampled, {"epsilon": 2.0}),
        (lambda noise: central_plan(1000, 20, 30, noise), {"epsilon": 3.0}),
    ],
    ids=["gaussian", "tree", "banded", "sampled", "central"],
)
def test_calibrated_noise_keeps_the_promise_and_is_no_more_than_needed(with_noise, target):
    guarantee = account(calibrate(with_noise, DELTA, **target), DELTA)
    for name, wanted in target.items():
        assert wanted * 0.995 <= getattr(guarantee, name) <= wanted


def test_clients_that_are_sampled_have_no_rho():
    with pytest.raises(ConfigurationError, match="give epsilon"):
        calibrate(sampled, DELTA, rho=1.0)


def test_privacy_profile_passes_through_epsilon_at_delta():
    plan = plan_of("tree", 64, 5.0, BoundedParticipation(2, 8))
    epsilon = account(plan, DELTA).epsilon
    (delta,) = privacy_profile(plan, [epsilon])
    assert delta == pytest.approx(DELTA, rel=1e-2)
    profile = privacy_profile(plan, np.linspace(0, 2 * epsilon, 9))
    assert profile == sorted(profile, reverse=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise": 0.0}, "noise_multiplier is 0.0"),
        ({"noise": math.inf}, "noise_multiplier is inf"),
        ({"own": 5}, "own is 5, but must be Trees or None"),
    ],
)
def test_plans_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        plan_of("tree", 10, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"restart_every": 0}, "restart_every is 0"),
        ({"restart_every": "4"}, "restart_every is '4'"),
        ({"complete_trees": True}, "complete_trees does nothing"),
        ({"mechanism": "gaussian", "restart_every": 4}, "no restart_every"),
    ],
)
def test_a_record_of_trees_that_make_no_sense_is_refused(changes, message):
    record = plan_of("tree", 10, own=Trees(4)).as_json()
    assert PrivacyPlan.from_json(record).as_json() == record
    assert (record["restart_every"], plan_of("gaussian", 10).as_json()["complete_trees"]) == (4, False)
    with pytest.raises(ConfigurationError, match=message):
        PrivacyPlan.from_json(record | {"restart_every": None} | changes)


def test_delta_is_a_probability():
    for delta in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ConfigurationError, match="delta is"):
            account(plan_of("gaussian", 3), delta)


@pytest.mark.parametrize(
    "participation", [BoundedParticipation(3, 7), PoissonParticipation(0.25), EpochParticipation(9)]
)
def test_plans_survive_json(participation):
    plan = plan_of("gaussian", 30, 1.5, participation)
    assert PrivacyPlan.from_json(plan.as_json()) == plan
    with pytest.raises(ConfigurationError, match="not a plan"):
        PrivacyPlan.from_json(plan.as_json() | {"rounded": 3})


@pytest.mark.parametrize("truncated", [None, 40])
def test_central_plans_survive_json(truncated):
    more = {"truncated_batch_size": truncated, "adjacency": "zero_out", "unit": "user: all text of one user"}
    for of_bands in ({}, {"bands": 2, "coefficients": (0.8, 0.6)}):
        plan = central_plan(1000, 20, 30, 1.5, **more, **of_bands)
        assert PrivacyPlan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


def errors_of(name, rounds, options=None):
    """Of prefix sums, in clip norms, at equal privacy for one participation."""
    plan = plan_noise(name, rounds, ONCE, options=options)(1.0)
    return np.sqrt(MECHANISMS[name].prefix_variance(plan) * sensitivity_squared(plan, [(0, rounds)]))


@pytest.mark.long
def test_optimized_matrices_are_better_than_a_tree():
    """Figures of the BLT for n = 1000, one participation, as published."""
    blt = errors_of("blt", 1000)
    assert blt.max() == pytest.approx(3.27, abs=0.06)
    assert np.sqrt(np.mean(blt**2)) == pytest.approx(3.11, abs=0.06)
    banded, tree = errors_of("banded", 128, BandedSettings(bands=16)), errors_of("tree_honaker", 128)
    assert banded.max() < tree.max()
    assert np.mean(banded**2) < np.mean(tree**2)


@pytest.mark.parametrize("adjacency", ["add_or_remove", "zero_out"])
@pytest.mark.parametrize("truncated", [None, 40])
def test_central_training(truncated, adjacency):
    guarantee = account(central_plan(1000, 20, 30, 1.5, truncated_batch_size=truncated, adjacency=adjacency), DELTA)
    event = dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.5))
    whole = composed(dp_accounting.SelfComposedDpEvent(event, 30))
    assert guarantee.epsilon >= whole * (1 - 1e-3)
    assert adjacency.replace("_or_", "-or-").replace("zero_", "zero-") in guarantee.adjacency
    if truncated is None:
        assert guarantee.epsilon == pytest.approx(whole, rel=1e-3)
        assert guarantee.epsilon < guarantee.epsilon_by_rdp < 2 * guarantee.epsilon
    else:
        assert guarantee.epsilon_by_rdp is None
        assert "more than 40" in guarantee.assumptions[0]


def test_statements_assume_what_no_code_can_enforce():
    federated = account(PrivacyPlan("gaussian", 8, 1.0, BoundedParticipation(2)), DELTA).assumptions
    central = account(central_plan(1000, 20, 30, 1.5), DELTA).assumptions
    for lines in (federated, central):
        assert "in one place alone" in lines[-2]
        assert "were chosen without looking at the data" in lines[-1]
    sampled = account(PrivacyPlan("gaussian", 8, 1.0, PoissonParticipation(0.1)), DELTA).assumptions
    for words, expected in (
        ("one person is one client", [True, True, False]),
        ("whether and when a client answers", [True, False, False]),
        ("2^-12", [False, False, True]),
        ("(ChaCha20)", [True, False, False]),
        ("Philox for who takes part)", [False, True, False]),
        ("SplitMix64 for masks and dropout)", [False, False, True]),
    ):
        assert [any(words in line for line in lines) for lines in (federated, sampled, central)] == expected


def test_central_training_that_makes_no_sense_is_refused():
    with pytest.raises(ConfigurationError, match="only 10 to draw from"):
        central_plan(10, 11, 1, 1.0)
    with pytest.raises(ConfigurationError, match="must not be below batch_size"):
        central_plan(10, 5, 1, 1.0, truncated_batch_size=4)
    with pytest.raises(ConfigurationError, match="add_or_remove"):
        PrivacyPlan("tree", 8, 1.0, BoundedParticipation(2), adjacency="add_or_remove")


# By the closed form in 60 digits.
@pytest.mark.parametrize(
    ("noise", "delta", "exact"),
    [
        (4.0, 1e-6, 1.0607018623282737347),
        (541.0, 1.96e-4, 1.609317004397887418e-3),
        (93275294.0, 2.585e-9, 3.9615069313966641886e-9),
        (518477367.0, 3.589e-10, 1.0392428017953055108e-9),
    ],
)
def test_epsilon_of_a_gaussian_mechanism_is_never_below_the_exact_one(noise, delta, exact):
    plan = PrivacyPlan("gaussian", 1, noise, BoundedParticipation(1))
    assert exact <= account(plan, delta).epsilon <= exact * (1 + 1e-5)
    assert exact <= epsilon_above([GaussianEvent(noise)], delta) <= exact * (1 + 1e-5)


@pytest.mark.parametrize("target", [1e-8, 1e-5, 2.0])
def test_noise_for_a_target_keeps_the_upper_bound(target):
    found = calibrate(lambda noise: PrivacyPlan("gaussian", 1, noise, BoundedParticipation(1)), 1e-9, target)
    assert target * (1 - 1e-5) < account(found, 1e-9).epsilon <= target


TREE = plan_of("tree", 64, 5.0, BoundedParticipation(2, 8))


@pytest.mark.parametrize(
    "plan",
    [central_plan(1000, 20, 30, 1.5), central_plan(1000, 20, 3, 1.5, truncated_batch_size=40), TREE],
    ids=["poisson", "truncated", "tree"],
)
def test_the_events_of_a_plan_have_its_epsilon(plan):
    assert epsilon_bounds(events_of(plan), DELTA).upper == pytest.approx(account(plan, DELTA).epsilon, rel=2e-3)


def test_bins_are_accounted_by_their_turns_and_by_what_bands_leave_apart():
    fresh = central_plan(1000, 50, 70, 1.5, in_bins=True)
    assert events_of(fresh) == [BinnedEvent(1.5, 4, 20)]
    (banded,) = events_of(central_plan(1000, 50, 70, 1.5, in_bins=True, bands=3, coefficients=(0.8, 0.48, 0.36)))
    assert banded == BinnedEvent(pytest.approx(1.5), 4, 6)
    with pytest.raises(ConfigurationError, match="no sound analysis"):
        dataclasses.replace(fresh, mechanism="banded", coefficients=(0.8, 0.48, 0.36))
    with pytest.raises(ConfigurationError, match="with bins, with min-separation sampling"):
        Spending(fresh, [(0, 70)], TrialsLaw("poisson", 3.0)).events()


def test_a_min_separation_in_sampling_is_accounted_step_by_step():
    plan = central_plan(1000, 50, 70, 1.5, min_separation=True, bands=3, coefficients=(0.8, 0.48, 0.36))
    assert plan.participation.sampling_probability == pytest.approx(50 / 900)
    (event,) = events_of(plan)
    assert event == SeparatedEvent(pytest.approx(1.5), 70, 50 / 900, 3, (0.8, 0.48, 0.36))
    with pytest.raises(ConfigurationError, match="no sound analysis"):
        dataclasses.replace(plan, coefficients=(0.8, 0.48, 0.36, 0.1))
    with pytest.raises(ConfigurationError, match="give mechanism='banded'"):
        central_plan(1000, 50, 70, 1.5, min_separation=True)


def test_different_runs_compose():
    first = central_plan(1000, 20, 30, 1.5)
    both = epsilon_bounds([*events_of(first), *events_of(TREE)], DELTA).upper
    alone = [account(plan, DELTA).epsilon for plan in (first, TREE)]
    assert max(alone) < both < sum(alone)
    assert both < epsilon_bounds([*events_of(first), *events_of(TREE), StatedEvent(0.5)], DELTA).upper <= both + 0.51


def test_the_least_noise_is_found_also_where_more_noise_spends_nothing():
    assert least_noise(lambda noise: max(0.0, 3.0 - noise), 0.9) == pytest.approx(2.1, rel=1e-3)
