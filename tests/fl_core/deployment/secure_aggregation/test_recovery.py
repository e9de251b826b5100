"""Secrets come back although members lie about their shares, and who lies is named."""

import random
import secrets

import numpy as np
import pytest

from fedlm.fedlm_client.secure_aggregation import shamir
from fedlm.fl_core.deployment.secure_aggregation import recovery
from fedlm.fl_core.deployment.secure_aggregation.errors import AbandonedError
from fedlm.fl_core.deployment.secure_aggregation.parameter_rule import Strangers, choose_graph
from fedlm.fl_core.deployment.secure_aggregation.recovery import recover
from tests.support import secure_cohorts as cohorts

MEMBERS, LIARS = 1000, 50
NEIGHBOURS, THRESHOLD = choose_graph(MEMBERS, Strangers())


def lied(liars, threshold=THRESHOLD, count=NEIGHBOURS):
    """Share a secret of which liars give other numbers of the field, or the right ones with the prime added."""
    secret = secrets.token_bytes(32)
    shares = {place - 1: share for place, share in shamir.split(secret, threshold, range(1, count + 1)).items()}
    beyond = {one: (int.from_bytes(shares[one], "big") + shamir.PRIME).to_bytes(33, "big") for one in liars}
    return secret, shares | {one: beyond[one] if one % 2 else bytes(1) + secrets.token_bytes(32) for one in liars}


def test_one_in_twenty_of_a_thousand_members_hide_no_secret_by_wrong_shares_and_are_named():
    # Of 40 members, one has more than 13 neighbours among 50 liars with probability 4e-4: hypergeometric.
    for _ in range(40):
        drawn = random.sample(range(MEMBERS), NEIGHBOURS)
        liars = {place for place, member in enumerate(drawn) if member < LIARS}
        secret, shares = lied(liars)
        assert recover(shares, THRESHOLD, secret.__eq__) == (secret, liars)


def test_half_of_the_shares_beyond_the_threshold_may_be_wrong_or_all_where_liars_are_known():
    half = (NEIGHBOURS - THRESHOLD) // 2
    secret, shares = lied(range(half))
    # Doubts about honest members, which a lying dealer can raise, hinder nothing.
    for doubted in ((), range(half, NEIGHBOURS)):
        assert recover(shares, THRESHOLD, secret.__eq__, {*doubted}).culprits == {*range(half)}
    known = {*range(NEIGHBOURS - THRESHOLD)}
    secret, shares = lied(known)
    assert recover(shares, THRESHOLD, secret.__eq__, known) == (secret, known)
    with pytest.raises(AbandonedError, match="no 52 of 78 shares"):
        recover(shares, THRESHOLD, secret.__eq__)


def with_liars(lies):
    """A cohort of 8, of whose 7 shares 5 give a secret back; liars say a wrong share of some members' own masks."""
    cohort = cohorts.Cohort(8, cohorts.rules(8, graph=(7, 5))).deal().mask().agree()
    for one, about in lies.items():
        honest = cohort.members[one].reveal(cohort.signatures(one))
        wrong = {other: bytes(32) + b"\7" for other in honest.own_masks.keys() & set(about)}
        cohort.attempt.reveal(one, honest._replace(own_masks=honest.own_masks | wrong))
    return cohort.reveal(lies)


def test_a_secret_that_waits_is_found_once_other_secrets_have_named_the_liars(monkeypatch):
    monkeypatch.setattr(recovery, "_TRIES", 0)
    cohort = with_liars({1: range(8), 2: range(8)})
    assert np.array_equal(cohort.finish(), cohort.plain())
    assert cohort.attempt.culprits == {1, 2}


def test_liars_are_named_although_the_sum_is_lost():
    cohort = with_liars({1: [0, 4], 2: [0], 3: [0]})
    with pytest.raises(AbandonedError, match="no 5 of 7 shares"):
        cohort.finish()
    assert (cohort.attempt.culprits, cohort.attempt.dealers_in_doubt) == ({1}, {0})
