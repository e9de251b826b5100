"""The server's state in a database, through SQLAlchemy: SQLite in the run's folder, or any other by its URL."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from fl_core.serving.state import AttemptRecord, ClientRecord, ReleaseRecord, SeenClient, StateError, Totals

DATABASE_FILE = "state.db"
_BUSY_SECONDS = 30

_tables = sql.MetaData()
_runs = sql.Table("runs", _tables, sql.Column("run", sql.String(64), primary_key=True))
_clients = sql.Table(
    "clients",
    _tables,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("identity", sql.String(256), nullable=False, unique=True),
    sql.Column("version", sql.String(64), nullable=False),
    sql.Column("check_ins", sql.Integer, nullable=False),
    sql.Column("last_seen", sql.Float, nullable=False),
)
_attempts = sql.Table(
    "attempts",
    _tables,
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("token", sql.String(64), nullable=False, unique=True),
    sql.Column("round_number", sql.Integer, nullable=False, index=True),
    sql.Column("outcome", sql.String(16), nullable=False),
    sql.Column("reason", sql.String(256), nullable=False),
    sql.Column("started", sql.Float, nullable=False),
    sql.Column("seconds", sql.Float, nullable=False),
    *(sql.Column(name, sql.Integer, nullable=False) for name in ("selected", "reported", "refused", "declined")),
    *(sql.Column(name, sql.BigInteger, nullable=False) for name in ("bytes_down", "bytes_up")),
)
_participations = sql.Table(
    "participations",
    _tables,
    sql.Column("round_number", sql.Integer, primary_key=True),
    sql.Column("client", sql.ForeignKey("clients.number"), primary_key=True),
)
_releases = sql.Table(
    "releases",
    _tables,
    sql.Column("rounds", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("digest", sql.String(64), nullable=False),
    sql.Column("released", sql.Float, nullable=False),
)


class SqlState:
    """A `fl_core.serving.state.State` in a database."""

    def __init__(self, url: str):
        """Open the database, making its tables where they are absent.

        Args:
          url: as SQLAlchemy has it; see `sqlite_url`.

        Raises:
          StateError: it cannot be opened.
        """
        self._url = sql.make_url(url)
        options: dict[str, Any] = {}
        if self._url.get_backend_name() == "sqlite":
            options["connect_args"] = {"timeout": _BUSY_SECONDS, "check_same_thread": False}
        try:
            self._engine = sql.create_engine(self._url, **options)
            if self._url.get_backend_name() == "sqlite":
                sql.event.listen(self._engine, "connect", _set_up_sqlite)
            _tables.create_all(self._engine)
        except (sql.exc.SQLAlchemyError, ImportError) as error:
            raise StateError(
                f"{self._url.render_as_string()}: the state cannot be opened ({_first_line(error)}); is the database "
                "there, and may this process write it?"
            ) from error

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        """Begin a transaction that is committed at the end."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except sql.exc.SQLAlchemyError as error:
            raise StateError(
                f"{self._url.render_as_string()}: the state cannot be read or written ({_first_line(error)}); is the "
                "database there, and does its disk have room?"
            ) from error

    def claim(self, run: str) -> None:
        """See `State.claim`."""
        with self._connection() as connection:
            found = connection.scalars(sql.select(_runs.c.run)).all()
            if not found:
                connection.execute(sql.insert(_runs).values(run=run))
            elif found != [run]:
                raise StateError(
                    f"{self._url.render_as_string()}: holds the state of another run; give the database that belongs "
                    "to this run's folder, or a new one for a new run"
                )

    def clients(self) -> list[ClientRecord]:
        """See `State.clients`."""
        taken = (
            sql.select(
                _participations.c.client,
                sql.func.max(_participations.c.round_number).label("last"),
                sql.func.count().label("count"),
            )
            .group_by(_participations.c.client)
            .subquery()
        )
        query = (
            sql.select(_clients.c.number, _clients.c.identity, taken.c.last, sql.func.coalesce(taken.c.count, 0))
            .outerjoin(taken, _clients.c.number == taken.c.client)
            .order_by(_clients.c.number)
        )
        with self._connection() as connection:
            return [ClientRecord(*row) for row in connection.execute(query)]

    def record_check_ins(self, seen: Sequence[SeenClient]) -> None:
        """See `State.record_check_ins`."""
        if not seen:
            return
        update = (
            sql.update(_clients)
            .where(_clients.c.number == sql.bindparam("which"))
            .values(
                version=sql.bindparam("new_version"),
                check_ins=_clients.c.check_ins + sql.bindparam("more"),
                last_seen=sql.bindparam("seen"),
            )
        )
        with self._connection() as connection:
            known = _known(connection, [one.number for one in seen])
            new = [one._asdict() for one in seen if one.number not in known]
            old = [
                {"which": one.number, "new_version": one.version, "more": one.check_ins, "seen": one.last_seen}
                for one in seen
                if one.number in known
            ]
            if new:
                connection.execute(sql.insert(_clients), new)
            if old:
                connection.execute(update, old)

    def record_attempt(self, attempt: AttemptRecord, participants: Sequence[int]) -> None:
        """See `State.record_attempt`."""
        with self._connection() as connection:
            # The first try may have been committed although its connection broke.
            if connection.scalar(sql.select(_attempts.c.number).where(_attempts.c.token == attempt.token)) is not None:
                return
            connection.execute(sql.insert(_attempts).values(**attempt._asdict()))
            rows = [{"round_number": attempt.round_number, "client": client} for client in participants]
            if rows:
                connection.execute(sql.insert(_participations), rows)

    def finished_rounds(self) -> int:
        """See `State.finished_rounds`."""
        query = sql.select(sql.func.max(_attempts.c.round_number)).where(_attempts.c.outcome == "finished")
        with self._connection() as connection:
            last = connection.scalar(query)
        return 0 if last is None else last + 1

    def forget_rounds(self, first: int) -> None:
        """See `State.forget_rounds`."""
        again = (_attempts.c.round_number >= first) & (_attempts.c.outcome == "finished")
        undone = {"outcome": "abandoned", "reason": "the server stopped before anything of it was released"}
        with self._connection() as connection:
            connection.execute(sql.delete(_participations).where(_participations.c.round_number >= first))
            connection.execute(sql.update(_attempts).where(again).values(**undone))

    def record_release(self, release: ReleaseRecord) -> None:
        """See `State.record_release`."""
        with self._connection() as connection:
            there = connection.scalar(sql.select(_releases.c.rounds).where(_releases.c.rounds == release.rounds))
            if there is None:
                connection.execute(sql.insert(_releases).values(**release._asdict()))

    def attempts(self, last: int) -> list[AttemptRecord]:
        """See `State.attempts`."""
        columns = [_attempts.c[name] for name in AttemptRecord._fields]
        query = sql.select(*columns).order_by(_attempts.c.number.desc()).limit(last)
        with self._connection() as connection:
            return [AttemptRecord(*row) for row in connection.execute(query)][::-1]

    def totals(self) -> Totals:
        """See `State.totals`."""
        summed = [sql.func.coalesce(sql.func.sum(_attempts.c[name]), 0) for name in Totals._fields[2:]]
        outcomes = [
            sql.func.count().filter(_attempts.c.outcome == outcome).label(outcome) for outcome in Totals._fields[:2]
        ]
        with self._engine.connect() as connection:
            return Totals(*map(int, connection.execute(sql.select(*outcomes, *summed)).one()))

    def close(self) -> None:
        """See `State.close`."""
        self._engine.dispose()


def sqlite_url(path: Path) -> str:
    """Name an SQLite database.

    Args:
      path: of its file.

    Returns:
      The URL for `SqlState`.
    """
    return f"sqlite:///{path.absolute()}"


def _known(connection: Connection, indices: list[int]) -> set[int]:
    known: set[int] = set()
    for start in range(0, len(indices), _AT_ONCE):
        part = indices[start : start + _AT_ONCE]
        known |= set(connection.scalars(sql.select(_clients.c.number).where(_clients.c.number.in_(part))))
    return known


_AT_ONCE = 500


def _set_up_sqlite(connection: Any, record: Any) -> None:
    # With `synchronous` FULL a committed transaction survives a loss of power, not only of the process.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
