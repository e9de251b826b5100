"""What a run may say of its privacy, given what its first parameters went through: no training needed."""

import dataclasses
import math

import pytest

from fedlm.fl_core.privacy.accounting import account, gaussian_epsilon
from fedlm.fl_core.privacy.ancestry import Phase, recorded_ancestry, training_behind
from fedlm.fl_core.privacy.central_plan import central_plan
from fedlm.fl_core.privacy.participation import BoundedParticipation, PoissonParticipation
from fedlm.fl_core.privacy.plan import PrivacyPlan
from fedlm.fl_core.privacy.statement import calibrate_total, state_plan
from fedlm.fl_core.privacy.vocabulary_origin import UNKNOWN

DELTA = 1e-6
FEDERATED = PrivacyPlan("gaussian", 3, 5.0, BoundedParticipation(None, 1))
SAMPLED = PrivacyPlan("gaussian", 20, 1.5, PoissonParticipation(0.1))


def phase_of(plan, people="same", data="text", **changes):
    whole = [[0, plan.rounds]] if plan else []
    record = plan.as_json() if plan else None
    return Phase("simulate", "/runs/first", 3, "digest", data, people, plan=record, generations=whole)._replace(
        **changes
    )


def stated(plan, *phases, data="text"):
    about = {"ancestry": [phase._asdict() for phase in phases], "training_data_sha256": data}
    return state_plan(plan, DELTA, about)


def test_without_first_parameters_of_others_it_is_what_the_plan_says():
    assert stated(FEDERATED).total == account(FEDERATED, DELTA)
    assert stated(FEDERATED).as_terms() == account(FEDERATED, DELTA).as_json() | {
        "vocabulary_origin": UNKNOWN.as_json()
    }


def test_whatever_is_correlated_or_sampled_is_composed_by_one_accountant():
    both = stated(FEDERATED, phase_of(FEDERATED))
    assert both.total.epsilon == pytest.approx(gaussian_epsilon(5.0, math.sqrt(6), DELTA), rel=0.01)
    assert both.total.rho == pytest.approx(6 / 50)
    mixed, turned = stated(FEDERATED, phase_of(SAMPLED)), stated(SAMPLED, phase_of(FEDERATED))
    assert mixed.total.epsilon == pytest.approx(turned.total.epsilon)
    alone = [account(plan, DELTA).epsilon for plan in (FEDERATED, SAMPLED)]
    assert max(alone) < mixed.total.epsilon < sum(alone)
    assert mixed.total.rho is None
    # Sampled clients alone are added or removed; of both together one is zeroed.
    assert turned.total.adjacency.startswith("zero-out")
    assert stated(SAMPLED, phase_of(SAMPLED)).total.adjacency.startswith("add-or-remove")


def test_only_a_part_of_what_was_planned_may_have_run():
    part = phase_of(FEDERATED, generations=[[0, 1]])
    assert stated(FEDERATED, part).total.rho == pytest.approx(4 / 50)
    nothing = phase_of(FEDERATED, generations=[[0, 0]])
    assert stated(FEDERATED, nothing).total.epsilon == account(FEDERATED, DELTA).epsilon


@pytest.mark.parametrize(
    ("phase", "why"),
    [
        (phase_of(None, not_private="it was trained without privacy"), "trained without privacy"),
        (phase_of(FEDERATED, not_private="its noise follows from its seed"), "follows from its seed"),
        (phase_of(central_plan(100, 10, 5, 1.0)), "whose unit is another"),
    ],
)
def test_nothing_is_promised_where_nothing_was(phase, why):
    found = stated(FEDERATED, phase_of(FEDERATED), phase)
    assert found.total is None
    assert why in found.sentence()
    assert "epsilon" not in found.sentence()
    for name, value in found.as_terms().items():
        assert value is None or not name.startswith(("epsilon", "rho"))
    for people, words in (("public", "public text"), ("disjoint", "other people")):
        said = stated(FEDERATED, phase_of(FEDERATED), phase._replace(people=people))
        assert said.total.epsilon == stated(FEDERATED, phase_of(FEDERATED)).total.epsilon
        assert words in said.sentence()
        assert any(words in line for line in said.total.assumptions)


def test_examples_are_composed_where_they_are_the_same():
    plan = central_plan(100, 10, 5, 1.0)
    assert stated(plan, phase_of(plan)).total.epsilon > account(plan, DELTA).epsilon
    assert stated(plan, phase_of(plan, data="other")).total is None
    assert stated(plan, phase_of(plan, data=None), data=None).total is None
    windows = dataclasses.replace(plan, unit="example: one packed sequence of 7 tokens, in all steps")
    assert stated(plan, phase_of(windows)).total is None
    users = dataclasses.replace(plan, unit="user: all text of one user, in all steps")
    assert stated(FEDERATED, phase_of(users, data="other")).total


def test_what_a_user_said_is_seen_from_each_run_in_turn():
    parent = phase_of(FEDERATED, data="b")
    before = (phase_of(None, "disjoint", "a", not_private="it was trained without privacy"),)
    assert [one.people for one in training_behind(before, parent, "same", "b")] == ["disjoint", "same"]
    # The people of other data may be those who were others to the parent's.
    for data in ("a", "c", None):
        assert [one.people for one in training_behind(before, parent, "same", data)] == ["same", "same"]
    assert [one.people for one in training_behind(before, parent, "disjoint", "c")] == ["disjoint", "disjoint"]
    public = (before[0]._replace(people="public"),)
    assert [one.people for one in training_behind(public, parent, "same", "c")] == ["public", "same"]


def test_a_record_is_read_as_it_was_written():
    phases = training_behind((), phase_of(SAMPLED), "same", "text")
    assert recorded_ancestry({"ancestry": [phase._asdict() for phase in phases]}) == phases
    assert recorded_ancestry({"experiment": {"init_from": None}}) == ()
    assert recorded_ancestry({"experiment": {"init_from": "somewhere"}})[0].not_private


@pytest.mark.parametrize(("epsilon", "rounds"), [(0.9, 1), (4.0, 4)])
def test_a_target_is_the_total(epsilon, rounds):
    def with_noise(noise):
        return PrivacyPlan("gaussian", rounds, noise, BoundedParticipation(None, 1))

    before = phase_of(dataclasses.replace(FEDERATED, noise_multiplier=30.0))
    plan = calibrate_total(with_noise, DELTA, epsilon, None, "text", (before,))
    total = stated(plan, before).total.epsilon
    assert epsilon * 0.99 <= total <= epsilon
    assert plan.noise_multiplier > calibrate_total(with_noise, DELTA, epsilon, None).noise_multiplier


def test_a_run_that_goes_on_keeps_its_noise():
    """However accounting has changed since it was begun."""

    def with_noise(noise):
        return PrivacyPlan("gaussian", 3, noise, BoundedParticipation(None, 1))

    known = with_noise(1.2345)
    assert calibrate_total(with_noise, DELTA, 3.0, None, known=known) == known
    other = dataclasses.replace(known, rounds=4)
    assert calibrate_total(with_noise, DELTA, 3.0, None, known=other) == calibrate_total(with_noise, DELTA, 3.0, None)
