"""Runs whose noise is as if of a larger cohort: it has that size, and nothing is ever promised of them."""

import dataclasses
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.fl_core.privacy.joint_statement import state_together, training_in
from fedlm.fl_core.privacy.mechanisms import blt
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.private_plan import PlannedRounds, plan_aggregation
from fedlm.fl_core.privacy.private_rounds import PrivateRounds
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.promise.spending import spent_before
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.settings import PrivacySettings
from fedlm.fl_core.privacy.statement import state
from fedlm.fl_core.rounds.aggregation import empty_aggregate
from fedlm.fl_core.runs.capabilities.data_budget import BudgetError, DataBudget
from fedlm.fl_core.runs.recorded_runs import read_run
from fedlm.fl_core.runs.statements.publishing import publish
from fedlm.fl_core.runs.statements.statement_check import check_statement
from fedlm.simulations.experiments.configuration import Comparison, Experiment
from tests.support.plain_runs import PRIVATE, run, run_until

pytestmark = pytest.mark.usefixtures("plain_cohorts")
LIKE = {"x": jnp.zeros(2_000)}
SIMULATED, PLANNED = 20, 500
MECHANISMS = [
    {"privacy": "gaussian"},
    {"privacy": "gaussian", "clip_quantile": 0.5},
    {"privacy": "tree", "tree_restart_every": 4},
    {"privacy": "blt"},
    {"privacy": "banded", "bands": 2},
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: " ".join(map(str, each.values())))
def test_the_noise_of_a_mean_is_that_of_the_planned_cohort(mechanism, monkeypatch):
    monkeypatch.setattr(blt.Blt, "coefficients", lambda *_: (0.9, 0.4, 0.2, 0.15))
    settings = PrivacySettings(target_epsilon=2.0, **mechanism)
    deployed = PlannedRounds(8, PLANNED, 0.5, BoundedParticipation(2, 3), 1e-6)
    simulated = deployed._replace(cohort_size=SIMULATED, noise_cohort_size=PLANNED)

    def means(planned):
        rounds = PrivateRounds(plan_aggregation(settings, planned), bytes(range(32)), LIKE)
        state, found = rounds.init(), []
        for number in range(8):
            mean = rounds.next(state, empty_aggregate(LIKE, exact=True), number)
            state = mean.state
            found.append(np.append(mean.delta["x"], mean.state.clip_norm))
        return np.stack(found)

    np.testing.assert_allclose(means(simulated), means(deployed), rtol=0.02, atol=1e-4)  # a count is rounded to a half


@pytest.fixture
def scaled(small_store, tmp_path):
    """A run as if of 600 clients a round, and its settings."""
    settings = PRIVATE | {"data": small_store, "noise_cohort_size": 600, "rounds": 2, "checkpoint_every": 1}
    run(settings, tmp_path / "run")
    return tmp_path / "run", settings


def says_not_private(text):
    why = "the noise is as if of 600 clients a round, for planning, and only 6 are simulated"
    assert text.startswith(f"NOT PRIVATE: {why}")
    deployment = "A deployment with 600 clients in each round, of 100 times as many people, would have (epsilon = "
    assert text.count("epsilon") == text.count(deployment) == 1


def test_a_run_says_what_it_is_for_and_promises_nothing(scaled):
    out, _ = scaled
    summary = json.loads((out / "summary.json").read_text())
    says_not_private(summary["privacy"])
    assert (summary["privacy_guarantee"], summary["noise_multiplier"]) == (None, 0.04)
    ledger = PrivacyLedger(out / "privacy" / "ledger.jsonl")
    # Whatever reads the plan alone states what was really spent.
    assert ledger.plan.noise_multiplier == 0.04
    assert account(dataclasses.replace(ledger.plan, noise_cohort=None), 1e-5).epsilon > 100
    terms = state(ledger).as_terms()
    assert {terms[name] for name in ("epsilon", "rho", "sensitivity", "epsilon_lower")} == {None}
    assert read_run(out).privacy == "NOT PRIVATE"
    assert all("epsilon" not in line for line in (out / "metrics.jsonl").read_text().splitlines())


def test_an_interrupted_run_says_so_too_and_goes_on_with_the_same_cohort_alone(scaled, tmp_path):
    _, settings = scaled
    run_until(1, settings, tmp_path / "stopped", rounds=4)
    assert read_run(tmp_path / "stopped").privacy == "NOT PRIVATE"
    for changed in (None, 700):
        with pytest.raises(CheckpointError, match="noise_cohort_size"):
            run(settings, tmp_path / "stopped", noise_cohort_size=changed, rounds=4)
    says_not_private(run(settings, tmp_path / "stopped", rounds=4)["privacy"])


def test_no_run_behind_which_it_is_promises_anything(scaled, tmp_path):
    out, settings = scaled
    child = run(settings | {"noise_cohort_size": None}, tmp_path / "child", init_from=out)
    assert child["privacy_guarantee"] is None
    assert "as if of 600 clients" in child["privacy"]
    grandchild = run(settings | {"noise_cohort_size": None}, tmp_path / "grandchild", init_from=tmp_path / "child")
    assert grandchild["privacy_guarantee"] is None
    # The same where a record says nothing but the plan.
    ledger = PrivacyLedger(out / "privacy" / "ledger.jsonl")
    phase = training_in(ledger, "run")
    assert "as if of 600 clients" in phase.not_private
    _, reasons = spent_before(ledger.plan.as_planned(), None, [phase._replace(not_private=None)])
    assert "as if of 600 clients" in reasons[0]
    plain = run(settings | {"noise_cohort_size": None}, tmp_path / "plain")
    assert plain["privacy_guarantee"] is not None
    both = {name: PrivacyLedger(tmp_path / name / "privacy" / "ledger.jsonl") for name in ("run", "plain")}
    assert state_together(both).epsilon is None


def test_what_is_published_of_it_is_not_private_and_can_be_checked(scaled, tmp_path):
    out, _ = scaled
    published = publish(out, tmp_path / "published", lambda path: "")
    assert not published.private
    says_not_private(published.privacy)
    record = json.loads((tmp_path / "published" / "statement.json").read_text())
    assert check_statement(record).findings == ()
    assert record["plan"]["noise_cohort"] == {"simulated": 6, "planned": 600, "noise_multiplier": 4.0}
    claims = {"private": True, "not_private_because": []}
    assert check_statement(record | claims).findings
    without = {name: value for name, value in record["plan"].items() if name != "noise_cohort"}
    for plan in (without, without | {"noise_multiplier": 4.0}):
        assert check_statement(record | {"plan": plan}).findings


def test_a_budget_and_a_private_selection_refuse_it(scaled, tmp_path):
    _, settings = scaled
    data = shutil.copytree(settings["data"], tmp_path / "data")
    DataBudget.set(data, 100.0, 1e-4)
    with pytest.raises(BudgetError):
        run(settings, tmp_path / "refused", data=data)
    several = {name: value for name, value in settings.items() if name != "model"}
    with pytest.raises(ConfigurationError, match="needs runs that are private"):
        compose(Comparison, **several, models=(settings["model"],), private_selection="poisson")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"noise_cohort_size": 6}, "must be above cohort_size, 6"),
        ({"audit_canaries": 4}, "audit_canaries: with a noise_cohort_size"),
        ({"privacy": "none", "noise_multiplier": None, "delta": None}, "noise_cohort_size is 600, which does nothing"),
    ],
)
def test_a_noise_cohort_that_does_not_fit_is_refused(changes, words):
    with pytest.raises(ConfigurationError, match=words):
        compose(Experiment, **PRIVATE | {"data": "data", "noise_cohort_size": 600} | changes)


def test_a_plan_whose_noise_is_another_than_its_cohort_says_is_none():
    plan = PrivacyPlan("gaussian", 4, 1.0, BoundedParticipation(2)).as_if_of(5, 500)
    assert PrivacyPlan.from_json(plan.as_json()) == plan
    with pytest.raises(ConfigurationError, match="as if of 500 clients must have"):
        dataclasses.replace(plan, noise_multiplier=1.0)
