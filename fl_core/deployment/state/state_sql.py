"""The server's state in a database: SQLite in the run's folder, or PostgreSQL by its URL."""

from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.database_errors import first_line
from fedlm.fl_core.deployment.state.state import (
    LATE_ROUNDS,
    SILENT_ONCE,
    AttemptRecord,
    ClientRecord,
    OtherStateError,
    ReleaseRecord,
    SeenClient,
    StateError,
    Totals,
)
from fedlm.fl_core.deployment.state.tables import ATTEMPTS, CLIENTS, PARTICIPATIONS, RELEASES, RUNS
from fedlm.fl_core.privacy.participation.realised import RealisedParticipation

DATABASE_FILE = "state.db"
_DAMAGED = ("SQLITE_NOTADB", "SQLITE_CORRUPT")
_AT_ONCE = 500


class SqlState:
    """Durable: when a method that records returns, what it recorded survives a crash.

    Safe to call from any thread. Every method raises `StateError` where the database is busy or gone.
    """

    def __init__(self, database: Database | str):
        self._database = Database(database) if isinstance(database, str) else database

    @property
    def database(self) -> Database:
        """What it lies in."""
        return self._database

    @property
    def reachable(self) -> bool:
        """Whether the database could be reached when something was last asked of it."""
        return self._database.reachable

    def claim(self, run: str) -> None:
        """Make sure that this state is a run's, or make it so where it is new; raises `OtherStateError`
        where it is not."""
        with self._database.writing() as connection:
            found = connection.scalars(sql.select(RUNS.c.run)).all()
            if not found:
                connection.execute(sql.insert(RUNS).values(run=run))
            elif found != [run]:
                raise OtherStateError(
                    f"{self._database.name}: holds the state of another run; give the database that belongs "
                    "to this run's folder, or a new one for a new run"
                )

    def run(self) -> str:
        """Give the name of the run that this state is of; empty before it is claimed."""
        with self._database.reading() as connection:
            return connection.scalar(sql.select(RUNS.c.run)) or ""

    def enter(self, known: Sequence[str], name: str) -> bool:
        """Enter a process that goes on with the claimed run; see `fedlm.fl_core.runs.lineage.CommonPlace.enter`."""
        with self._database.writing() as connection:
            if connection.scalar(sql.select(RUNS.c.process)) not in (None, name, *known):
                return False
            connection.execute(sql.update(RUNS).values(process=name))
            return True

    def entered(self, name: str) -> bool:
        """Say whether that process is the last that was entered."""
        with self._database.reading() as connection:
            return connection.scalar(sql.select(RUNS.c.process)) == name

    def clients(self) -> list[ClientRecord]:
        """List all clients that have ever checked in."""
        taken = (
            sql.select(
                PARTICIPATIONS.c.client,
                sql.func.max(PARTICIPATIONS.c.round_number).label("last"),
                sql.func.count().label("count"),
            )
            .group_by(PARTICIPATIONS.c.client)
            .subquery()
        )
        query = (
            sql.select(
                CLIENTS.c.number,
                CLIENTS.c.identity,
                taken.c.last,
                sql.func.coalesce(taken.c.count, 0),
                CLIENTS.c.late_until,
            )
            .outerjoin(taken, CLIENTS.c.number == taken.c.client)
            .order_by(CLIENTS.c.number)
        )
        with self._database.reading() as connection:
            return [ClientRecord(*row) for row in connection.execute(query)]

    def realised_participation(self) -> RealisedParticipation:
        """Say how often, and how close together, clients took part."""
        client, number = PARTICIPATIONS.c.client, PARTICIPATIONS.c.round_number
        before = sql.func.lag(number).over(partition_by=client, order_by=number)
        gaps = sql.select((number - before).label("gap")).subquery()
        counts = sql.select(sql.func.count(client).label("count")).group_by(client).subquery()
        summed = sql.select(sql.func.count(), sql.func.coalesce(sql.func.max(counts.c.count), 0)).select_from(counts)
        with self._database.reading() as connection:
            clients, most = connection.execute(summed).one()
            return RealisedParticipation(clients, most, connection.scalar(sql.select(sql.func.min(gaps.c.gap))))

    def clients_since(self, moment: float) -> int:
        """Count the clients that have checked in since a moment in seconds since 1970; 0 counts all."""
        query = sql.select(sql.func.count()).select_from(CLIENTS).where(CLIENTS.c.last_seen >= moment)
        with self._database.reading() as connection:
            return connection.scalar(query) or 0

    def record_check_ins(self, seen: Sequence[SeenClient]) -> None:
        """Record check-ins, all or none of them, one entry a client; new clients are added."""
        if not seen:
            return
        update = (
            sql.update(CLIENTS)
            .where(CLIENTS.c.number == sql.bindparam("which"))
            .values(
                version=sql.bindparam("new_version"),
                check_ins=CLIENTS.c.check_ins + sql.bindparam("more"),
                last_seen=sql.bindparam("seen"),
                # Another process may have asked it to stay away for longer.
                rests_until=sql.case(
                    (CLIENTS.c.rests_until > sql.bindparam("rests"), CLIENTS.c.rests_until),
                    else_=sql.bindparam("rests"),
                ),
            )
        )
        with self._database.writing() as connection:
            known = _known(connection, [one.number for one in seen])
            clock = connection.scalar(sql.select(RUNS.c.clock)) or 0.0
            new = [{"number": one.number, "identity": one.identity} for one in seen if one.number not in known]
            rows = [
                {
                    "which": one.number,
                    "new_version": one.version,
                    "more": one.check_ins,
                    "seen": one.last_seen,
                    "rests": clock + one.rest,
                }
                for one in seen
            ]
            if new:
                connection.execute(sql.insert(CLIENTS).values(version="", check_ins=0, last_seen=0.0), new)
            connection.execute(update, rows)

    def record_attempt(self, attempt: AttemptRecord, participants: Sequence[int], silent: Sequence[int] = ()) -> None:
        """Record, once, an attempt that is over and, in one transaction, whose updates count and who was silent."""
        with self._database.writing() as connection:
            write_attempt(connection, attempt, participants, silent)

    def finished_rounds(self) -> int:
        """Say how many rounds are finished: one more than the last one's number."""
        query = sql.select(sql.func.max(ATTEMPTS.c.round_number)).where(ATTEMPTS.c.outcome == "finished")
        with self._database.reading() as connection:
            last = connection.scalar(query)
        return 0 if last is None else last + 1

    def forget_rounds(self, first: int) -> None:
        """Forget that rounds were finished, and who took part: nothing of them was released, and they run again."""
        again = (ATTEMPTS.c.round_number >= first) & (ATTEMPTS.c.outcome == "finished")
        undone = {"outcome": "abandoned", "reason": "the server stopped before anything of it was released"}
        with self._database.writing() as connection:
            connection.execute(sql.delete(PARTICIPATIONS).where(PARTICIPATIONS.c.round_number >= first))
            connection.execute(sql.update(ATTEMPTS).where(again).values(**undone))

    def record_release(self, release: ReleaseRecord) -> None:
        """Record a release, unless it is recorded already."""
        with self._database.writing() as connection:
            there = connection.scalar(sql.select(RELEASES.c.rounds).where(RELEASES.c.rounds == release.rounds))
            if there is None:
                connection.execute(sql.insert(RELEASES).values(**release._asdict()))

    def last_release(self) -> int:
        """Say how many rounds the newest release has seen that is recorded; 0 where there is none."""
        with self._database.reading() as connection:
            return connection.scalar(sql.select(sql.func.max(RELEASES.c.rounds))) or 0

    def attempts(self, last: int) -> list[AttemptRecord]:
        """List the latest attempts, so many at most, the oldest of them first."""
        columns = [ATTEMPTS.c[name] for name in AttemptRecord._fields]
        query = sql.select(*columns).order_by(ATTEMPTS.c.number.desc()).limit(last)
        with self._database.reading() as connection:
            return [AttemptRecord(*row) for row in connection.execute(query)][::-1]

    def totals(self) -> Totals:
        """Sum all attempts up."""
        summed = [sql.func.coalesce(sql.func.sum(ATTEMPTS.c[name]), 0) for name in Totals._fields[2:]]
        outcomes = [
            sql.func.count().filter(ATTEMPTS.c.outcome == outcome).label(outcome) for outcome in Totals._fields[:2]
        ]
        with self._database.reading() as connection:
            return Totals(*map(int, connection.execute(sql.select(*outcomes, *summed)).one()))

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()


def write_attempt(
    connection: Connection, attempt: AttemptRecord, participants: Sequence[int], silent: Sequence[int]
) -> None:
    """Write an attempt, who took part and who was silent, within a transaction; see `SqlState.record_attempt`."""
    # The first try may have been committed although its connection broke.
    if connection.scalar(sql.select(ATTEMPTS.c.number).where(ATTEMPTS.c.token == attempt.token)) is not None:
        return
    connection.execute(sql.insert(ATTEMPTS).values(**attempt._asdict()))
    rows = [{"round_number": attempt.round_number, "client": client} for client in participants]
    if rows:
        connection.execute(sql.insert(PARTICIPATIONS), rows)
    known = sql.update(CLIENTS).where(CLIENTS.c.number == sql.bindparam("which"))
    again = sql.case((CLIENTS.c.late_until == 0, SILENT_ONCE), else_=attempt.round_number + 1 + LATE_ROUNDS)
    for clients, late_until in ((silent, again), (participants, 0)):
        if clients:
            connection.execute(known.values(late_until=late_until), [{"which": client} for client in clients])


def sqlite_url(path: Path) -> str:
    """Make the URL of an SQLite database."""
    return f"sqlite:///{path.absolute()}"


def _known(connection: Connection, indices: list[int]) -> set[int]:
    known: set[int] = set()
    for start in range(0, len(indices), _AT_ONCE):
        part = indices[start : start + _AT_ONCE]
        known |= set(connection.scalars(sql.select(CLIENTS.c.number).where(CLIENTS.c.number.in_(part))))
    return known


def state_in(folder: Path) -> SqlState:
    """Open the state in a run's folder. Raises OtherStateError where its file is damaged, or of a newer version of
    fedlm, and StateError where it cannot be opened for what would hinder other runs too."""
    try:
        return SqlState(Database(sqlite_url(folder / DATABASE_FILE)))
    except StateError as error:
        cause = error.__cause__
        found = getattr(getattr(cause, "orig", cause), "sqlite_errorname", "")
        if cause is not None and not found.startswith(_DAMAGED):
            raise
        why = str(error) if cause is None else f"{folder / DATABASE_FILE}: is damaged ({first_line(cause)})"
        raise OtherStateError(f"{why}; put back what belongs to this run, then resume what failed") from error
