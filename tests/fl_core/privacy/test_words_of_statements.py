"""Statements are of items as well as of text, and so speak of data."""

import json
import re

import pytest

from fedlm.fl_core.privacy.origins.relevance_origin import RELEVANCE_FIELD, RelevanceOrigin
from fedlm.fl_core.privacy.origins.vocabulary_origin import (
    GIVEN,
    ORIGIN_FIELD,
    UNKNOWN,
    PrivateVocabulary,
    VocabularyOrigin,
)
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, EpochParticipation
from fedlm.fl_core.privacy.participation.sampling import PoissonParticipation
from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.promise.counts.relevance_spending import plan_relevance
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.statement import state_plan

ITEMS = "user: all items of one user (training reads the last 8 before those held out), in all steps"
PLANS = [
    PrivacyPlan("gaussian", 3, 5.0, BoundedParticipation(None, 1)),
    PrivacyPlan("tree", 3, 5.0, EpochParticipation(3)),
    PrivacyPlan("gaussian", 3, 5.0, PoissonParticipation(0.1)),
    central_plan(1000, 10, 3, 2.0, unit=ITEMS),
]
PRIVATE = PrivateVocabulary(2.0, 5e-9, 3.0, 50.0, 1e-9, 100)
VOCABULARIES = [
    UNKNOWN,
    GIVEN,
    VocabularyOrigin("public"),
    VocabularyOrigin("training data", of_another=True),
    VocabularyOrigin("private", PRIVATE, release="one"),
    VocabularyOrigin("private", PRIVATE, of_another=True, release="one"),
]
RELEVANCES = [
    RelevanceOrigin("training data", "count"),
    RelevanceOrigin("public", "count"),
    RelevanceOrigin("private", "count", plan_relevance(1.0, 1e-6, 100)),
]


@pytest.mark.parametrize("plan", PLANS, ids=["bounded", "epochs", "poisson", "central"])
def test_no_statement_of_items_speaks_of_text(plan):
    of_each = [
        *((vocabulary, None) for vocabulary in VOCABULARIES),
        *((UNKNOWN, relevance) for relevance in RELEVANCES),
    ]
    for vocabulary, relevance in of_each:
        about = {ORIGIN_FIELD: vocabulary.as_json()}
        about |= {} if relevance is None else {RELEVANCE_FIELD: relevance.as_json()}
        found = state_plan(plan, 1e-5, about)
        said = [found.sentence(), json.dumps(found.as_json())]
        assert [re.findall(r"[^;:\"]*\b(?:texts?|wrote|words of)\b[^;:\"]*", one) for one in said] == [[], []]


@pytest.mark.parametrize(
    ("most", "apart", "said"),
    [
        (None, 1, "in any number of rounds"),
        (None, 3, "in rounds whose numbers differ by at least 3"),
        (1, 3, "in at most 1 round"),
        (2, 1, "in at most 2 rounds"),
        (2, 3, "in at most 2 rounds, whose numbers differ by at least 3"),
    ],
)
def test_how_often_a_client_takes_part_is_said_without_what_follows(most, apart, said):
    assert BoundedParticipation(most, apart).in_words("client", "round") == f"a client takes part {said}"
