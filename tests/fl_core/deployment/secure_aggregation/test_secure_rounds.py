"""Members that call a server, byte for byte, and a server or members that end in each step."""

import asyncio
import contextlib
import weakref
from collections import Counter

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fedlm_client.secure_aggregation import keys
from fedlm.fedlm_client.secure_aggregation.keys import Identity
from fedlm.fedlm_client.secure_aggregation.member import Member
from fedlm.fedlm_client.secure_aggregation.taking_part import Reply, take_part
from fedlm.fl_core.deployment.secure_aggregation import attempt
from fedlm.fl_core.deployment.secure_aggregation.attempts_sql import SecureAttempts
from fedlm.fl_core.deployment.secure_aggregation.errors import AbandonedError
from fedlm.fl_core.deployment.secure_aggregation.secure_round import SecureRound
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import StateError
from fedlm.fl_core.deployment.state.state_sql import sqlite_url
from tests.support import secure_cohorts as cohorts

COUNT = 6
STEPS = ("keys", "shares", "vector", "agree", "reveal")
RULES = cohorts.rules(COUNT, graph=(5, 3))


def rules_for(count):
    """The rules for all, or for those that are there."""
    return RULES._replace(neighbours=count - 1)


INTEGERS = cohorts.vectors(COUNT, RULES)


class EndedError(Exception):
    """A client or the server is no more."""


@pytest.fixture
def kept(tmp_path):
    with contextlib.closing(Database(sqlite_url(tmp_path / "state.db"))) as database:
        yield SecureAttempts(database)


async def run(kept, *, attempt=b"first", ends=None, server_ends=None):
    """Run an attempt; `ends` says before which call a client ends, `server_ends` after which step the server does."""
    name = cohorts.NAME._replace(attempt=attempt)
    server = SecureRound(name, rules_for, [cohorts.authority("ours")[0]], kept.save)

    def asking(index):
        async def ask(step, content):
            if (ends or {}).get(index) == step:
                raise EndedError
            return server.answer(f"client{index}", step, content)

        return ask

    members = [cohorts.member(index, name=name) for index in range(COUNT)]
    tasks = [
        asyncio.create_task(take_part(member, INTEGERS[index], asking(index), lambda: asyncio.sleep(0)))
        for index, member in enumerate(members)
    ]
    try:
        for step in STEPS:
            for _ in range(5):
                await asyncio.sleep(0)
            if server_ends == step:
                raise EndedError
            server.end_step()
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    return server, ended


def plain(members):
    return INTEGERS[sorted(members)].sum(0) % (1 << RULES.bits)


@pytest.mark.parametrize("step", STEPS)
def test_a_client_that_ends_in_a_step_is_left_out_or_counts_and_the_sum_is_right(kept, step):
    server, _ = asyncio.run(run(kept, ends={2: step}))
    there = set(range(COUNT)) - ({2} if step in STEPS[:3] else set())
    owners = [int(owner.removeprefix("client")) for owner in server.attempt.advertisements]
    assert {owners[index] for index in server.attempt.survivors} == there
    assert np.array_equal(server.total, plain(there))
    assert cohorts.kept_attempts(kept)[b"first"] == ("finished", True, "")


@pytest.mark.parametrize("step", STEPS)
def test_a_server_that_ends_in_a_step_counts_the_attempt_once_vectors_may_leave_and_begins_anew(kept, step):
    with pytest.raises(EndedError):
        asyncio.run(run(kept, server_ends=step))
    assert kept.abandon_open("the server ended") == (step in STEPS[2:])
    server, _ = asyncio.run(run(kept, attempt=b"second"))
    assert np.array_equal(server.total, plain(range(COUNT)))
    charged = [one for _, one, _ in cohorts.kept_attempts(kept).values()]
    assert sum(charged) == 1 + (step in STEPS[2:])


def test_with_too_few_left_the_attempt_is_over_and_everybody_is_told_so(kept):
    with pytest.raises(AbandonedError, match="2 members are left, but 3 must be"):
        asyncio.run(run(kept, ends=dict.fromkeys(range(4), "vector")))
    expected = ("abandoned", True, "2 members are left, but 3 must be")
    assert cohorts.kept_attempts(kept) == {b"first": expected}


def test_nobody_is_told_what_could_not_be_written(kept, monkeypatch):
    def save(state):
        if state.charged:
            raise StateError("the disk is full")

    monkeypatch.setattr(kept, "save", save)
    with pytest.raises(StateError, match="disk is full"):
        asyncio.run(run(kept))


def test_what_is_no_message_late_or_of_a_stranger_is_over_for_that_client_alone(kept):
    server, ended = asyncio.run(run(kept))
    assert ended == [None] * COUNT
    for owner, step, content, words in (
        ("client0", "shares", b"nonsense", "cannot be read"),
        ("client9", "vector", b"", "client9 is no member"),
        ("client9", "keys", b"", "cannot be read"),
    ):
        reply = server.answer(owner, step, content)
        assert (reply.state, words in reply.reason) == ("over", True)
    late = cohorts.member(7).advertise()
    reply = server.answer("client7", "keys", cohorts.wire.write_advertisement(late))
    assert (reply.state, reply.reason) == ("over", "the attempt is finished, not advertising")


@pytest.mark.parametrize(("hours", "state"), [(0.9, "over"), (1.1, "wait")])
def test_keys_of_a_certificate_that_ends_within_an_hour_are_not_taken_since_members_would_refuse_all(hours, state):
    key, (authority, issuer_key) = ec.generate_private_key(ec.SECP256R1()), cohorts.authority("ours")
    identity = Identity(cohorts.certificate("client0", key, authority, issuer_key, hours=hours), key)
    sent = Member(cohorts.NAME, identity, cohorts.FLOORS, [authority]).advertise()
    server = SecureRound(cohorts.NAME, rules_for, [authority], lambda state: None)
    reply = server.answer("client0", "keys", cohorts.wire.write_advertisement(sent))
    assert (reply.state, "ends within an hour" in reply.reason) == (state, state == "over")


def test_certificates_are_looked_at_again_when_the_roster_is_made(monkeypatch):
    server = SecureRound(cohorts.NAME, rules_for, [cohorts.authority("ours")[0]], lambda state: None)
    for index in range(COUNT):
        server.answer(f"client{index}", "keys", cohorts.wire.write_advertisement(cohorts.member(index).advertise()))
    monkeypatch.setattr(attempt, "_ends_soon", lambda one: one is server.attempt.advertisements.get("client2"))
    server.end_step()
    assert [*server.attempt.advertisements] == [f"client{one}" for one in range(COUNT) if one != 2]
    reply = server.answer("client2", "keys", cohorts.wire.write_advertisement(cohorts.member(2).advertise()))
    assert (reply.state, reply.reason) == ("over", "its certificate ends within an hour; renew it first")


@pytest.mark.parametrize(("noise", "left"), [("", {2, 4}), ("skellam", set())])
def test_an_exact_sum_is_of_those_that_train_by_what_most_train_by(noise, left):
    rules = lambda count: rules_for(count)._replace(noise=noise)  # noqa: E731
    server = SecureRound(cohorts.NAME, rules, [cohorts.authority("ours")[0]], lambda state: None)
    for index in range(COUNT):
        one = cohorts.member(index, plan=bytes(32) if index in (2, 4) else b"")
        server.answer(f"client{index}", "keys", cohorts.wire.write_advertisement(one.advertise()))
    server.end_step()
    assert server.attempt.left_out.keys() == {f"client{one}" for one in left}
    assert len(server.attempt.roster.members) == COUNT - len(left)
    assert server.attempt.roster.parameters.neighbours == COUNT - len(left) - 1


def test_who_seals_shares_that_cannot_be_opened_is_named_by_who_cannot_and_nobody_waits_for_these(
    kept, monkeypatch, caplog
):
    deal = Member.deal

    def spoiled(member, roster):
        dealing = deal(member, roster)
        return dealing._replace(sealed={one: bytes(82) for one in dealing.sealed}) if member._index == 2 else dealing

    monkeypatch.setattr(Member, "deal", spoiled)
    with pytest.raises(AbandonedError, match="1 members are left"):
        asyncio.run(run(kept))
    said = [record.fields for record in caplog.records if record.msg == "shares_not_opened"]
    assert {(one["client"], one["by"]) for one in said} == {
        ("client2", f"client{one}") for one in range(COUNT) if one != 2
    }


def test_who_reveals_a_wrong_share_is_named_in_the_log(kept, monkeypatch, caplog):
    reveal = Member.reveal

    def wrong(member, signatures):
        one = reveal(member, signatures)
        return one._replace(own_masks={to: bytes(33) for to in one.own_masks}) if member._index == 2 else one

    monkeypatch.setattr(Member, "reveal", wrong)
    server, _ = asyncio.run(run(kept))
    assert np.array_equal(server.total, plain(range(COUNT)))
    (said,) = [record for record in caplog.records if record.msg == "wrong_shares"]
    assert said.fields == {"client": [*server.attempt.advertisements][2], "round": 3}


@pytest.mark.parametrize("kind", ["commitment", "masking key"])
def test_who_deals_shares_of_another_secret_than_it_announced_is_named_in_the_log(kind, kept, monkeypatch, caplog):
    deal = Member.deal

    def spoiled(member, roster):
        lies = roster.members.index(member.advertise()) == 2
        if lies and kind == "masking key":
            member._masking = X25519PrivateKey.generate()
        dealing = deal(member, roster)
        return dealing._replace(commitment=bytes(32)) if lies and kind == "commitment" else dealing

    monkeypatch.setattr(Member, "deal", spoiled)
    with pytest.raises(AbandonedError, match="give the secret that was announced"):
        asyncio.run(run(kept, ends={2: "vector"} if kind == "masking key" else {}))
    (said,) = [record for record in caplog.records if record.msg == "shares_not_of_announced"]
    assert said.fields == {"client": "client2", "round": 3}


def test_a_client_that_the_server_goes_on_without_says_no_more():
    async def ask(step, content):
        return Reply("over", reason="the round is over")

    with pytest.raises(UnsafeSumError, match="goes on without this client: the round is over"):
        asyncio.run(take_part(cohorts.member(0), INTEGERS[0], ask, lambda: asyncio.sleep(0)))


@given(st.sampled_from(("keys", "shares", "vector", "survivors", "agree", "reveal")), st.binary(), st.integers(0, 900))
def test_no_message_breaks_a_server(step, content, place):
    server = SecureRound(cohorts.NAME, rules_for, [cohorts.authority("ours")[0]], lambda state: None)
    advertised = cohorts.wire.write_advertisement(cohorts.member(0).advertise())
    for sent in (content, advertised[:place] + content + advertised[place + len(content) :]):
        reply = server.answer("client0", step, sent)
        assert reply.state == "over" or (step, sent) == ("keys", advertised)


def test_a_client_has_its_integers_in_the_clear_no_more_once_they_are_masked(kept, monkeypatch):
    let_go, whole = [], take_part

    def watched(member, integers, ask, wait):
        held = weakref.ref(integers)

        async def asking(step, content):
            let_go.extend([held() is None] if step == "survivors" else [])
            return await ask(step, content)

        return whole(member, integers, asking, wait)

    monkeypatch.setitem(globals(), "take_part", watched)
    asyncio.run(run(kept))
    assert let_go
    assert all(let_go)


def test_members_of_one_process_verify_each_signature_once_and_not_each_for_all(monkeypatch):
    read, certificates = keys.x509.load_der_x509_certificate, []
    monkeypatch.setattr(keys.x509, "load_der_x509_certificate", lambda one: certificates.append(one) or read(one))
    cohort = cohorts.Cohort(COUNT, RULES, name=cohorts.NAME._replace(attempt=b"of one process"))
    cohort.deal().mask().agree().reveal()
    # The server looks at each twice, and six members together at each twice: when keys are told, and who survives.
    assert Counter(certificates) == dict.fromkeys({one.certificate for one in cohort.roster.members}, 4)
