"""A malicious server, written from the protocol's page, and a third of the members that work with it.

Measured is what they learn: sums, by whose they are. A planted update is never among them, nor is a small group's sum.
"""

import numpy as np
import pytest

from fedlm.fedlm_client.secure_aggregation import floors, member
from fedlm.fedlm_client.secure_aggregation.floors import Floors
from fedlm.fl_core.deployment.secure_aggregation.parameter_rule import Strangers, choose_graph
from tests.support import lies, page_protocol
from tests.support import secure_cohorts as cohorts

COUNT, TRAITORS, SHARE = 24, 8, 1 / 3
RULES = cohorts.rules(COUNT, graph=choose_graph(COUNT, Strangers(SHARE, 0.0)), length=8, least_cohort=10)
SPARSE = cohorts.rules(100, graph=choose_graph(100, Strangers()), length=8, least_cohort=10)
NEARLY_ALL = SPARSE._replace(least_cohort=90)
REFUSED = {
    lies.TwoRosters: "changed on their way, or are of another roster",
    lies.SwappedKeys: "has not signed these keys",
    lies.ServersAsMembers: "is none of a client",
    lies.LowerFloors: "shares that give a secret back",
    lies.OtherModels: "has not signed these keys",
    lies.BothShares: "were told of the same members",
    lies.ManyStories: "were told of the same members",
    lies.FewDealt: "were told of the same members",
    lies.NoSurvivors: "have dealt no shares",
    lies.FewSurvivors: "9 members are left, but 10 must be",
    lies.Reflection: "changed on their way",
    lies.Replay: "changed on their way",
    lies.ReplayedKeys: "has not signed these keys",
    lies.ReplayedAgreement: "were told of the same members",
    lies.LowOrder: "cannot be read",
    lies.TwoSpellings: "not written in the one way",
    lies.OtherSignatures: "changed on their way, or are of another roster",
    lies.ConfusedSteps: "cannot be read",
}
TRUE = {lies.Honest: set(range(TRAITORS, COUNT)), lies.LateUpload: set(range(TRAITORS, COUNT - 1))}


def hostile(lie, rules=RULES, count=COUNT, traitors=TRAITORS):
    asked = Floors(least_cohort=10, corrupt_share=traitors / count, dropped_share=0.0)
    server = lie(rules, count, traitors, asked)
    if hasattr(lie, "before"):
        before = lies.Honest(rules, count, traitors, asked, cohorts.NAME._replace(attempt=b"before"))
        before.attack()
        server.before = before
    return server


def learned(server):
    """Attack, check that what is learned is right, and give whose sums it is."""
    found = server.attack()
    assert all(np.array_equal(total, server.plain(group)) for group, total in found.items())
    return {frozenset(group) for group in found}


@pytest.mark.long
@pytest.mark.parametrize("lie", REFUSED)
def test_honest_members_refuse_a_lie_and_nothing_is_learned(lie):
    server = hostile(lie)
    assert learned(server) == set()
    assert any(REFUSED[lie] in reason for reason in server.refusals.values()), server.refusals


@pytest.mark.long
@pytest.mark.parametrize("lie", TRUE)
def test_of_the_truth_the_sum_of_the_honest_survivors_is_learned_and_nothing_else(lie):
    assert learned(hostile(lie)) == {frozenset(TRUE[lie])}


@pytest.mark.long
def test_a_member_among_few_neighbours_is_not_told_apart_by_stories_of_the_others():
    server = hostile(lies.OneVictim, SPARSE, 100, 5)
    assert learned(server) == set()
    assert any("side by side" in reason for reason in server.refusals.values())


@pytest.mark.long
def test_two_stories_show_no_sum_of_fewer_members_than_each_of_them_has():
    server = hostile(lies.TwoArcs, NEARLY_ALL, 100, 5)
    assert learned(server) == set()
    assert any("of 100 members have signed" in reason for reason in server.refusals.values())
    assert len(server.group) + 5 < NEARLY_ALL.least_cohort


@pytest.mark.long
@pytest.mark.parametrize("lie", [lies.ManyStories, lies.FewDealt, lies.OneVictim, lies.TwoArcs])
def test_without_what_members_check_the_lies_find_a_group(lie, monkeypatch):
    """The attacks are real: without the check they find the group's sum, which of a group of one is its update."""
    monkeypatch.setattr(member, "has_signed", lambda *_: True)
    monkeypatch.setattr(floors.Floors, "check_survivors", lambda *_: None)
    sizes = {lies.OneVictim: (SPARSE, 100, 5), lies.TwoArcs: (NEARLY_ALL, 100, 5)}.get(lie, ())
    server = hostile(lie, *sizes)
    assert learned(server) >= {frozenset(server.group)}


@pytest.mark.long
def test_a_server_that_chooses_among_many_rosters_gains_the_bits_of_their_number():
    """Of 2^j rosters the best for it has no more traitors beside one member than 2^-(40 - j) allows; j is 6 here."""
    server = hostile(lies.Honest, SPARSE, 100, 5)
    server.attack()
    most = 0
    for grinding in range(64):
        server.told[99, "keys"] = [[*cohorts.NAME], [*SPARSE[:-1], bytes([grinding])], server.advertisements]
        most = max(most, len(server.neighbours(99) & server.traitors.keys()))
    assert most <= floors.corrupt_neighbours(100, SPARSE.neighbours, 5, 34)


@pytest.mark.long
@pytest.mark.parametrize("step", ["keys", "shares", "survivors", "agree"])
def test_malformed_answers_are_refused_without_a_traceback_and_teach_nothing(step):
    drawn = np.random.default_rng(0)
    for change in range(24):
        server = hostile(lies.Honest, cohorts.rules(6, graph=(5, 4), length=8), 6, 1)
        reply = server.reply

        def changed(one, asked, reply=reply, change=change):
            said = reply(one, asked)
            return damaged(said, change, drawn) if asked == step else said

        server.reply = changed
        assert all(len(group) > 3 for group in learned(server))


def damaged(said, change, drawn):
    """Change a byte, a count or the end, write items twice or deeply nested, or say something else."""
    place = int(drawn.integers(len(said)))
    return (
        said[:place] + bytes([said[place] ^ (1 << change % 8)]) + said[place + 1 :],
        said[:1] + b"\xff\xff\xff\xff" + said[5:],
        said[:place],
        said + b"\0",
        page_protocol.encode([page_protocol.decode(said)[0]] * 2),
        b"l\0\0\0\1" * 5000,
        page_protocol.encode([0, 0, 1]),
        page_protocol.encode([[0, b"x" * 99]] * 3),
    )[change % 8]
