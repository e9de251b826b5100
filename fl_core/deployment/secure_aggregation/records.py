"""What a database keeps of an attempt at a secure sum: a row for the attempt, and one for each client in it.

The sum itself is in the memory of the process that adds it up. If that process ends, the attempt is over.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fedlm.fedlm_client.secure_aggregation import wire
from fedlm.fedlm_client.secure_aggregation.roster import Roster
from fedlm.fl_core.deployment.secure_aggregation.attempt import Phase, SecureAttempt


class AttemptRow(NamedTuple):
    """An attempt."""

    attempt: str  # that names it, in hex
    round_number: int
    phase: Phase
    announced: bool  # whether survivors were told: it counts as released
    reason: str  # why it was abandoned; empty where it was not
    terms: bytes  # its name, and its rules once they are frozen


class MemberRow(NamedTuple):
    """A client in an attempt; answers are None where they have not come."""

    attempt: str
    number: int  # its place among all that have advertised; in a frozen roster its index
    owner: str  # the name in its certificate
    advertisement: bytes
    dealing: bytes | None
    survives: bool
    revealed: bytes | None
    culprit: bool  # whether it gave wrong shares


def rows_of(state: SecureAttempt) -> tuple[AttemptRow, list[MemberRow]]:
    """Put an attempt into rows."""
    name = state.name
    terms = wire.write_terms(name, state.roster and state.roster.parameters)
    row = AttemptRow(name.attempt.hex(), name.round_number, state.phase, state.announced, state.reason, terms)
    members = [
        MemberRow(
            attempt=row.attempt,
            number=number,
            owner=owner,
            advertisement=wire.write_advertisement(one),
            dealing=wire.write_dealing(state.dealings[number]) if number in state.dealings else None,
            survives=number in state.survivors,
            revealed=wire.write_revealed(state.revealed[number]) if number in state.revealed else None,
            culprit=number in state.culprits,
        )
        for number, (owner, one) in enumerate(state.advertisements.items())
    ]
    return row, members


def attempt_of(row: AttemptRow, members: Sequence[MemberRow]) -> SecureAttempt:
    """Read an attempt from its rows, those of members in the order of their numbers."""
    name, parameters = wire.read_terms(row.terms)
    advertisements = {one.owner: wire.read_advertisement(one.advertisement) for one in members}
    return SecureAttempt(
        name=name,
        phase=row.phase,
        roster=None if parameters is None else Roster(name, parameters, tuple(advertisements.values())),
        advertisements=advertisements,
        dealings={one.number: wire.read_dealing(one.dealing) for one in members if one.dealing is not None},
        survivors=frozenset(one.number for one in members if one.survives),
        announced=row.announced,
        revealed={one.number: wire.read_revealed(one.revealed) for one in members if one.revealed is not None},
        culprits=frozenset(one.number for one in members if one.culprit),
        reason=row.reason,
    )
