"""Parts of a masked sum that aggregators add up, and what members say by way of them."""

import contextlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fedlm_client.secure_aggregation.keys import public_of
from fedlm.fedlm_client.secure_aggregation.taking_part import Reply
from fedlm.fl_core.deployment.aggregators.masked_part import MaskedLayout, MaskedPart, read_part
from fedlm.fl_core.deployment.aggregators.member_messages import MemberMessage, MemberMessages, unsealed
from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.server.reports.streaming_sum import Report
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state_sql import sqlite_url
from fedlm.fl_core.rounds.local_sgd import TrainingSums
from fedlm.fl_core.updates.update_bytes import WireError
from tests.fl_core.deployment.aggregators.test_shared_rounds import ROUND
from tests.support import secure_cohorts as cohorts

KEY = X25519PrivateKey.generate()
UNTOLD = TrainingSums(0.0, 0.0, 0.0)


def in_parts(cohort, count, lost):
    """Have members' vectors added up by so many aggregators, one of which may be lost."""
    layout = MaskedLayout(cohort.parameters.length, cohort.parameters.bits)
    for one in range(count):
        part, mine = MaskedPart(messages.SecureSum(), layout), [*cohort.attempt.dealings][one::count]
        for index in mine:
            asked = cohort.attempt.dealt_for(index)
            part.add(Report(index, cohort.members[index].mask(asked, cohort.integers[index]), 0, UNTOLD))
        if one != lost:
            total, _ = read_part(part.packed(), layout)
            cohort.attempt.merge(cohort.total, frozenset(mine), total)
    cohort.attempt.announce()


@pytest.mark.parametrize(("count", "lost"), [(2, None), (3, None), (3, 0)])
@pytest.mark.parametrize("bits", [16, 20])
def test_a_sum_of_parts_is_the_plain_one_of_those_that_are_not_lost(count, lost, bits):
    cohort = cohorts.Cohort(12, cohorts.rules(12, graph=(11, 6), bits=bits)).deal(without=[11])
    in_parts(cohort, count, lost)
    assert len(cohort.attempt.survivors) == (11 if lost is None else 7)
    assert np.array_equal(cohort.reveal(without=[] if lost is not None else [1]).finish(), cohort.plain())


def test_a_part_of_other_vectors_is_refused():
    part = MaskedPart(messages.SecureSum(), MaskedLayout(40, 20))
    with pytest.raises(WireError, match="a partial sum has 104 bytes, but a vector has 103"):
        read_part(part.packed(), MaskedLayout(41, 20))
    with pytest.raises(WireError):
        part.add(Report(0, bytes(99), 0, UNTOLD))


@pytest.fixture
def shared(tmp_path):
    """A masked round with three clients and an aggregator."""
    with contextlib.closing(Database(sqlite_url(tmp_path / "state.db"))) as database:
        rounds = SharedRounds(database)
        rounds.open(ROUND._replace(masks=b"", sealing_key=public_of(KEY), masked_length=40, masked_bits=20))
        rounds.join("a")
        for number in rounds.number_clients(["ann", "bob", "eve"]).values():
            rounds.select("aa", number, 1)
        yield rounds, MemberMessages(database)


def test_members_are_answered_by_whichever_aggregator_they_ask(shared):
    _, said = shared
    assert said.ask("aa", 0, "keys", b"mine") == Reply("wait")
    (asked,) = said.new("aa")
    assert asked == MemberMessage(0, "ann", "keys", b"mine")
    said.answer("aa", [(asked, Reply("wait"))])
    assert (said.ask("aa", 0, "keys", b"mine"), said.new("aa")) == (Reply("wait"), [])
    # It began anew, and what its old keys are answered is not for the new ones.
    assert said.ask("aa", 0, "keys", b"others") == Reply("wait")
    said.answer("aa", [(asked, Reply("ready", b"roster"))])
    (anew,) = said.new("aa")
    said.answer("aa", [(anew, Reply("ready", b"roster"))])
    assert said.ask("aa", 0, "keys", b"others") == Reply("ready", b"roster")
    assert said.ask("aa", 0, "keys", b"mine").reason == "this client has said something else before"
    assert [said.ask(*who, "keys", b"mine").state for who in (("bb", 0), ("aa", 9))] == ["over"] * 2


def test_the_database_has_no_shares_but_for_the_coordinator(shared):
    _, said = shared
    assert [said.ask("aa", 0, "reveal", b"shares") for _ in range(2)] == [Reply("ready")] * 2
    (kept,) = said.new("aa")
    assert b"shares" not in kept.content
    assert unsealed(KEY, kept).content == b"shares"
    with pytest.raises(UnsafeSumError):
        unsealed(X25519PrivateKey.generate(), kept)


def test_a_masked_report_is_claimed_only_once_its_client_knows_with_whom_it_masks(shared):
    rounds, said = shared
    assert rounds.claim("aa", 0, "a", b"1") == "early"
    said.ask("aa", 0, "shares", b"dealt")
    assert rounds.claim("aa", 0, "a", b"1") == "early"
    said.answer("aa", [(said.new("aa")[0], Reply("ready", b"of others"))])
    assert [rounds.claim("aa", client, "a", b"1") for client in (0, 1)] == ["taken", "early"]
