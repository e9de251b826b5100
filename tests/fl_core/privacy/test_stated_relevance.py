"""What is said of a run whose attention is corrected by counts in the text of the people that it is trained on."""

import dataclasses
import math

import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.joint_statement import state_together, training_in
from fedlm.fl_core.privacy.origins.ancestry import Phase, as_records
from fedlm.fl_core.privacy.origins.relevance_origin import RELEVANCE_FIELD, RelevanceOrigin
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.counts.relevance_spending import plan_relevance
from fedlm.fl_core.privacy.promise.guarantee import account, gaussian_epsilon
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.promise.spending import calibrate_total
from fedlm.fl_core.privacy.statement import state_plan
from tests.fl_core.privacy import stated_ledgers

DELTA = 1e-5
PLAN = PrivacyPlan("gaussian", 3, 5.0, BoundedParticipation(None, 1))
PRIVATE = RelevanceOrigin("private", "count", plan_relevance(1.0, 1e-6, 100))
COUNTED = RelevanceOrigin("training data", "count")


def stated(origin, **about):
    return state_plan(PLAN, DELTA, about | {RELEVANCE_FIELD: origin.as_json()})


def ledger_of(path, origin, text="text", plan=PLAN):
    about = {RELEVANCE_FIELD: origin.as_json(), "training_data_sha256": text, "vocabulary": "one"}
    return stated_ledgers.ledger_of(path, plan, DELTA, about)


def epsilon_of(runs, counts):
    rho = runs * account(PLAN, DELTA).rho + counts / (2 * PRIVATE.private.noise_multiplier**2)
    return gaussian_epsilon(1.0, math.sqrt(2 * rho), DELTA)


def test_a_private_count_is_composed_with_all_rounds():
    found = stated(PRIVATE)
    assert found.total.epsilon == pytest.approx(epsilon_of(1, 1), rel=1e-4)
    assert found.total.epsilon > max(1.0, account(PLAN, DELTA).epsilon)
    assert "the relevances of tokens are covered" in found.sentence()
    assert found.as_json()[RELEVANCE_FIELD]["kind"] == "private"
    assert any("one count" in line for line in found.total.assumptions)
    assert not any("import" in line for line in found.total.assumptions), "there is no private vocabulary"
    without = state_plan(PLAN, DELTA, {})
    assert RELEVANCE_FIELD not in without.as_json()
    assert "relevance" not in without.sentence()


def test_counts_without_privacy_promise_nothing():
    found = stated(COUNTED)
    assert found.total is None
    assert found.sentence().startswith("NOT PRIVATE: ")
    assert "counted in the data without privacy" in found.sentence()


def test_what_is_private_for_each_client_promises_nothing_to_what_holds_text_of_several(tmp_path):
    packed = dataclasses.replace(PLAN, unit="example: one packed sequence of 8 tokens, in all steps")
    found = state_plan(packed, DELTA, {RELEVANCE_FIELD: PRIVATE.as_json()})
    assert found.total is None
    assert "one packed sequence may hold data of several clients" in found.sentence()
    together = state_together({"one": ledger_of(tmp_path / "ledger", PRIVATE, plan=packed)})
    assert together.epsilon is None
    assert "may hold data of several" in together.not_private[0]
    assert state_plan(packed, DELTA, {RELEVANCE_FIELD: RelevanceOrigin("public", "count").as_json()}).total is not None


def test_public_ones_spend_nothing_and_their_users_word_is_an_assumption(tmp_path):
    public, word = RelevanceOrigin("public", "count"), "the relevances of tokens are public: the user has said"
    found, alone = stated(public), account(PLAN, DELTA)
    assert found.total.epsilon == alone.epsilon
    assert word in found.sentence()
    ledgers = {name: ledger_of(tmp_path / name, public) for name in "ab"}
    for assumptions in (found.total.assumptions, state_together(ledgers).assumptions):
        assert [word in line for line in assumptions if "relevance" in line] == [True]


def test_a_target_includes_them():
    def with_noise(noise):
        return dataclasses.replace(PLAN, noise_multiplier=noise)

    plan = calibrate_total(with_noise, DELTA, epsilon=3.0, rho=None, origins=Origins(relevance=PRIVATE))
    spent = state_plan(plan, DELTA, {RELEVANCE_FIELD: PRIVATE.as_json()}).total.epsilon
    assert 3.0 * (1 - 1e-3) < spent <= 3.0
    with pytest.raises(ConfigurationError, match="is spent already"):
        calibrate_total(with_noise, DELTA, epsilon=0.5, rho=None, origins=Origins(relevance=PRIVATE))
    with pytest.raises(ConfigurationError, match="which rho does not express"):
        calibrate_total(with_noise, DELTA, epsilon=None, rho=3.0, origins=Origins(relevance=PRIVATE))


@pytest.mark.parametrize(("count", "counts"), [("count", 1), ("another", 2)])
def test_what_first_parameters_learned_of_a_count_is_spent_once(tmp_path, count, counts):
    before = training_in(ledger_of(tmp_path / "ledger", dataclasses.replace(PRIVATE, sha256=count)), "/a")
    found = stated(PRIVATE, ancestry=as_records([before]), training_data_sha256="text")
    assert found.total.epsilon == pytest.approx(epsilon_of(2, counts), rel=1e-3)
    # A run without re-attention has learned of the count by its first parameters too.
    plain = state_plan(PLAN, DELTA, {"ancestry": as_records([before]), "training_data_sha256": "text"})
    assert plain.total.epsilon == pytest.approx(epsilon_of(2, 1), rel=1e-3)
    public = as_records([before._replace(people="public")])
    assert state_plan(PLAN, DELTA, {"ancestry": public}).total.epsilon == pytest.approx(account(PLAN, DELTA).epsilon)


def test_first_parameters_of_counts_without_privacy_promise_nothing(tmp_path):
    before = training_in(ledger_of(tmp_path / "ledger", COUNTED), "/a")
    assert "without privacy" in before.not_private
    found = state_plan(PLAN, DELTA, {"ancestry": as_records([before]), "training_data_sha256": "text"})
    assert found.total is None


@pytest.mark.parametrize(("people", "promised"), [("same", False), ("disjoint", True)])
def test_counts_in_text_of_people_who_count_are_not_public(people, promised, tmp_path):
    public = RelevanceOrigin("public", "count", text="theirs")
    assert RelevanceOrigin.from_json(public.as_json()).text == "theirs"
    behind = Phase("simulate", "/a", 3, "digest", "theirs", people, plan=PLAN.as_json(), generations=[[0, 3]])
    found = stated(public, ancestry=as_records([behind]), training_data_sha256="text")
    assert bool(found.total) == promised
    assert stated(public, training_data_sha256="theirs").total is None
    # Nor may first parameters have learned of them, whoever they are said to be of.
    of_text = behind._replace(
        training_data_sha256="other", relevance=dataclasses.replace(public, text="text").as_json()
    )
    found = state_plan(PLAN, DELTA, {"ancestry": as_records([of_text]), "training_data_sha256": "text"})
    assert found.total is None
    assert "counted without privacy in data of the same people" in found.sentence()
    open_ = as_records([of_text._replace(relevance=dataclasses.replace(COUNTED, text="text").as_json())])
    assert state_plan(PLAN, DELTA, {"ancestry": open_, "training_data_sha256": "text"}).total is None
    one, other = ledger_of(tmp_path / "a", public), ledger_of(tmp_path / "b", PRIVATE, "theirs")
    assert state_together({"one": one}).epsilon
    assert state_together({"one": one, "other": other}).not_private


def test_runs_with_one_count_spend_it_once(tmp_path):
    one, other = (ledger_of(tmp_path / name, PRIVATE) for name in "ab")
    another = ledger_of(tmp_path / "c", dataclasses.replace(PRIVATE, sha256="another"))
    for ledgers, counts in (([one, other], 1), ([one, another], 2)):
        found = state_together({str(number): ledger for number, ledger in enumerate(ledgers)})
        assert found.epsilon == pytest.approx(epsilon_of(2, counts), rel=1e-3)
    not_private = state_together({"a": one, "d": ledger_of(tmp_path / "d", COUNTED)})
    assert not_private.epsilon is None
