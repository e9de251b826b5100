"""What is said of a run whose vocabulary tells of the people that it is trained on."""

import dataclasses
import math

import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.joint_statement import state_together, training_in
from fedlm.fl_core.privacy.origins.ancestry import Phase
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.origins.vocabulary_origin import UNKNOWN, VocabularyOrigin, origin_of_import
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.participation.sampling import PoissonParticipation
from fedlm.fl_core.privacy.promise.counts.vocabulary_spending import plan_vocabulary
from fedlm.fl_core.privacy.promise.guarantee import account, gaussian_epsilon
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.promise.spending import calibrate_total
from fedlm.fl_core.privacy.statement import state_plan
from tests.fl_core.privacy import stated_ledgers

DELTA = 1e-5
FEDERATED = PrivacyPlan("gaussian", 3, 5.0, BoundedParticipation(None, 1))
SAMPLED = PrivacyPlan("gaussian", 20, 1.5, PoissonParticipation(0.1))
PRIVATE = origin_of_import(plan_vocabulary(1.0, 1e-6, 100))


AGAIN = dataclasses.replace(PRIVATE, release="of another import")


def stated(plan, origin, delta=DELTA, **about):
    return state_plan(plan, delta, about | {"vocabulary_origin": origin.as_json()})


def ledger_of(path, origin, tokenizer="same", text="text", plan=FEDERATED):
    about = {"vocabulary": tokenizer, "vocabulary_origin": origin.as_json(), "training_data_sha256": text}
    return stated_ledgers.ledger_of(path, plan, DELTA, about)


def with_noise(noise, plan=FEDERATED):
    return dataclasses.replace(plan, noise_multiplier=noise)


def exact_epsilon(runs, releases):
    rho = runs * account(FEDERATED, DELTA).rho + releases / (2 * PRIVATE.private.noise_multiplier**2)
    return gaussian_epsilon(1.0, math.sqrt(2 * rho), DELTA - releases * PRIVATE.private.threshold_delta)


@pytest.mark.parametrize("origin", [VocabularyOrigin("training data"), VocabularyOrigin("given"), UNKNOWN])
def test_a_vocabulary_that_is_not_covered_is_named(origin):
    found = stated(FEDERATED, origin)
    assert found.total == account(FEDERATED, DELTA)
    assert "; VOCABULARY NOT COVERED: " in found.sentence()
    assert "the guarantee takes the vocabulary as fixed, but one client more" in found.sentence()
    assert not found.as_json()["vocabulary_origin"]["covered"]
    assert found.counts.vocabulary == origin


def test_a_ledger_that_says_nothing_of_it_does_not_cover_it():
    found = state_plan(FEDERATED, DELTA, {})
    assert found.counts.vocabulary == UNKNOWN
    assert "VOCABULARY NOT COVERED" in found.sentence()


def test_a_public_vocabulary_spends_nothing():
    found = stated(FEDERATED, VocabularyOrigin("public"))
    assert found.total == account(FEDERATED, DELTA)
    assert "the vocabulary is public: the user has said" in found.sentence()
    assert "NOT COVERED" not in found.sentence()


@pytest.mark.parametrize("people", ["same", "disjoint"])
def test_a_vocabulary_of_people_who_count_is_not_public(people, tmp_path):
    public = VocabularyOrigin("public", text="theirs")
    behind = Phase("simulate", "/a", 3, "digest", "theirs", people, plan=FEDERATED.as_json(), generations=[[0, 3]])
    found = stated(FEDERATED, public, ancestry=[behind._asdict()], training_data_sha256="text")
    assert ("VOCABULARY NOT COVERED" in found.sentence()) == (people == "same")
    assert "VOCABULARY NOT COVERED" in stated(FEDERATED, public, training_data_sha256="theirs").sentence()
    assert "NOT COVERED" not in stated(FEDERATED, public, training_data_sha256="text").sentence()
    one, other = ledger_of(tmp_path / "a", public, "x"), ledger_of(tmp_path / "b", PRIVATE, "x", "theirs")
    assert [one.covered for one in state_together({"one": one}).vocabularies] == [True]
    assert [one.covered for one in state_together({"one": one, "other": other}).vocabularies] == [False, True]
    # Nor does what another run says less of it take that back, whichever comes first.
    silent = ledger_of(tmp_path / "c", VocabularyOrigin("public"), "x", "theirs")
    for runs in ({"one": one, "silent": silent}, {"silent": silent, "one": one}):
        assert sorted(origin.covered for origin in state_together(runs).vocabularies) == [False, True]


def test_a_private_vocabulary_is_composed_with_all_rounds():
    found = stated(FEDERATED, PRIVATE)
    assert found.total.epsilon == pytest.approx(exact_epsilon(1, 1), rel=1e-4)
    assert max(1.0, account(FEDERATED, DELTA).epsilon) < found.total.epsilon < 1 + account(FEDERATED, DELTA).epsilon
    assert found.total.rho is None
    assert "the vocabulary is covered" in found.sentence()
    assert any("one import" in assumption for assumption in found.total.assumptions)


def test_before_the_first_round_it_is_spent_already():
    found = state_plan(FEDERATED, 1e-6, {"vocabulary_origin": PRIVATE.as_json()}, generations=[])
    assert found.total.epsilon == pytest.approx(1.0, rel=1e-3)


def test_a_target_includes_the_vocabulary():
    plan = calibrate_total(with_noise, DELTA, epsilon=3.0, rho=None, origins=Origins(vocabulary=PRIVATE))
    assert 3.0 * (1 - 1e-3) < stated(plan, PRIVATE).total.epsilon <= 3.0
    assert plan.noise_multiplier > calibrate_total(with_noise, DELTA, epsilon=3.0, rho=None).noise_multiplier
    with pytest.raises(ConfigurationError, match="is spent already, by the vocabulary"):
        calibrate_total(with_noise, DELTA, epsilon=0.5, rho=None, origins=Origins(vocabulary=PRIVATE))
    with pytest.raises(ConfigurationError, match="which rho does not express"):
        calibrate_total(with_noise, DELTA, epsilon=None, rho=3.0, origins=Origins(vocabulary=PRIVATE))
    with pytest.raises(ConfigurationError, match="leaves nothing for the run"):
        calibrate_total(with_noise, 1e-7, epsilon=3.0, rho=None, origins=Origins(vocabulary=PRIVATE))


def test_a_delta_that_the_vocabulary_exceeds_promises_nothing():
    found = stated(FEDERATED, PRIVATE, delta=1e-7)
    assert found.total is None
    assert "leaves nothing for the run" in found.sentence()


def test_records_are_read_back():
    for origin in (UNKNOWN, PRIVATE, VocabularyOrigin("given"), VocabularyOrigin("training data", of_another=True)):
        assert VocabularyOrigin.from_json(origin.as_json()) == origin
    assert origin_of_import(PRIVATE.private).release != PRIVATE.release
    nameless = {name: value for name, value in PRIVATE.as_json().items() if name != "release"}
    damaged = [{}, {"kind": "made up"}, {"kind": "private"}, {"kind": "public", "guarantee": {"epsilon": 1}}, "x"]
    for record in (*damaged, nameless):
        with pytest.raises(ConfigurationError, match="origin of a vocabulary"):
            VocabularyOrigin.from_json(record)


@pytest.mark.parametrize(
    ("unit", "covered"),
    [
        ("client: all examples of one client, in all rounds", True),
        ("user: all text of one user (training reads at most 2 sequences of 8 tokens), in all steps", True),
        ("example: one packed sequence of 8 tokens, in all steps", False),
    ],
)
def test_what_is_private_for_each_client_is_not_so_for_what_holds_text_of_several(unit, covered, tmp_path):
    """A hundred clients of one word each fit into one packed sequence, and decide together that it is a word."""
    plan = dataclasses.replace(SAMPLED, unit=unit)
    found, alone = stated(plan, PRIVATE), account(plan, DELTA)
    assert ("VOCABULARY NOT COVERED" in found.sentence()) == (not covered)
    assert (found.total.epsilon > alone.epsilon) == covered
    assert found.total.adjacency == alone.adjacency
    assert found.as_json()["vocabulary_origin"]["covered"] == covered
    assert VocabularyOrigin.from_json(found.counts.vocabulary.as_json()) == found.counts.vocabulary
    together = state_together({"one": ledger_of(tmp_path / "ledger", PRIVATE, plan=plan)})
    assert [origin.covered for origin in together.vocabularies] == [covered]
    assert together.epsilon == pytest.approx(found.total.epsilon)
    known, counted = (
        calibrate_total(
            lambda noise: with_noise(noise, plan), DELTA, epsilon=2.0, rho=None, origins=Origins(vocabulary=vocabulary)
        )
        for vocabulary in (UNKNOWN, PRIVATE)
    )
    assert (counted.noise_multiplier > known.noise_multiplier) == covered


OF_USERS = dataclasses.replace(PRIVATE, of_users=True)


@pytest.mark.parametrize("unit", ["client: all examples of one client, in all rounds", "example: one example"])
def test_what_is_private_for_documents_of_another_data_set_is_not_so_for_users_here(unit, tmp_path):
    """Somebody with a hundred documents there decides alone that what is in all of them is a word."""
    plan = dataclasses.replace(SAMPLED, unit=unit)
    of_documents, of_users = (dataclasses.replace(one, of_another=True) for one in (PRIVATE, OF_USERS))
    alone, own = account(plan, DELTA).epsilon, stated(plan, PRIVATE)
    found = stated(plan, of_documents)
    assert "VOCABULARY NOT COVERED" in found.sentence()
    assert "one user here may have been many" in found.sentence()
    assert found.total.epsilon == alone
    covered = stated(plan, of_users)
    assert "the vocabulary is covered" in covered.sentence()
    assert covered.total.epsilon >= own.total.epsilon > alone
    assert any("at most one client in the data set" in line for line in covered.total.assumptions)
    assert not any("at most one client in the data set" in line for line in own.total.assumptions)
    for origin in (of_documents, of_users):
        assert VocabularyOrigin.from_json(origin.as_json()) == origin
    # Nor is it covered where a run on the first data set is stated with one on the second.
    first, second = ledger_of(tmp_path / "a", PRIVATE, "x"), ledger_of(tmp_path / "b", of_documents, "x")
    for runs in ({"a": first, "b": second}, {"b": second, "a": first}):
        assert [origin.covered for origin in state_together(runs).vocabularies] == [False]


def test_runs_spend_each_release_once_whatever_it_made(tmp_path):
    """Two imports of the same people draw noise twice, and may end with the same words."""
    one, other = (ledger_of(tmp_path / name, PRIVATE) for name in "ab")
    another = ledger_of(tmp_path / "c", AGAIN)
    for ledgers, vocabularies in (([one, other], 1), ([one, another], 2), ([one, other, another], 2)):
        found = state_together({str(number): ledger for number, ledger in enumerate(ledgers)})
        exact = exact_epsilon(len(ledgers), vocabularies)
        assert exact <= found.epsilon * (1 + 1e-6)
        assert found.epsilon == pytest.approx(exact, rel=0.01)
        assert len(found.vocabularies) == len(found.as_json()["vocabularies"]) == vocabularies
        assert found.rho is None
    nothing_left = state_together({"a": one, "c": another}, delta=1e-6)
    assert nothing_left.epsilon is None
    assert "larger delta" in nothing_left.as_json()["not_private"]


def behind_with(path, origin, people="same", data="text"):
    """Records of what first parameters went through: one training with such a vocabulary."""
    parent = training_in(ledger_of(path, origin, text=data), "/parent")
    return [parent._replace(people=people)._asdict()]


@pytest.mark.parametrize(("behind", "releases"), [(PRIVATE, 1), (AGAIN, 2)], ids=["one release", "two"])
def test_first_parameters_bring_the_release_that_they_were_trained_with(behind, releases, tmp_path):
    about = {"ancestry": behind_with(tmp_path / "parent", behind), "training_data_sha256": "text"}
    found = stated(FEDERATED, PRIVATE, **about)
    assert found.total.epsilon == pytest.approx(exact_epsilon(2, releases), rel=0.01)
    assert found.sentence().count("the vocabulary is covered") == releases
    assert [one["release"] for one in found.as_json().get("vocabularies", [])] == (
        [PRIVATE.release, AGAIN.release] if releases == 2 else []
    )

    target = exact_epsilon(2, releases)
    plan = calibrate_total(
        with_noise, DELTA, epsilon=target, rho=None, training_data="text", origins=Origins(found.ancestry, PRIVATE)
    )
    assert plan.noise_multiplier == pytest.approx(5.0, rel=0.05)
    about |= {"vocabulary_origin": PRIVATE.as_json(), "vocabulary": "same"}
    child = stated_ledgers.ledger_of(tmp_path / "child", FEDERATED, DELTA, about)
    together = state_together({"child": child})
    assert together.epsilon == pytest.approx(found.total.epsilon, rel=1e-6)
    assert len(together.vocabularies) == releases


@pytest.mark.parametrize("people", ["public", "disjoint"])
def test_other_peoples_training_brings_a_vocabulary_that_was_taken_from_elsewhere(people, tmp_path):
    """Nobody has said whose text it was made of."""
    taken = dataclasses.replace(AGAIN, of_another=True, of_users=True)
    of_theirs = behind_with(tmp_path / "theirs", AGAIN, people, "theirs")
    of_nobody_knows_whose = behind_with(tmp_path / "taken", taken, people, "theirs")
    alone = stated(FEDERATED, PRIVATE, training_data_sha256="text").total.epsilon
    counted = [
        stated(FEDERATED, PRIVATE, ancestry=ancestry, training_data_sha256="text").total.epsilon
        for ancestry in (of_theirs, of_nobody_knows_whose)
    ]
    assert counted[0] == alone < exact_epsilon(1, 2) < counted[1]


@pytest.mark.parametrize("behind", [VocabularyOrigin("training data"), UNKNOWN])
def test_equal_words_that_were_made_without_privacy_before_are_not_covered(behind, tmp_path):
    ancestry = behind_with(tmp_path / "parent", behind)
    found = stated(FEDERATED, PRIVATE, ancestry=ancestry, training_data_sha256="text")
    assert "VOCABULARY NOT COVERED" in found.sentence()
    assert not found.as_json()["vocabulary_origin"]["covered"]
    assert found.total.epsilon == pytest.approx(exact_epsilon(2, 1), rel=0.01)
    theirs = behind_with(tmp_path / "theirs", behind, "disjoint", "theirs")
    assert "NOT COVERED" not in stated(FEDERATED, PRIVATE, ancestry=theirs).sentence()
