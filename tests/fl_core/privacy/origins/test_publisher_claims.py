import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.origins.ancestry import OF_A_PUBLISHER, Phase, as_records, recorded_ancestry
from fedlm.fl_core.privacy.origins.publisher_claims import CLAIMS_FIELD, PublisherClaim
from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.statement import state_plan

CLAIM = PublisherClaim(epsilon=2.0, delta=1.1e-10, unit="sequence of 1,024 tokens", source="https://example.org/report")
QUOTED = 'epsilon 2.0 at delta 1.1e-10 for each "sequence of 1,024 tokens" (source: "https://example.org/report")'
PLAN = central_plan(10_000, 100, 50, 1.0, adjacency="add_or_remove", unit="example: one example, in all steps")


def imported(people, claim=CLAIM):
    return Phase("model import", "/runs/gemma", 0, "ab", None, people, OF_A_PUBLISHER, claim=claim and claim.as_json())


def stated(people, claim=CLAIM):
    return state_plan(PLAN, 1e-6, {"ancestry": as_records([imported(people, claim)])})


def test_a_claim_is_quoted_apart_and_changes_no_epsilon():
    bare = state_plan(PLAN, 1e-6, {})
    for claim in (None, CLAIM, dataclasses.replace(CLAIM, epsilon=1e9), dataclasses.replace(CLAIM, epsilon=0.0)):
        for people in ("public", "disjoint"):
            found = stated(people, claim)
            assert found.total.epsilon == bare.total.epsilon
            assert found.total.unit == bare.total.unit
            record = found.as_json()
            assert record["privacy_guarantee"]["epsilon"] == bare.total.epsilon
            (listed,) = record[CLAIMS_FIELD]
            assert (listed["claim"], listed["checked"]) == (claim and claim.as_json(), False)
    sentence = stated("public").sentence()
    own, _, theirs = sentence.partition("the publisher of the weights that")
    assert "epsilon" in own
    assert "2.0" not in own
    assert QUOTED in theirs
    assert theirs.endswith("fedlm has not checked this claim, and it is not part of the epsilon above")


def test_that_nothing_is_claimed_is_said():
    sentence = stated("public", None).sentence()
    assert sentence.endswith(
        "the weights that `fedlm model import` in /runs/gemma took in come without a claim of their publisher"
    )
    assert "publisher" not in state_plan(PLAN, 1e-6, {}).sentence() + str(state_plan(PLAN, 1e-6, {}).as_json())
    (record,) = as_records([imported("public", None)])
    assert "claim" not in record
    assert recorded_ancestry({"ancestry": [record]}) == (imported("public", None),)


def test_a_claim_promises_nothing_where_the_text_may_be_the_same_people_s():
    found = stated("same")
    assert found.total is None
    assert found.sentence().startswith("NOT PRIVATE")
    assert QUOTED in found.sentence()
    assert found.sentence().endswith("and it is no promise of this run")
    terms = found.as_terms()
    assert terms["epsilon"] is None
    assert terms[CLAIMS_FIELD][0]["claim"]["epsilon"] == 2.0


NO_CLAIMS = {
    "unit": [
        'user"; this run: epsilon 0.1',
        "user; checked by fedlm",
        "user\nepsilon",
        "user\u2028",
        "\u201duser",
        " ",
        3,
    ],
    "source": ["\u202egro.elpmaxe", "\x1b[2Jreport", "[bold]report[/]", "<script>", "x" * 201],
    "epsilon": [float("nan"), float("inf"), -1.0, True, "2"],
    "delta": [1.0, -1e-9],
}


@pytest.mark.parametrize("changes", [{name: value} for name, values in NO_CLAIMS.items() for value in values])
def test_a_claim_that_could_be_taken_for_another_s_words_is_refused(changes):
    with pytest.raises(ConfigurationError, match=r"publisher_(unit|source|epsilon|delta)"):
        PublisherClaim(**CLAIM.as_json() | changes)
    # Nor is one read that somebody has put into a record.
    forged = imported("public")._replace(claim=CLAIM.as_json() | changes)
    with pytest.raises(ConfigurationError, match="publisher_"):
        state_plan(PLAN, 1e-6, {"ancestry": as_records([forged])}).sentence()


@pytest.mark.parametrize("record", [{}, [], "epsilon 2", {"epsilon": 2.0}, CLAIM.as_json() | {"checked": True}])
def test_a_damaged_record_is_refused(record):
    with pytest.raises(ConfigurationError, match="damaged"):
        PublisherClaim.from_json(record)


@given(text=st.text(max_size=40))
def test_whatever_is_quoted_stays_within_its_quotation(text):
    try:
        words = dataclasses.replace(CLAIM, unit=text).words()
    except ConfigurationError:
        return
    assert words.count('"') == 4
    assert words.isprintable()
    assert ";" not in words
