"""Attempts at secure sums in a deployment's database: how far they came, and who is in them.

No key, share or sum is there: if the process ends that has them, the attempt is over.
"""

import time
from typing import NamedTuple

import sqlalchemy as sql

from fedlm.fl_core.deployment.secure_aggregation.attempt import Phase, SecureAttempt, lost_sum
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import AttemptRecord
from fedlm.fl_core.deployment.state.state_sql import write_attempt
from fedlm.fl_core.deployment.state.tables import ATTEMPTS, CLIENTS, SECURE_ATTEMPTS, SECURE_MEMBERS

_OVER = ("finished", "abandoned")


class _Row(NamedTuple):
    attempt: str  # that names it, in hex
    round_number: int
    phase: Phase
    charged: bool  # whether its round counts as released
    reason: str  # why it was abandoned; empty where it was not


class SecureAttempts:
    """Durable: what `save` was given survives a crash when it returns. Every method raises `StateError`."""

    def __init__(self, database: Database):
        self._database = database

    def save(self, state: SecureAttempt) -> None:
        """Write an attempt in place of what was known of it; before anybody is told what follows from it."""
        attempt = state.name.attempt.hex()
        row = _Row(attempt, state.name.round_number, state.phase, state.charged, state.reason)
        members = [
            {"attempt": attempt, "number": number, "owner": owner, "dealt": number in state.dealings}
            for number, owner in enumerate(state.advertisements)
        ]
        with self._database.writing() as connection:
            for table in (SECURE_MEMBERS, SECURE_ATTEMPTS):
                connection.execute(sql.delete(table).where(table.c.attempt == row.attempt))
            connection.execute(sql.insert(SECURE_ATTEMPTS).values(**row._asdict()))
            if members:
                connection.execute(sql.insert(SECURE_MEMBERS), members)

    def abandon_open(self, reason: str) -> int:
        """Abandon all attempts that are not over, since the process that held their sums has ended.

        Returns:
          How many were abandoned that count as released.
        """
        still_open = SECURE_ATTEMPTS.c.phase.not_in(_OVER)
        charged = sql.select(sql.func.count()).where(still_open, SECURE_ATTEMPTS.c.charged)
        with self._database.writing() as connection:
            count = connection.scalar(charged) or 0
            connection.execute(sql.update(SECURE_ATTEMPTS).where(still_open).values(phase="abandoned", reason=reason))
        return count

    def settle(self) -> None:
        """Give up what was open when a server ended.

        Attempts that count as released become records of rounds that all took part in who may have sent a vector.
        """
        self.abandon_open("the server ended")
        recorded, known = sql.select(ATTEMPTS.c.token), SECURE_MEMBERS.c.owner == CLIENTS.c.identity
        lost = sql.select(SECURE_ATTEMPTS).where(SECURE_ATTEMPTS.c.charged, SECURE_ATTEMPTS.c.attempt.not_in(recorded))
        members = sql.select(CLIENTS.c.number).select_from(SECURE_MEMBERS).join(CLIENTS, known)
        with self._database.writing() as connection:
            for row in [_Row(*one) for one in connection.execute(lost)]:
                dealt = (SECURE_MEMBERS.c.attempt == row.attempt, SECURE_MEMBERS.c.dealt)
                numbers = list(connection.scalars(members.where(*dealt)))
                write_attempt(connection, _record(row, len(numbers)), numbers, ())


def _record(row: _Row, members: int) -> AttemptRecord:
    return AttemptRecord(
        token=row.attempt,
        round_number=row.round_number,
        outcome="finished",
        reason=lost_sum(row.reason or "the server ended"),
        started=time.time(),
        seconds=0.0,
        selected=members,
        reported=members,
        refused=0,
        declined=0,
        bytes_down=0,
        bytes_up=0,
    )
