"""Attempts at secure sums in a deployment's database."""

import time

import sqlalchemy as sql

from fedlm.fl_core.deployment.secure_aggregation.attempt import SecureAttempt
from fedlm.fl_core.deployment.secure_aggregation.records import AttemptRow, MemberRow, attempt_of, rows_of
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import AttemptRecord
from fedlm.fl_core.deployment.state.state_sql import write_attempt
from fedlm.fl_core.deployment.state.tables import ATTEMPTS, CLIENTS, SECURE_ATTEMPTS, SECURE_MEMBERS

_OVER = ("finished", "abandoned")


class SecureAttempts:
    """Durable: what `save` was given survives a crash when it returns. Every method raises `StateError`."""

    def __init__(self, database: Database):
        self._database = database

    def save(self, state: SecureAttempt) -> None:
        """Write an attempt in place of what was known of it; before anybody is told what follows from it."""
        row, members = rows_of(state)
        with self._database.writing() as connection:
            for table in (SECURE_MEMBERS, SECURE_ATTEMPTS):
                connection.execute(sql.delete(table).where(table.c.attempt == row.attempt))
            connection.execute(sql.insert(SECURE_ATTEMPTS).values(**row._asdict()))
            if members:
                connection.execute(sql.insert(SECURE_MEMBERS), [one._asdict() for one in members])

    def read(self, attempt: bytes) -> SecureAttempt | None:
        """Read an attempt by what names it; None where it is not known."""
        of_attempt = [table.c.attempt == attempt.hex() for table in (SECURE_ATTEMPTS, SECURE_MEMBERS)]
        with self._database.reading() as connection:
            row = connection.execute(sql.select(SECURE_ATTEMPTS).where(of_attempt[0])).one_or_none()
            members = sql.select(SECURE_MEMBERS).where(of_attempt[1]).order_by(SECURE_MEMBERS.c.number)
            rows = [MemberRow(*one) for one in connection.execute(members)]
        return None if row is None else attempt_of(AttemptRow(*row), rows)

    def abandon_open(self, reason: str) -> int:
        """Abandon all attempts that are not over, since the process that held their sums has ended.

        Returns:
          How many were abandoned that count as released, since their survivors had been told.
        """
        still_open = SECURE_ATTEMPTS.c.phase.not_in(_OVER)
        announced = sql.select(sql.func.count()).where(still_open, SECURE_ATTEMPTS.c.announced)
        with self._database.writing() as connection:
            count = connection.scalar(announced) or 0
            connection.execute(sql.update(SECURE_ATTEMPTS).where(still_open).values(phase="abandoned", reason=reason))
        return count

    def settle(self) -> None:
        """Give up what was open when a server ended.

        Attempts whose survivors were told become records of rounds that these took part in.
        """
        self.abandon_open("the server ended")
        recorded, known = sql.select(ATTEMPTS.c.token), SECURE_MEMBERS.c.owner == CLIENTS.c.identity
        lost = sql.select(SECURE_ATTEMPTS).where(
            SECURE_ATTEMPTS.c.announced, SECURE_ATTEMPTS.c.attempt.not_in(recorded)
        )
        members = sql.select(CLIENTS.c.number).select_from(SECURE_MEMBERS).join(CLIENTS, known)
        with self._database.writing() as connection:
            for row in [AttemptRow(*one) for one in connection.execute(lost)]:
                survive = (SECURE_MEMBERS.c.attempt == row.attempt, SECURE_MEMBERS.c.survives)
                numbers = list(connection.scalars(members.where(*survive)))
                write_attempt(connection, _record(row, len(numbers)), numbers, ())

    def announced(self, round_number: int) -> int:
        """Count the attempts at a round of which whoever runs the server may have the sum."""
        of_round = (SECURE_ATTEMPTS.c.round_number == round_number, SECURE_ATTEMPTS.c.announced)
        with self._database.reading() as connection:
            return connection.scalar(sql.select(sql.func.count()).select_from(SECURE_ATTEMPTS).where(*of_round)) or 0


def _record(row: AttemptRow, survivors: int) -> AttemptRecord:
    return AttemptRecord(
        token=row.attempt,
        round_number=row.round_number,
        outcome="finished",
        reason=f"its sum may have been seen, and is lost: {row.reason or 'the server ended'}"[:256],
        started=time.time(),
        seconds=0.0,
        selected=survivors,
        reported=survivors,
        refused=0,
        declined=0,
        bytes_down=0,
        bytes_up=0,
    )
