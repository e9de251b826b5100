"""What a run may say of its privacy, given what its first parameters went through: no training needed."""

import dataclasses
import json
import math
import shutil

import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.joint_statement import state_together, training_in
from fedlm.fl_core.privacy.origins.ancestry import Phase, recorded_ancestry, training_behind
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.origins.vocabulary_origin import UNKNOWN
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.participation.sampling import PoissonParticipation
from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.promise.guarantee import account, gaussian_epsilon
from fedlm.fl_core.privacy.promise.plan import DOCUMENT_CLIENT, PrivacyPlan
from fedlm.fl_core.privacy.promise.spending import calibrate_total
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger, Release
from fedlm.fl_core.privacy.statement import state, state_plan
from tests.fl_core.privacy import stated_ledgers

DELTA = 1e-6
FEDERATED = PrivacyPlan("gaussian", 3, 5.0, BoundedParticipation(None, 1))
SAMPLED = PrivacyPlan("gaussian", 20, 1.5, PoissonParticipation(0.1))


def phase_of(plan, people="same", data="text", folder="/runs/first", **changes):
    promised = {"plan": plan.as_json(), "generations": [[0, plan.rounds]]} if plan else {}
    return Phase("simulate", folder, 3, "digest", data, people, **promised | changes)


NOT_PRIVATE = "it was trained without privacy"


def ledger_of(path, *releases, parent=None, people="same", data="text", behind=()):
    ancestry = [phase._asdict() for phase in behind]
    ancestry += [] if parent is None else [training_in(parent, "/runs/parent")._replace(people=people)._asdict()]
    about = {"ancestry": ancestry, "training_data_sha256": data}
    return stated_ledgers.ledger_of(path, FEDERATED, DELTA, about, releases)


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
    for said in (both, turned):
        assert said.sentence().count("; assumptions: as `fedlm account ledger` lists them; ") == 1


def test_only_a_part_of_what_was_planned_may_have_run():
    part = phase_of(FEDERATED, generations=[[0, 1]])
    assert stated(FEDERATED, part).total.rho == pytest.approx(4 / 50)
    nothing = phase_of(FEDERATED, generations=[[0, 0]])
    assert stated(FEDERATED, nothing).total.epsilon == account(FEDERATED, DELTA).epsilon


@pytest.mark.parametrize(
    ("phase", "why"),
    [
        (phase_of(None, not_private=NOT_PRIVATE), "trained without privacy"),
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
    for people, words in (("public", "public data"), ("disjoint", "other people")):
        said = stated(FEDERATED, phase_of(FEDERATED), phase._replace(people=people, training_data_sha256="other"))
        assert said.total.epsilon == stated(FEDERATED, phase_of(FEDERATED)).total.epsilon
        assert words in said.sentence()
        assert any(words in line for line in said.total.assumptions)


@pytest.mark.parametrize("name", ["a; (epsilon = 0.1, delta = 1e-9)-differential privacy", "a\nprivacy: all", 'a" b'])
def test_the_name_of_a_folder_cannot_be_read_as_words_of_a_statement(name):
    phase = phase_of(FEDERATED, folder=f"/runs/{name}")
    said = stated(FEDERATED, phase).sentence()
    assert f"of `fedlm simulate` in {json.dumps('/runs/' + name)};" in said
    assert "\n" not in said
    assert "in /runs/first;" in stated(FEDERATED, phase_of(FEDERATED)).sentence()


@pytest.mark.long
def test_examples_are_composed_where_they_are_the_same():
    plan = central_plan(100, 10, 5, 1.0)
    assert stated(plan, phase_of(plan)).total.epsilon > account(plan, DELTA).epsilon
    assert stated(plan, phase_of(plan, data="other")).total is None
    assert stated(plan, phase_of(plan, data=None), data=None).total is None
    windows = dataclasses.replace(plan, unit="example: one packed sequence of 7 tokens, in all steps")
    assert stated(plan, phase_of(windows)).total is None
    users = dataclasses.replace(plan, unit="user: all text of one user, in all steps")
    assert stated(FEDERATED, phase_of(users, data="other")).total
    # Documents of one data set are its clients; somebody may have written several, and others elsewhere.
    documents = dataclasses.replace(plan, unit="document: all text of one document, in all steps")
    assert stated(documents, phase_of(FEDERATED)).total
    for other in (FEDERATED, users, documents):
        assert stated(documents, phase_of(other, data="other")).total is None
    rounds = dataclasses.replace(FEDERATED, unit=DOCUMENT_CLIENT)
    assert stated(rounds, phase_of(documents)).total
    assert stated(rounds, phase_of(rounds)).total
    for one, other in ((rounds, FEDERATED), (FEDERATED, rounds), (rounds, users), (rounds, rounds)):
        assert stated(one, phase_of(other, data="other")).total is None


def test_what_a_user_said_is_seen_from_each_run_in_turn():
    parent = phase_of(FEDERATED, data="b")
    before = (phase_of(None, "disjoint", "a", not_private=NOT_PRIVATE),)
    assert [one.people for one in training_behind(before, parent, "same", "b")] == ["disjoint", "same"]
    # The people of other data may be those who were others to the parent's.
    for data in ("a", "c", None):
        assert [one.people for one in training_behind(before, parent, "same", data)] == ["same", "same"]
    assert [one.people for one in training_behind(before, parent, "disjoint", "c")] == ["disjoint", "disjoint"]
    public = (before[0]._replace(people="public"),)
    assert [one.people for one in training_behind(public, parent, "same", "c")] == ["public", "same"]
    phases = training_behind(public, parent, "same", "c")
    assert recorded_ancestry({"ancestry": [phase._asdict() for phase in phases]}) == phases
    assert recorded_ancestry({"experiment": {"init_from": None}}) == ()


@pytest.mark.parametrize("said", ["public", "disjoint"])
def test_no_word_stands_that_the_runs_own_data_contradicts(said, tmp_path):
    """Text of "a" was trained on without privacy, then that of "b" with a word on "a", and now "a" itself."""
    lost = phase_of(None, said, "a", not_private=NOT_PRIVATE)
    parent = phase_of(FEDERATED, data="b")
    assert [one.people for one in training_behind((lost,), parent, "same", "a")] == ["same", "same"]
    for word in ("public", "disjoint"):
        with pytest.raises(ConfigurationError, match="trained on the very training clients of this run"):
            training_behind((lost,), parent, word, "a")
    record = {"ancestry": [lost._asdict(), parent._replace(people="same")._asdict()], "training_data_sha256": "a"}
    assert state_plan(FEDERATED, DELTA, record).total is None
    assert state_plan(FEDERATED, DELTA, record | {"training_data_sha256": "b"}).total
    # Nor one that another training behind the run contradicts, as of people who may be its own.
    again = phase_of(FEDERATED, data="a")
    assert [one.people for one in training_behind((lost, parent), again, "same", "c")] == ["same"] * 3
    # Nor one that another run of those stated together does.
    child = ledger_of(tmp_path / "child", 3, behind=[lost], data="b")
    other = ledger_of(tmp_path / "other", 3, data="a")
    assert state_together({"child": child}).epsilon
    assert state_together({"child": child, "other": other}).not_private


@pytest.mark.parametrize("first", ["parent", "child"])
def test_what_one_record_says_against_a_training_stays_whichever_comes_first(tmp_path, first):
    parent = ledger_of(tmp_path / "parent", 3)
    doubtful = training_in(parent, "/runs/parent")._replace(not_private="its parameters are not known")
    ledgers = {"parent": parent, "child": ledger_of(tmp_path / "child", 3, behind=[doubtful])}
    found = state_together(dict(sorted(ledgers.items(), reverse=first == "parent")))
    assert "its parameters are not known" in " ".join(found.not_private)


def test_runs_on_data_that_nobody_knows_may_be_of_each_others_people(tmp_path):
    lost = phase_of(None, "disjoint", "a", not_private=NOT_PRIVATE)
    for data, promised in (("text", True), (None, False)):
        one = ledger_of(tmp_path / f"one {data}", 3, behind=[lost], data=data)
        other = ledger_of(tmp_path / f"other {data}", 3, data=data)
        assert state_together({"one": one}).epsilon
        assert bool(state_together({"one": one, "other": other}).epsilon) == promised


def test_a_run_that_has_released_nothing_adds_nothing_to_others(tmp_path):
    """Also where its participation is bounded in another way than theirs."""
    plan = dataclasses.replace(SAMPLED, adjacency="add_or_remove")
    about = {"training_data_sha256": "text"}
    nothing, sampled = ledger_of(tmp_path / "a"), stated_ledgers.ledger_of(tmp_path / "b", plan, DELTA, about)
    found = state_together({"nothing": nothing, "sampled": sampled})
    assert found.epsilon == pytest.approx(state(sampled).own.epsilon)
    assert found.adjacency == state(sampled).own.adjacency


@pytest.mark.parametrize("people", ["public", "disjoint"])
def test_a_training_that_any_run_counts_is_counted_whatever_another_said(tmp_path, people):
    parent = ledger_of(tmp_path / "parent", 3, data="another import")
    child = ledger_of(tmp_path / "child", 3, parent=parent, people=people)
    exact = gaussian_epsilon(5.0, math.sqrt(6), DELTA)
    for together in ({"child": child, "parent": parent}, {"parent": parent, "child": child}):
        found = state_together(together)
        assert found.epsilon == pytest.approx(exact)
        assert len(found.trainings) == 2


def test_a_training_behind_several_runs_is_known_to_be_one(tmp_path):
    parent = ledger_of(tmp_path / "parent", 1)
    early = ledger_of(tmp_path / "early", 3, parent=parent)
    copy = PrivacyLedger(shutil.copyfile(tmp_path / "parent", tmp_path / "copy"))
    for ledger, digest in ((parent, "one"), (copy, "another")):
        ledger.intend(Release(2, digest, "parameters"))
        ledger.confirm()
    late, of_copy = (ledger_of(tmp_path / f"from {one}", 3, parent=one) for one in (parent, copy))
    forked = state_together({"late": late, "of_copy": of_copy})
    assert forked.epsilon is None
    assert "went on in two places" in forked.as_json()["not_private"]
    # Without the parent nothing shows that what it released first belongs to what it released later.
    unknown = state_together({"early": early, "late": late})
    assert unknown.epsilon is None
    assert "give that run too" in unknown.as_json()["not_private"]
    known = state_together({"early": early, "late": late, "parent": parent})
    assert known.epsilon == pytest.approx(gaussian_epsilon(5.0, math.sqrt(8), DELTA))


def with_noise(noise):
    return dataclasses.replace(FEDERATED, noise_multiplier=noise)


@pytest.mark.parametrize("epsilon", [0.9, 4.0])
def test_a_target_is_the_total(epsilon):
    before = phase_of(dataclasses.replace(FEDERATED, noise_multiplier=30.0))
    plan = calibrate_total(
        with_noise, DELTA, epsilon=epsilon, rho=None, training_data="text", origins=Origins(ancestry=(before,))
    )
    total = stated(plan, before).total.epsilon
    assert epsilon * 0.99 <= total <= epsilon
    assert plan.noise_multiplier > calibrate_total(with_noise, DELTA, epsilon=epsilon, rho=None).noise_multiplier


def test_a_run_that_goes_on_keeps_its_noise():
    """However accounting has changed since it was begun."""
    known = with_noise(1.2345)
    assert calibrate_total(with_noise, DELTA, epsilon=3.0, rho=None, known=known) == known
    other = dataclasses.replace(known, rounds=4)
    assert calibrate_total(with_noise, DELTA, epsilon=3.0, rho=None, known=other) == calibrate_total(
        with_noise, DELTA, epsilon=3.0, rho=None
    )


def test_a_run_among_others_is_stated_as_one_that_was_not_chosen():
    about = {"training_data_sha256": "text", "ancestry": [], "tuning": {"runs": 12}}
    found = state_plan(FEDERATED, DELTA, about)
    assert found.total.epsilon == account(FEDERATED, DELTA).epsilon
    caveat = "by looking at the others among the 12 or more private runs"
    assert caveat in found.sentence()
    assert any(caveat in line for line in found.total.assumptions)
    assert found.as_json()["tuning"] == {"runs": 12}
    child = stated(FEDERATED, phase_of(FEDERATED, tuning={"runs": 12}))
    assert caveat in child.sentence()
    others = phase_of(FEDERATED, tuning={"runs": 12}, people="disjoint", data="other")
    assert caveat not in stated(FEDERATED, others).sentence()
    assert caveat not in stated(FEDERATED, phase_of(FEDERATED)).sentence()


SELECTION = {"selection": {"distribution": "poisson", "expected_trials": 3.0, "eta": None, "id": "one"}, "chosen": True}


def test_what_was_chosen_by_text_of_people_who_may_be_trained_on_promises_nothing(tmp_path):
    """One source that is split in two ways holds out, by each, people whom the other trains on."""
    about = {"training_data_sha256": "text", "tuning": SELECTION}
    chosen = stated_ledgers.ledger_of(tmp_path / "chosen", FEDERATED, DELTA, about)
    for data, promised in (("text", True), ("another split", False), (None, False)):
        before = phase_of(FEDERATED, data=data)
        found = state_plan(FEDERATED, DELTA, about | {"ancestry": [before._asdict()]})
        assert (found.total is not None) == promised, data
        assert ("data of held-out people decided the choice" in found.sentence()) == (not promised)
        # So it is where a run begins with the outcome of a selection.
        child = stated(FEDERATED, phase_of(FEDERATED, data=data, tuning=SELECTION))
        assert (child.total is not None) == promised, data
        other = ledger_of(tmp_path / f"other {data}", 3, data=data)
        for together in ({"chosen": chosen, "other": other}, {"other": other, "chosen": chosen}):
            assert bool(state_together(together).epsilon) == promised, data
    for said in ("public", "disjoint"):
        before = phase_of(FEDERATED, said, "another split")
        assert state_plan(FEDERATED, DELTA, about | {"ancestry": [before._asdict()]}).total
