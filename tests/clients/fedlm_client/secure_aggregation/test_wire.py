"""What members and server say to each other: canonical, and refused where a byte is wrong."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fedlm_client.secure_aggregation import wire
from fedlm.fedlm_client.secure_aggregation.canonical import decoded, digest, encoded
from fedlm.fedlm_client.secure_aggregation.keys import Advertisement, AttemptName
from fedlm.fedlm_client.secure_aggregation.member import Dealing, Dealt, Revealed
from fedlm.fedlm_client.secure_aggregation.roster import Parameters, Roster
from tests.support import secure_cohorts as cohorts

ADVERTISEMENT = Advertisement(b"certificate", b"s" * 32, b"m" * 32, b"", b"signature")
SCALARS = st.binary() | st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
VALUES = SCALARS | st.lists(SCALARS | st.lists(SCALARS, max_size=2).map(tuple), max_size=3).map(tuple)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 40)
ANY = {int: NUMBERS, float: st.floats() | st.sampled_from([1e200, 5e-324]), str: st.text(), bytes: st.binary()}
CHANGES = st.fixed_dictionaries({}, optional={name: ANY[kind] for name, kind in Parameters.__annotations__.items()})
MESSAGES = {
    "advertisement": ADVERTISEMENT,
    "roster": Roster(cohorts.NAME, cohorts.rules(3), (ADVERTISEMENT,) * 3),
    "dealing": Dealing({2: b"a" * 82, 0: b"b" * 82}, b"c" * 32),
    "dealt": Dealt(frozenset([2, 0]), {2: b"a" * 82}),
    "members": frozenset([5, 3]),
    "revealed": Revealed({1: b"a" * 33}, {0: b"b" * 33}),
}


@given(VALUES, VALUES)
def test_different_values_have_different_bytes_that_are_read_back(one, other):
    assert decoded(encoded(one)) == one
    assert (encoded(one) == encoded(other)) <= (one == other)


def test_bytes_that_move_from_one_field_to_the_next_change_the_digest():
    moved = AttemptName("run", 3, b"attemptm", b"m" * 31)
    assert digest("roster", cohorts.NAME) != digest("roster", moved)
    swapped = ADVERTISEMENT._replace(sealing_key=b"m" * 32, masking_key=b"s" * 32)
    rosters = [Roster(cohorts.NAME, cohorts.rules(3), (one,)) for one in (ADVERTISEMENT, swapped)]
    assert rosters[0].digest != rosters[1].digest


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_is_read_back_and_refused_with_a_byte_more_or_less(kind):
    write, read = getattr(wire, f"write_{kind}"), getattr(wire, f"read_{kind}")
    content = write(MESSAGES[kind])
    assert read(content) == MESSAGES[kind]
    for wrong in (content[:-1], content + b"\0", b"", encoded("text"), encoded(1)):
        with pytest.raises(UnsafeSumError, match="cannot be read"):
            read(wrong)


def test_indices_that_are_negative_twice_or_not_in_order_are_refused():
    for wrong in ((-1,), (1, 1), (2, 1), ("a",)):
        with pytest.raises(UnsafeSumError, match="ascending"):
            wire.read_members(encoded(wrong))


def test_both_shares_of_one_member_are_refused():
    with pytest.raises(UnsafeSumError, match="both secrets"):
        wire.read_revealed(wire.write_revealed(Revealed({1: b"a" * 33}, {1: b"b" * 33})))


@given(CHANGES, st.sampled_from((0.0, 1.0)))
@example({"length": -5}, 0.0)
@example({"length": 0, "clip_norm": 5e-324}, 0.0)
@example({"clip_norm": 1e200}, 0.0)
def test_whatever_the_rules_of_a_roster_a_client_deals_or_refuses(changes, noise_multiplier):
    members = [cohorts.member(one, floors=cohorts.Floors(3, 0.0, 0.0, noise_multiplier)) for one in range(4)]
    advertised = tuple(one.advertise() for one in members)
    roster = Roster(cohorts.NAME, cohorts.rules(4)._replace(**changes), advertised)
    try:
        members[0].deal(wire.read_roster(wire.write_roster(roster)))
    except UnsafeSumError:
        return
    assert roster.parameters.length > 0
