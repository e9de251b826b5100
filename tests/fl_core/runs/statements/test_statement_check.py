"""A release's statement fits its schema, and whoever changes it is found out."""

import copy
import dataclasses
import json
from fnmatch import fnmatch
from pathlib import Path

import jsonschema
import pytest

from fedlm.commands.cli import main
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.privacy.mechanisms.tree import Trees
from fedlm.fl_core.privacy.origins.ancestry import OF_A_PUBLISHER, Phase, as_records
from fedlm.fl_core.privacy.origins.publisher_claims import PublisherClaim
from fedlm.fl_core.privacy.origins.relevance_origin import RELEVANCE_FIELD, PrivateRelevance, RelevanceOrigin
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD, PrivateVocabulary, VocabularyOrigin
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.participation.sampling import PoissonParticipation
from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.statement import state_plan
from fedlm.fl_core.runs.statements.published_statement import describe, state_release, statement_schema, whole_record
from fedlm.fl_core.runs.statements.statement_check import UNCHECKED

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "statement.md"
DELTA, TEXT = 1e-5, "f" * 64
PRIVATE_WORDS = VocabularyOrigin("private", PrivateVocabulary(2.0, 5e-9, 3.0, 50.0, 1e-9, 100), release="one")
GAUSSIAN = PrivacyPlan("gaussian", 3, 5.0, BoundedParticipation(2))
BEFORE = Phase(
    *("simulate", "run 1 of its history", 8, "0" * 64, TEXT, "same"),
    plan=PrivacyPlan("tree", 8, 6.0, BoundedParticipation(2, 2)).as_json(),
    generations=[[0, 8]],
    vocabulary=PRIVATE_WORDS.as_json(),
)
IMPORTED = Phase(
    *("model import", "run 1 of its history", 0, "0" * 64, None, "public"),
    not_private=OF_A_PUBLISHER,
    claim=PublisherClaim(epsilon=2.0, delta=1.1e-10, unit="sequence", source="a report").as_json(),
)
SELECTED = {
    "selection": {"distribution": "truncated_negative_binomial", "expected_trials": 5.0, "eta": 1.0},
    "chosen": True,
}
PLANS = {
    "bounded": (GAUSSIAN, {}),
    "tree": (PrivacyPlan("tree", 9, 3.0, BoundedParticipation(2, 3), Trees(5, complete_trees=True)), {}),
    "sampled": (PrivacyPlan("gaussian", 20, 2.0, PoissonParticipation(0.05)), {}),
    "central": (central_plan(1000, 20, 30, 1.5, truncated_batch_size=60, adjacency="zero_out"), {}),
    "bins": (central_plan(40, 10, 8, 1.5, in_bins=True), {}),
    "composed": (GAUSSIAN, {"ancestry": as_records([BEFORE]), ORIGIN_FIELD: PRIVATE_WORDS.as_json()}),
    "claimed": (GAUSSIAN, {"ancestry": as_records([IMPORTED])}),
    "compared": (GAUSSIAN, {"tuning": {"runs": 4}}),
    "selected": (GAUSSIAN, {"tuning": SELECTED}),
}


def tables():
    """The part of the page that lists all fields."""
    schema, lines = statement_schema(), []
    of_guarantee = schema["$defs"]["guarantee"]["properties"]
    for heading, fields in (("Fields", schema["properties"]), ("Fields of a guarantee", of_guarantee)):
        lines += [f"## {heading}", "", "| field | what it is | SP 800-226 |", "| --- | --- | --- |"]
        for name, field in fields.items():
            lines.append(f"| `{name}` | {field['description']} | {field.get('x-nist-sp-800-226', '')} |")
        lines.append("")
    return "\n".join(lines)


def test_the_page_has_every_field_of_the_schema():
    assert PAGE.read_text("utf-8").rstrip().endswith(tables().rstrip())


def statement(plan, factor=1.0, **about):
    """Make the statement of a release, its epsilons multiplied by a factor."""
    found = state_plan(plan, DELTA, {"training_data_sha256": TEXT} | about)
    if found.total is not None:
        own, total = (dataclasses.replace(one, epsilon=one.epsilon * factor) for one in (found.own, found.total))
        found = found._replace(own=own, total=total)
    of_model = {"model": "cifg_tiny", "parameters_sha256": "0" * 64}
    vocabulary = found.counts.vocabulary.as_json() | {"tokenizer": "published"}
    return json.loads(json_text(whole_record(describe(found, plan, DELTA, TEXT), of_model, vocabulary)))


@pytest.fixture
def check(tmp_path, capsys):
    """Check a record as a user does: the exit status, and what is said."""

    def checked(record):
        path = tmp_path / "statement.json"
        path.write_text(record if isinstance(record, str) else json.dumps(record))
        status = main(["account", "check", str(path)])
        said = capsys.readouterr()
        return status, said.out + said.err

    return checked


@pytest.mark.parametrize("name", PLANS)
def test_a_statement_fits_its_schema_and_follows_from_its_plan(name, check):
    plan, about = PLANS[name]
    record = statement(plan, **about)
    jsonschema.Draft202012Validator.check_schema(statement_schema())
    jsonschema.validate(record, statement_schema(), jsonschema.Draft202012Validator)
    assert record["private"]
    assert TEXT not in json.dumps(record)
    status, said = check(record)
    assert status == 0, said
    assert f"epsilon = {record['privacy'].split('epsilon = ')[1].split(',')[0]} at delta = 1e-05 follows" in said
    assert all(one in said for one in UNCHECKED)


def leaves(record, *place):
    """All places of a record that hold a text, a number, a truth or nothing, or an empty list."""
    inner = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    if not inner:
        yield place
    for name, value in inner:
        yield from leaves(value, *place, name)


def others(value):
    """What somebody may put in place of a value."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value * 0.9 - 1e-6, value * 2 + 1, value - 1e-6]
    if isinstance(value, str):
        return [value + "!", ""]
    return [1, "text"]


def changed(record, place, value):
    record = copy.deepcopy(record)
    at = record
    for one in place[:-1]:
        at = at[one]
    at[place[-1]] = value
    return record


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        *("sampled", "composed"),
        *(pytest.param(one, marks=pytest.mark.thorough) for one in ("tree", "claimed", "compared")),
    ],
)
def test_whoever_changes_any_field_is_found_out(name, check):
    plan, about = PLANS[name]
    record = statement(plan, **about)
    tried = 0
    for place in leaves(record):
        if any(fnmatch(".".join(map(str, place)), one) for one in UNCHECKED):
            continue
        at = record
        for one in place:
            at = at[one]
        for value in others(at):
            status, said = check(changed(record, place, value))
            # Numbers for comparison alone may be those of another accountant.
            free = place[-1] in ("epsilon_lower", "epsilon_by_rdp") and isinstance(value, float) and value > 0.99 * at
            assert (status in (1, 2) and "Traceback" not in said) or (free and value < at), (place, value, said)
            tried += 1
    assert tried > 100


@pytest.mark.long
@pytest.mark.parametrize("name", ["bounded", pytest.param("composed", marks=pytest.mark.thorough)])
def test_whoever_takes_a_field_or_a_line_away_is_found_out(name, check):
    plan, about = PLANS[name]
    record = statement(plan, **about)
    for place in {one[:end] for one in leaves(record) for end in range(1, len(one) + 1)}:
        less = copy.deepcopy(record)
        at = less
        for one in place[:-1]:
            at = at[one]
        del at[place[-1]]
        assert check(less)[0] in (1, 2), place
    for field in ("privacy_guarantee", "guarantee_of_this_run_alone"):
        lines = record[field]["assumptions"]
        assert "lacks" in check(changed(record, (field, "assumptions"), lines[1:]))[1]
        assert "or one of them twice" in check(changed(record, (field, "assumptions"), [*lines, lines[0]]))[1]


def test_what_is_claimed_falsely_is_named(check):
    record = statement(GAUSSIAN)
    epsilon = record["privacy_guarantee"]["epsilon"]
    for place, value, words in (
        (("privacy_guarantee", "epsilon"), epsilon / 2, f"but the plan spends {epsilon!r}: the statement claims less"),
        (("privacy_guarantee", "epsilon"), epsilon * 2, "it is the number of another plan"),
        (("plan", "noise_multiplier"), 2.0, "the statement claims less than that"),
        (("plan", "noise_multiplier"), 9.0, "it is the number of another plan"),
        (("plan", "rounds"), 4, "privacy_guarantee.rounds is 3, but from the plan follows 4"),
        (("plan", "participation", "max_participations"), 3, "the statement claims less than that"),
        (("delta",), 1e-6, "the statement claims less than that"),
        (("plan", "unit"), "user: somebody", "privacy_guarantee.unit is 'client"),
        (("privacy_guarantee", "adjacency"), "add-or-remove", "privacy_guarantee.adjacency is 'add-or-remove'"),
    ):
        status, said = check(changed(record, place, value))
        assert (status, words in said, "DOES NOT HOLD" in said) == (1, True, True), said
    sampled = statement(PrivacyPlan("gaussian", 20, 2.0, PoissonParticipation(0.05)))
    status, said = check(changed(sampled, ("plan", "participation", "sampling_probability"), 0.1))
    assert (status, "the statement claims less" in said) == (1, True)
    status, said = check(changed(sampled, ("plan", "adjacency"), "zero_out"))
    assert status == 1


@pytest.mark.parametrize(("factor", "expected"), [(1 + 1e-12, 0), (1.005, 0), (1.02, 1), (1 - 1e-6, 1), (0.5, 1)])
def test_an_accountant_may_be_a_little_looser_but_no_tighter(factor, expected, check):
    record = statement(central_plan(1000, 20, 30, 1.5), factor)
    status, said = check(record)
    assert status == expected, said
    assert ("the statement claims less" in said) == (factor < 1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read as JSON"),
        ("", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ('{"epsilon": NaN}', "NaN is no number of JSON"),
        ('{"kind": 1, "kind": 2}', "'kind' is there twice"),
        ('{"delta": 1e400}', "1e400 is too large a number"),
        ('{"delta": 1' + "0" * 30 + "}", "is too large a number"),
        ('"' + "a" * (1 << 24) + '"', "it has more than 16,777,216 bytes"),
        ("[]", "the file: [] is not of type 'object'"),
        ('{"kind": "other"}', "no statement of a release"),
    ],
)
def test_what_is_no_statement_is_one_line_and_status_2(content, words, check, tmp_path, capsys):
    if content is None:
        assert main(["account", "check", str(tmp_path / "none.json")]) == 2
        said = capsys.readouterr().err
    else:
        status, said = check(content)
        assert status == 2
    assert words in said
    assert said.count("\n") == 1


TRUNCATED = central_plan(1000, 20, 30, 1.5, truncated_batch_size=60, adjacency="zero_out")
BANDED = PrivacyPlan("banded", 4, 3.0, BoundedParticipation(2, 2), coefficients=(1.0, 0.5))


TREE = PrivacyPlan("tree", 9, 3.0, BoundedParticipation())
APART = PrivacyPlan("tree", 9, 3.0, BoundedParticipation(1, 9))
BLT = PrivacyPlan("blt", 4, 3.0, BoundedParticipation(2), coefficients=(0.5, 0.1))


@pytest.mark.parametrize(
    ("plan", "changes", "words"),
    [
        (GAUSSIAN, {"plan.mechanism": "magic"}, "must be one of"),
        (GAUSSIAN, {"plan.participation.kind": "epochs"}, "not a plan of a private run"),
        (GAUSSIAN, {"plan.participation.max_participations": 1.5}, "is not of type 'integer'"),
        (GAUSSIAN, {"plan.participation.max_participations": 2.0}, "must be a whole number or None"),
        (GAUSSIAN, {"plan.participation.min_separation": True}, "is not of type 'integer'"),
        # As if no batch ever lost an example.
        (TRUNCATED, {"plan.participation.population": None}, "is not of type 'integer'"),
        (TRUNCATED, {"plan.participation.population": 0}, "must be at least 1"),
        # As if one more example fitted into equal parts.
        (TRUNCATED, {"plan.participation.cycle": 2, "plan.adjacency": "add_or_remove"}, "for parts of equal size"),
        # As if a strategy of nothing gave nothing away.
        (BANDED, {"plan.coefficients": [0.0, 0.0]}, "that of its diagonal above 0"),
        (BLT, {"plan.coefficients": [0.5]}, ""),
        (GAUSSIAN, {"plan.unit": ""}, ""),
        (GAUSSIAN, {"tuning": {"chosen": True}}, ""),
        # What would take hours.
        (GAUSSIAN, {"plan.rounds": 10**8}, "100,000,000 rounds, but 10,000,000 at most"),
        (GAUSSIAN, {"plan.rounds": 10**400}, "is too large a number"),
        (TREE, {"plan.rounds": 10**6}, "additions that the sensitivity"),
        (APART, {"plan.rounds": 10**6, "plan.participation.min_separation": 10**5}, "additions that the sensitivity"),
    ],
)
def test_a_plan_that_there_cannot_be_or_that_would_take_hours_is_no_statement(plan, changes, words, check):
    record = statement(plan)
    for place, value in changes.items():
        record = changed(record, place.split("."), value)
    status, said = check(record)
    assert (status, words in said, said.count("\n")) == (2, True, 1), said


def test_many_trainings_or_words_and_deep_nests_are_refused(check):
    record = statement(*PLANS["composed"][:1], **PLANS["composed"][1])
    many = changed(record, ("ancestry",), record["ancestry"] * 51)
    assert "51 trainings before this one, but 50 at most" in check(many)[1]
    words = changed(record, ("vocabulary_origin", "guarantee", "words_per_client"), 10**9)
    assert "1,000,000,000 words of one client in a private vocabulary, but 1,000,000 at most" in check(words)[1]
    deep = json.dumps(changed(statement(GAUSSIAN), ("vocabulary", "more"), "here"))
    assert check(deep.replace('"here"', "[" * 600 + "]" * 600))[0] in (1, 2)


@pytest.mark.parametrize(
    ("field", "value"), [("epsilon", 0.5), ("threshold", 5.0), ("threshold_delta", 1e-60), ("noise_multiplier", 1.0)]
)
def test_a_private_vocabulary_is_held_to_its_noise(field, value, check):
    """With its sentences and the epsilon of everything as if it were true."""
    guarantee = dataclasses.replace(PRIVATE_WORDS.private, **{field: value})
    record = statement(GAUSSIAN, **{ORIGIN_FIELD: dataclasses.replace(PRIVATE_WORDS, private=guarantee).as_json()})
    status, said = check(record)
    assert (status, "but its noise needs" in said) == (1, True), said
    before = BEFORE._replace(vocabulary=dataclasses.replace(PRIVATE_WORDS, private=guarantee).as_json())
    status, said = check(statement(GAUSSIAN, ancestry=as_records([before])))
    assert (status, "ancestry.0.vocabulary.guarantee." in said) == (1, True), said


def test_private_relevances_are_held_to_their_noise(check):
    for epsilon, expected in ((2.5, 0), (1.5, 1)):
        relevance = RelevanceOrigin("private", "0" * 64, PrivateRelevance(epsilon, 1e-9, 3.0, 20))
        status, said = check(statement(GAUSSIAN, **{RELEVANCE_FIELD: relevance.as_json()}))
        assert (status, "relevance_origin.guarantee.epsilon is 1.5, but its noise needs" in said) == (
            expected,
            bool(expected),
        ), said


def without_ledger(**about):
    stated = state_release(about, None)
    of_model = {"model": "cifg_tiny", "parameters_sha256": "0" * 64}
    vocabulary = VocabularyOrigin("training data", text=TEXT).as_json() | {"tokenizer": "not published"}
    return json.loads(json_text(whole_record(stated, of_model, vocabulary)))


@pytest.mark.parametrize("about", [{}, {"ancestry": as_records([BEFORE, IMPORTED])}, {"imported": {"a": 1}}])
def test_who_promises_nothing_claims_nothing_beside_it(about, check):
    plain = without_ledger(**about)
    status, said = check(plain)
    assert (status, "promises nothing, and says so" in said) == (0, True), said
    repeatable = statement(GAUSSIAN, experiment={"noise_seed": "experiment"})
    assert (repeatable["private"], check(repeatable)[0]) == (False, 0)
    assert check(changed(repeatable, ("private",), True))[0] in (1, 2)
    for record in (plain, repeatable):
        for field, value in (
            ("privacy", "NOT PRIVATE in name alone: it has (epsilon = 0.1, delta = 1e-09)-differential privacy"),
            ("not_private_because", ["of words: epsilon is 0.1"]),
            ("accountant", "epsilon is 0.1"),
            ("publisher_claims", [{"statement": "epsilon is 0.1, and fedlm has checked it"}]),
            ("vocabulary", {"tokenizer": "published", "statement": "epsilon is 0.1"}),
        ):
            assert check(record | {field: value})[0] in (1, 2), field


def test_a_statement_gives_no_commands_to_a_terminal(check):
    record = statement(GAUSSIAN)
    hostile = "\x1b[2J\nstatement.json: epsilon = 0.1 at delta = 1e-05 follows from the plan"
    status, said = check(changed(record, ("vocabulary", hostile), 1))
    assert status == 1
    assert "\x1b" not in said
    assert said.count("\n") == 2
    status, said = check(changed(record, ("plan", "participation", hostile), 1))
    assert (status, "\x1b" in said, said.count("\n")) == (2, False, 1)
