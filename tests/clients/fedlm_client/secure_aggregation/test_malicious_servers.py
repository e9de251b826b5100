"""A server that lies, and one that forgets: honest clients refuse, or what it gets stays masked."""

import datetime

import numpy as np
import pytest

from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fedlm_client.secure_aggregation import device, wire
from fedlm.fedlm_client.secure_aggregation.floors import Floors
from fedlm.fedlm_client.secure_aggregation.keys import LOW_ORDER, shared_key
from fedlm.fedlm_client.secure_aggregation.member import Dealt
from fedlm.fedlm_client.secure_aggregation.roster import Roster
from fedlm.fl_core.deployment.secure_aggregation.errors import RefusedAnswerError
from tests.support import secure_cohorts as cohorts

COUNT, NOW = 5, datetime.datetime.now(datetime.UTC)
OTHER_NAMES = {
    "run": "another",
    "round_number": 4,
    "attempt": b"the one before",
    "request_digest": b"another model".ljust(32),
}
LOWERED = {
    "neighbours": ({"neighbours": 3}, "3 neighbours of 5"),
    "threshold": ({"threshold": 1}, "1 shares that give a secret back"),
    "threshold above": ({"threshold": 5}, "5 shares that give a secret back"),
    "cohort": ({"least_cohort": 2}, "a sum of 2 of 5"),
    "cohort above": ({"least_cohort": 6}, "a sum of 6 of 5"),
    "modulus": ({"bits": 7, "largest": 1}, r"modulus of 2\^7"),
    "wrapping": ({"bits": 12}, "do not wrap"),
    "noise": ({"variance": 5.0}, "noise multiplier of 0.9946"),
    "a coarser scale, which clip norms hide": ({"scale": 1e-6, "variance": 4.0}, "noise multiplier of 0.9548"),
    "clip norm": ({"clip_norm": float("nan")}, "finite, positive"),
}


@pytest.fixture
def cohort():
    return cohorts.Cohort(COUNT)


def mine(roster, victim=0):
    """A member that has not been asked anything yet, in a roster with its keys."""
    one = cohorts.member(victim)
    members = list(roster.members)
    members[victim] = one.advertise()
    return one, Roster(roster.name, roster.parameters, tuple(members))


def refused(answer, words):
    with pytest.raises(UnsafeSumError, match=words):
        answer()


def test_keys_that_were_swapped_or_changed_in_a_byte_are_refused(cohort):
    attacker = cohorts.member(1).advertise()
    for field, content in cohort.roster.members[1]._asdict().items():
        content = content or bytes(32)
        for changed in (content[:-1] + bytes([content[-1] ^ 1]), bytes([content[0] ^ 1]) + content[1:]):
            one, roster = mine(cohort.roster)
            wrong = roster.members[1]._replace(**{field: changed})
            members = (roster.members[0], wrong, *roster.members[2:])
            with pytest.raises(UnsafeSumError):
                one.deal(roster._replace(members=members))
    one, roster = mine(cohort.roster)
    swapped = roster.members[1]._replace(masking_key=attacker.masking_key)
    members = (roster.members[0], swapped, *roster.members[2:])
    refused(lambda: one.deal(roster._replace(members=members)), "client1 has not signed these keys")


def test_certificates_of_another_authority_of_a_server_and_one_client_as_several_are_refused(cohort):
    for stranger, words in (
        (cohorts.identity("client9", "theirs"), "not of an authority"),
        (cohorts.server_identity("aggregator"), "aggregator is none of a client"),
        (cohorts.identity("client1"), "a name or a key twice"),
    ):
        one, roster = mine(cohort.roster)
        sybil = stranger.advertise(cohorts.NAME, b"1" * 32, b"2" * 32)
        refused(lambda one=one, r=roster, s=sybil: one.deal(r._replace(members=(*r.members[:4], s))), words)
    one, roster = mine(cohort.roster)
    copied = cohorts.identity("client4").advertise(cohorts.NAME, b"1" * 32, roster.members[1].masking_key)
    refused(lambda: one.deal(roster._replace(members=(*roster.members[:4], copied))), "a name or a key twice")


def test_an_exact_sum_of_members_that_train_by_other_plans_is_refused_and_a_noised_one_is_not(cohort):
    for plan, noise in ((bytes(32), {}), (bytes(31), {"noise": "skellam"}), (bytes(32), {"noise": "skellam"})):
        one, roster = mine(cohort.roster)
        other = cohorts.member(1, plan=plan).advertise()
        roster = Roster(cohorts.NAME, cohorts.rules(COUNT, **noise), (roster.members[0], other, *roster.members[2:]))
        if len(plan) == 32 and noise:
            one.deal(roster)
        else:
            refused(
                lambda one=one, roster=roster: one.deal(roster), "train by other plans" if not noise else "31 bytes"
            )
    one, members = mine(cohort.roster)[0], list(cohort.roster.members)
    members[0], members[1] = one.advertise(), members[1]._replace(plan=bytes(32))
    noised = Roster(cohorts.NAME, cohorts.rules(COUNT, noise="skellam"), tuple(members))
    refused(lambda: one.deal(noised), "client1 has not signed")


def test_a_short_roster_and_one_without_the_client_are_refused(cohort):
    one, roster = mine(cohort.roster)
    refused(lambda: one.deal(roster._replace(members=roster.members[:2])), "a sum of 3 of 2 members")
    one, roster = mine(cohort.roster)
    refused(lambda: one.deal(roster._replace(members=roster.members[1:])), "own keys once")
    one, roster = mine(cohort.roster)
    refused(lambda: one.deal(roster._replace(members=(*roster.members, roster.members[0]))), "own keys once")


@pytest.mark.parametrize("what", LOWERED)
def test_rules_below_the_client_s_own_are_refused(what):
    changes, words = LOWERED[what]
    floors = Floors(least_cohort=3, corrupt_share=0.0, dropped_share=0.0, noise_multiplier=1.0)
    # The longest vector has a squared norm of 15.16 at scale 1.
    one, good = cohorts.member(0, floors=floors), cohorts.rules(COUNT, variance=6.0)
    others = [cohorts.member(index).advertise() for index in range(1, COUNT)]
    roster = Roster(cohorts.NAME, good._replace(**changes), (one.advertise(), *others))
    refused(lambda: one.deal(roster), words)
    floors.check(roster._replace(parameters=good), [cohorts.authority("ours")[0]], datetime.datetime.now(datetime.UTC))


def test_all_corrupt_members_of_a_roster_may_be_among_those_whose_noise_counts(cohort):
    floors = Floors(least_cohort=3, corrupt_share=0.2, dropped_share=0.0, noise_multiplier=1.0)
    # Of three members in the sum one of the five is corrupt: sqrt(2 * 7 / 15.16) is below 1, and with 8 it is above.
    for variance, found in ((7.0, "noise multiplier of 0.9609"), (8.0, "")):
        one, rules = cohorts.member(0, floors=floors), cohorts.rules(COUNT, graph=(4, 3), variance=variance)
        roster = Roster(cohorts.NAME, rules, (one.advertise(), *cohort.roster.members[1:]))
        if found:
            refused(lambda one=one, roster=roster: one.deal(roster), found)
        else:
            one.deal(roster)


def test_sums_may_reach_the_modulus_less_one_and_no_more(cohort):
    for largest, fits in ((25, True), (26, False)):
        one = cohorts.member(0, floors=cohorts.FLOORS)
        roster = Roster(
            cohorts.NAME, cohorts.rules(COUNT, bits=8, largest=largest), (one.advertise(), *cohort.roster.members[1:])
        )
        if fits:
            one.deal(roster)
        else:
            refused(lambda one=one, roster=roster: one.deal(roster), "do not wrap")


@pytest.mark.parametrize("field", OTHER_NAMES)
def test_a_roster_or_keys_of_another_run_round_attempt_or_model_are_refused(field, cohort):
    other = cohorts.NAME._replace(**{field: OTHER_NAMES[field]})
    one, roster = mine(cohort.roster)
    refused(lambda: one.deal(roster._replace(name=other)), "of another run, round, attempt or model")
    # A cohort with one member that has another model, or whose keys are replayed.
    one, roster = mine(cohort.roster)
    replayed = cohorts.member(1, name=other).advertise()
    refused(lambda: one.deal(roster._replace(members=(roster.members[0], replayed, *roster.members[2:]))), "not signed")


def test_two_rosters_at_once_show_no_client(cohort):
    """Each half sees a roster of its own: shares of the other half cannot be opened, and nobody goes on."""
    rosters = [
        cohort.roster,
        cohort.roster._replace(members=(*cohort.roster.members[:4], cohorts.member(4).advertise())),
    ]
    dealings = {index: cohort.members[index].deal(rosters[index // 2]) for index in range(4)}
    dealt = Dealt(frozenset(range(4)), {one: dealings[one].sealed[0] for one in range(1, 4)})
    refused(lambda: cohort.members[0].mask(dealt, cohort.integers[0]), "of another roster")


def test_a_client_deals_for_one_roster_masks_once_and_reveals_once(cohort):
    cohort.deal().mask()
    one = cohort.members[0]
    dealt = cohort.attempt.dealt_for(0)
    assert one.deal(cohort.roster) is one.deal(cohort.roster)
    assert one.mask(dealt, cohort.integers[1]) == cohort.uploads[0]
    assert one.agree(cohort.attempt.survivors) == one.agree(cohort.attempt.survivors)
    signatures = cohort.agree().signatures(0)
    assert one.reveal(signatures) is one.reveal(signatures)
    refused(lambda: one.agree(cohort.attempt.survivors - {4}), "asked to agree before, with something else")
    refused(lambda: one.reveal(signatures), "has ended its part")
    smaller = dealt._replace(members=dealt.members - {4}, sealed={1: b"", 2: b"", 3: b""})
    refused(lambda: cohort.members[1].mask(smaller, cohort.integers[1]), "asked to mask before")
    other = cohort.roster._replace(parameters=cohort.parameters._replace(length=41))
    refused(lambda: cohort.members[2].deal(other), "asked to deal before")


def test_no_client_says_both_secrets_of_another_or_its_own(cohort):
    cohort.deal().mask([4]).agree()
    for index in range(4):
        revealed = cohort.members[index].reveal(cohort.signatures(index))
        assert revealed.own_masks.keys() == set(range(4)) - {index}
        assert revealed.masking_keys.keys() == {4}


def test_shares_are_not_given_before_the_vector_nor_for_a_sum_of_few_strangers_or_without_the_client(cohort):
    cohort.deal()
    refused(lambda: cohort.members[4].agree(frozenset(range(5))), "before it has this client's vector")
    cohort.mask([4])
    refused(lambda: cohort.members[0].agree(frozenset([1, 2, 3])), "has not counted this client")
    refused(lambda: cohort.members[1].agree(frozenset([0, 1, 2, 9])), "have dealt no shares")
    refused(lambda: cohort.members[2].agree(frozenset([1, 2])), "2 members are left, but 3 must be")
    refused(lambda: cohort.members[3].agree(frozenset([1, 2, 3])), "2 neighbours are left, but 3 must be")
    again = cohorts.Cohort(COUNT).deal().mask()
    refused(lambda: again.members[0].reveal({}), "before it has named survivors")


def test_shares_are_not_given_unless_as_many_neighbours_as_the_threshold_were_told_the_same(cohort):
    cohort.deal().mask().agree()
    words = "2 neighbours were told of the same members, but 3 must be"
    told = [cohort.signatures(index) for index in range(4)]
    refused(lambda: cohort.members[0].reveal({1: told[0][1], 2: told[0][2]}), words)
    refused(lambda: cohort.members[1].reveal({**told[1], 3: told[1][4], 4: b""}), words)
    elsewhere = cohorts.Cohort(COUNT).deal().mask().agree().signatures(2)
    refused(lambda: cohort.members[2].reveal({**told[2], 0: elsewhere[0], 1: elsewhere[1]}), words)
    assert cohort.members[3].reveal({**told[3], 4: told[3][1]}).own_masks.keys() == {0, 1, 2, 4}


def test_who_was_told_of_others_that_have_dealt_does_not_agree(cohort):
    cohort.deal()
    dealt = cohort.attempt.dealt_for(0)
    sealed = {one: content for one, content in dealt.sealed.items() if one < 4}
    cohort.members[0].mask(Dealt(frozenset(range(4)), sealed), cohort.integers[0])
    for one in (1, 2, 3):
        cohort.members[one].mask(cohort.attempt.dealt_for(one), cohort.integers[one])
    signatures = {one: cohort.members[one].agree(frozenset(range(4))) for one in range(4)}
    refused(lambda: cohort.members[1].reveal(signatures), "2 neighbours were told of the same members, but 3 must be")


def test_every_changed_byte_of_sealed_shares_is_refused(cohort):
    cohort.deal()
    dealt = cohort.attempt.dealt_for(0)
    one, content = cohort.members[0], dealt.sealed[3]
    for place in range(len(content)):
        wrong = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        with pytest.raises(UnsafeSumError, match="changed on their way"):
            one._open(3, wrong)
    refused(
        lambda: one.mask(dealt._replace(sealed={**dealt.sealed, 3: dealt.sealed[2]}), cohort.integers[0]), "changed"
    )


@pytest.mark.long
def test_a_roster_with_any_byte_changed_is_refused_or_is_another_roster(cohort):
    content = wire.write_roster(cohort.roster)
    for place in range(len(content)):
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        try:
            roster = wire.read_roster(changed)
            cohorts.Floors.check(cohorts.FLOORS, roster, [cohorts.authority("ours")[0]], NOW)
        except UnsafeSumError:
            continue
        assert roster.digest != cohort.roster.digest


def test_members_who_have_dealt_are_those_whose_shares_are_there(cohort):
    cohort.deal()
    for index, members in enumerate(([1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5])):
        dealt = cohort.attempt.dealt_for(index)._replace(members=frozenset(members))
        refused(lambda i=index, d=dealt: cohort.members[i].mask(d, cohort.integers[i]), "what cannot be")


def test_what_is_no_vector_of_bounded_integers_is_not_masked(cohort):
    cohort.deal()
    dealt, good = cohort.attempt.dealt_for(0), cohort.integers[0]
    for wrong in (good + 0.5, good * np.nan, good[1:], np.full(40, 501), np.full(40, -501)):
        with pytest.raises(ValueError, match="are agreed"):
            cohort.members[0].mask(dealt, wrong)
    assert cohort.members[0].mask(dealt, np.full(40, -500))


def test_a_client_that_starts_again_has_other_keys_which_count_until_the_roster_is_made(cohort):
    again, authorities = cohorts.member(0).advertise(), [cohorts.authority("ours")[0]]
    assert not {*again[1:3], again.signature} & set(cohort.roster.members[0])
    with pytest.raises(RefusedAnswerError):
        cohort.attempt.advertise("client0", again, authorities)
    cohort.attempt.phase = "advertising"
    cohort.attempt.advertise("client0", again, authorities)
    assert cohort.attempt.advertisements["client0"] == again
    with pytest.raises(RefusedAnswerError, match="of another client"):
        cohort.attempt.advertise("client1", again, authorities)


def test_a_key_with_which_everybody_knows_the_outcome_is_refused(cohort):
    for number in LOW_ORDER:
        low, (one, roster) = number.to_bytes(32, "little"), mine(cohort.roster)
        refused(lambda low=low: shared_key(cohort.members[0]._masking, low, b""), "gives no secret")
        weak = cohorts.identity("client4").advertise(cohorts.NAME, low, roster.members[4].masking_key)
        asked = roster._replace(members=(*roster.members[:4], weak))
        refused(lambda one=one, asked=asked: one.deal(asked), "cannot be read .a public key gives no secret")


def test_two_attempts_of_the_same_clients_have_nothing_in_common():
    uploads = []
    for attempt in (b"one", b"two"):
        cohort = cohorts.Cohort(COUNT, name=cohorts.NAME._replace(attempt=attempt)).deal().mask()
        uploads.append(cohort.unpacked(cohort.uploads[0]).astype(int))
    difference = (uploads[0] - uploads[1]) % (1 << 20)
    assert np.count_nonzero(difference) > 30


def test_a_roster_with_another_kind_of_noise_than_the_round_is_refused():
    told = device._RoundRules(1.0, 1.0, 0, "skellam", 4.0, b"", 20)
    rules = cohorts.rules(COUNT, largest=0, noise="skellam", variance=4.0)
    told.check(rules)
    refused(lambda: told.check(rules._replace(noise="discrete_gaussian")), "another clip norm, grid or noise")
