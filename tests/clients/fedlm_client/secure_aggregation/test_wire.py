"""What members and server say to each other: canonical, and refused where a byte is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fedlm_client.secure_aggregation import wire
from fedlm.fedlm_client.secure_aggregation.canonical import decoded, digest, encoded
from fedlm.fedlm_client.secure_aggregation.keys import Advertisement, AttemptName
from fedlm.fedlm_client.secure_aggregation.member import Dealing, Dealt, Revealed
from fedlm.fedlm_client.secure_aggregation.roster import Roster
from tests.support import secure_cohorts as cohorts

ADVERTISEMENT = Advertisement(b"certificate", b"s" * 32, b"m" * 32, b"", b"signature")
SCALARS = st.binary() | st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
VALUES = SCALARS | st.lists(SCALARS | st.lists(SCALARS, max_size=2).map(tuple), max_size=3).map(tuple)
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
