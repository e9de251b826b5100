"""Opens the server's database, SQLite or PostgreSQL, and brings its tables up to date.

A transaction that was committed survives a crash of the machine. One that writes holds the database's lock from its
beginning, so that what it read is still so when it writes, whichever processes share the database.
"""

import asyncio
import contextlib
import math
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from fedlm.fl_core.deployment.event_log import event, warn
from fedlm.fl_core.deployment.state.database_errors import first_line, is_away, is_refusal, not_leading
from fedlm.fl_core.deployment.state.retrying import SECONDS_BETWEEN_TRIES, with_retries, with_retries_async
from fedlm.fl_core.deployment.state.state import StateError, UnreachableError
from fedlm.fl_core.deployment.state.tables import LEADERS

_BUSY_SECONDS = 30
_POSTGRESQL_SETTINGS = f"-c synchronous_commit=on -c lock_timeout={_BUSY_SECONDS}s"
# Any number that nobody else uses: whoever holds it is the one that writes.
_LOCK = 0x6665646C6D
_EXPECTED = "give sqlite:///FILE, or postgresql://USER:PASSWORD@HOST/DATABASE"
_SECONDS_BETWEEN_LINES = 60.0
_now = time.monotonic
_MIGRATIONS = Path(__file__).with_name("migrations")
# What alembic upgrades now is global in a process.
_upgrading = threading.Lock()


class Database:
    """Transactions in one database; safe to use from any thread.

    Attributes:
      leader: the name under which this process leads, so that it writes only while it does; None for one that need not
        lead. See `fedlm.fl_core.deployment.leading`.
    """

    leader: str | None = None

    def __init__(self, url: str, open_now: bool = True):
        """Name `sqlite:///FILE`, or `postgresql://USER:PASSWORD@HOST/DATABASE`, and `open` it unless it is to be later.

        Raises:
          StateError: it is no such URL, or cannot be opened.
        """
        self._url = _parse(url)
        self._fenced, self._lost = threading.local(), False
        self._away: float | None = None
        self._told = 0.0
        if self._is_sqlite and self._url.database:
            _keep_from_others(Path(self._url.database))
        with self._errors(self._cannot_be_opened):
            self._engine = sql.create_engine(self._url, **self._options())
        if self._is_sqlite:
            sql.event.listen(self._engine, "connect", _set_up_sqlite)
            sql.event.listen(self._engine, "begin", _begin_sqlite)
        if open_now:
            self.open()

    def open(self) -> None:
        """Bring the tables up to date; not where another process leads, or led when it was killed: who leads next does.

        Raises:
          UnreachableError: it cannot be reached now.
          StateError: it cannot be opened, or a newer version of fedlm has written it.
        """
        with self._errors(self._cannot_be_opened):
            with self._engine.connect() as connection, connection.begin():
                done = self._is_current(connection) or self._is_led_by_another(connection)
            if not done:
                with self._engine.connect() as connection, self._lock(connection):
                    self._upgrade(connection)

    async def open_once_reached(self) -> None:
        """Open it, and wait for it as long as it cannot be reached; see `open` for errors."""
        await with_retries_async(lambda: asyncio.to_thread(self.open), 0.0)

    async def watch(self) -> None:
        """Look, while it cannot be reached, whether it can be again, until cancelled."""
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_TRIES)
            if not self.reachable:
                with contextlib.suppress(StateError):
                    await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Find out whether it can be reached; see `reading` for errors."""
        with self.reading() as connection:
            connection.execute(sql.text("SELECT 1"))

    @property
    def reachable(self) -> bool:
        """Whether it could be reached when something was last asked of it."""
        return self._away is None

    def _options(self) -> dict[str, Any]:
        if self._is_sqlite:
            return {"connect_args": {"timeout": _BUSY_SECONDS, "check_same_thread": False}}
        settings = {"options": _POSTGRESQL_SETTINGS, "client_encoding": "utf8", "connect_timeout": _BUSY_SECONDS}
        return {"connect_args": settings, "pool_pre_ping": True}

    @property
    def _is_sqlite(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    @property
    def name(self) -> str:
        """The URL, without its password."""
        return self._url.render_as_string()

    @contextlib.contextmanager
    def _lock(self, connection: Connection) -> Iterator[None]:
        """Begin a transaction that nobody else writes beside."""
        if self._is_sqlite:
            connection = connection.execution_options(writes=True)
        with connection.begin():
            if not self._is_sqlite:
                connection.execute(sql.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            if self.leader is not None and connection.scalar(sql.select(LEADERS.c.name)) != self.leader:
                self._lost = True
                raise not_leading(self.name)
            yield

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Begin a transaction that reads and writes, alone; it is committed at the end.

        Raises:
          StateError: the database is busy for long, full or gone; nothing was written.
          NotLeadingError: another process leads; nothing was written.
        """
        with self._errors(), self._engine.connect() as connection, self._lock(connection):
            yield connection

    @contextlib.contextmanager
    def fenced(self) -> Iterator[None]:
        """Write elsewhere than in the database, and not into it, while nobody else can take the lead.

        It waits for a database that cannot be reached; see `writing` for other errors.
        """
        if self.leader is None or getattr(self._fenced, "held", False):
            yield
            return
        held = contextlib.ExitStack()
        with_retries(lambda: held.enter_context(self.writing()))
        self._fenced.held = True
        try:
            yield
        finally:
            self._fenced.held = False
            # What is written elsewhere is written, whether the database ends its transaction well or not.
            with contextlib.suppress(StateError):
                held.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Begin a transaction that only reads; raises `StateError` where the database is gone, and `NotLeadingError`
        once another process is known to lead."""
        if self._lost:
            raise not_leading(self.name)
        with self._errors(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextlib.contextmanager
    def _errors(self, explain: Callable[[BaseException], StateError] | None = None) -> Iterator[None]:
        try:
            yield
        except (sql.exc.SQLAlchemyError, ImportError) as error:
            if is_away(error) and not (explain and is_refusal(error)):
                self._note_away(error)
                raise UnreachableError(f"{self.name}: the database cannot be reached ({first_line(error)})") from error
            raise (explain or self._cannot_be_used)(error) from error
        away, self._away = self._away, None
        if away is not None:
            event("state_reached", seconds=round(_now() - away))

    def _note_away(self, error: BaseException) -> None:
        now, since = _now(), self._away
        if since is None:
            self._away, self._told = since, _ = now, -math.inf
        if now - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = now
            warn("state_not_reached", seconds=round(now - since), database=self.name, why=first_line(error))

    def _cannot_be_opened(self, error: BaseException) -> StateError:
        return StateError(
            f"{self.name}: the state cannot be opened ({first_line(error)}); is the database there, and may this "
            "process write it?"
        )

    def _cannot_be_used(self, error: BaseException) -> StateError:
        return StateError(
            f"{self.name}: the state cannot be read or written ({first_line(error)}); is the database there, and "
            "does its disk have room?"
        )

    def _is_current(self, connection: Connection) -> bool:
        """Say whether the tables are of this version; refuse those of a newer one."""
        from alembic.runtime.migration import MigrationContext
        from alembic.script import ScriptDirectory

        script = ScriptDirectory(str(_MIGRATIONS))
        found, head = MigrationContext.configure(connection).get_current_revision(), script.get_current_head()
        if found is not None and found not in {step.revision for step in script.walk_revisions()}:
            raise StateError(
                f"{self.name}: a newer version of fedlm wrote this database (its tables are of revision {found}, and "
                f"this version knows those up to {head}); run that version, or a later one"
            )
        return found == head

    def _is_led_by_another(self, connection: Connection) -> bool:
        led = self.leader is None and sql.inspect(connection).has_table(LEADERS.name)
        return led and connection.scalar(sql.select(LEADERS.c.name)) is not None

    def _upgrade(self, connection: Connection) -> None:
        from alembic import command
        from alembic.config import Config

        # Another process may have done it meanwhile.
        if not self._is_current(connection):
            config = Config(attributes={"connection": connection})
            config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
            with _upgrading:
                command.upgrade(config, "head")

    def close(self) -> None:
        """Let go of all connections."""
        self._engine.dispose()


def _parse(url: str) -> sql.URL:
    try:
        parsed = sql.make_url(url)
    except sql.exc.ArgumentError as error:
        # Not repeated, since it may hold a password.
        raise StateError(f"this is not the URL of a database; {_EXPECTED}") from error
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise StateError(f"{parsed.render_as_string()}: databases of this kind are not supported; {_EXPECTED}")
    return parsed


def _keep_from_others(path: Path) -> None:
    """Let the owner of a database's file alone read it: it names clients. Make it where it is not there yet.

    Raises:
      StateError: it cannot be made, or others can read it and it is somebody else's.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        # SQLite gives the files beside it the same rights, but only when it makes them.
        for one in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))):
            if one.exists() and one.stat().st_mode & 0o077:
                one.chmod(0o600)
    except OSError as error:
        raise StateError(
            f"{path}: the state cannot be opened where its owner alone can read it ({error.strerror}); may this "
            "process write there?"
        ) from error


def _set_up_sqlite(connection: Any, record: Any) -> None:
    # Transactions begin where SQLAlchemy says so, not where the driver guesses.
    connection.isolation_level = None
    # With `synchronous` FULL a committed transaction survives a loss of power, not only of the process.
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
    _write_ahead(connection)


def _write_ahead(connection: Any) -> None:
    """Let readers go on beside a writer; the file remembers it, so only the first connection of all sets it."""
    # SQLite does not wait for its busy time here: of two that change the mode at once, one is refused immediately.
    deadline = time.monotonic() + _BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.005, 0.05))


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
