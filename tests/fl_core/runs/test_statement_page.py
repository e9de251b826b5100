"""The page of a release says of its numbers what is so, whatever they are composed of."""

import re

import pytest

from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD, PrivateVocabulary, VocabularyOrigin
from fedlm.fl_core.privacy.participation import BoundedParticipation, PoissonParticipation
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.statement import state_plan
from fedlm.fl_core.runs.statements.published_statement import ACCOUNTANT, OPERATOR, PLANNED, WITHHELD
from fedlm.fl_core.runs.statements.publishing import _page

DELTA = 1e-5
VOCABULARY = VocabularyOrigin("private", PrivateVocabulary(2.0, 5e-9, 3.0, 50.0, 1e-9, 100), release="one")


def page(participation, **about):
    stated = state_plan(PrivacyPlan("gaussian", 3, 5.0, participation), DELTA, about)
    texts = {"accountant": ACCOUNTANT, "stated": PLANNED, "seen_by_the_operator": OPERATOR, "withheld": WITHHELD}
    of_model = {"private": True, "model": "cifg_tiny", "parameters_sha256": "0"}
    vocabulary = stated.vocabulary.as_json() | {"tokenizer": "published"}
    return _page(of_model | stated.as_json() | texts | {"vocabulary": vocabulary})


@pytest.mark.parametrize(
    ("participation", "origin", "said"),
    [
        (BoundedParticipation(2), VocabularyOrigin("public"), r"rho = 0\.04"),
        (PoissonParticipation(0.1), VocabularyOrigin("public"), "not stated: rho does not express all .* sampling"),
        (BoundedParticipation(2), VOCABULARY, "not stated: rho does not express all .* vocabulary"),
    ],
    ids=["bounded", "sampled", "private vocabulary"],
)
def test_why_there_is_no_rho(participation, origin, said):
    found = page(participation, **{ORIGIN_FIELD: origin.as_json()})
    assert re.search(f"<dt>zCDP</dt><dd>{said}", found)
    assert "sampling amplifies" not in found, "a reason that is not this run's"
