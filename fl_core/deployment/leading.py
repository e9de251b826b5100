"""Which of several processes writes into a database and the folder beside it: one leads, and others stand by.

Each second the leader counts a beat. Who stands by sees by its own clock, which does not step, that the beats stand
still, and takes the lead in one transaction. The earlier leader may only have been frozen. So whatever it writes from
then on is refused: each of its transactions looks first who leads, and what it writes into the folder it writes within
such a transaction (`Database.fenced`). A leader whose machine says that it ended, since the lock of the folder is free,
need not be waited for.
"""

import asyncio
import contextlib
import math
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import sqlalchemy as sql

from fedlm.fl_core.deployment.event_log import event
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.retrying import with_retries_async
from fedlm.fl_core.deployment.state.state import NotLeadingError, StateError
from fedlm.fl_core.deployment.state.tables import LEADERS
from fedlm.fl_core.errors import setting
from fedlm.fl_core.runs.files.run_lock import FolderLock, folder_is_taken

LEASE_SECONDS = 5.0
"""How long beats stand still before somebody else may lead."""
_BEAT_SECONDS, _LOOK_SECONDS, _PATIENCE_SECONDS = 1.0, 0.2, 10.0


class Leader(NamedTuple):
    """Who leads, as the database says."""

    name: str
    beats: int
    held_on: str  # names the lock that it holds, and the start of its machine; empty where it holds none


class Lead:
    """The lead of one process; `look` until it has it."""

    def __init__(self, database: Database, lock: FolderLock):
        """Prepare; nothing is taken yet."""
        self._database, self._lock, self._name = database, lock, secrets.token_hex(16)
        self._seen: Leader | None = None
        self._since, self._looked = math.inf, -math.inf
        self._ended = threading.Event()

    def look(self, now: float) -> bool:
        """Take the lead where nobody has it, or who has it is gone, or silent for too long by a clock that does not
        step; returns whether this process has it. See `Database.writing` for errors."""
        began, locked = time.monotonic(), self._lock.try_to_take()
        with self._database.reading() as connection:
            found = _leader(connection)
        # Where nobody looked for a while, as when this process was frozen itself, nobody could be heard.
        if found != self._seen or now - self._looked > LEASE_SECONDS / 2:
            self._seen, self._since = found, now
        gone = found is None or (locked and found.held_on == self._held_on())
        try:
            if gone or now - self._since > LEASE_SECONDS:
                reading = time.monotonic() - began
                if self._take(found, math.inf if gone else reading + _LOOK_SECONDS / 2):
                    return True
                self._since = now + time.monotonic() - began
        finally:
            # A slow database takes long to look at, and nobody is unheard meanwhile.
            self._looked = now + time.monotonic() - began
        if locked:
            self._lock.let_go()
        return False

    def _take(self, found: Leader | None, most_seconds: float) -> bool:
        asked = time.monotonic()
        with self._database.writing() as connection:
            # Who had to wait waited for another that wrote: perhaps the leader, whose beats waited too.
            if time.monotonic() - asked > most_seconds or _leader(connection) != found:
                return False
            connection.execute(sql.delete(LEADERS))
            connection.execute(sql.insert(LEADERS).values(name=self._name, beats=0, held_on=self._held_on()))
        self._database.leader = self._name
        # Nobody else brings the tables up to date while somebody leads.
        self._database.open()
        return True

    def _held_on(self) -> str:
        return self._lock.name if self._lock.held else ""

    def beat_until_lost(self, lost: Callable[[NotLeadingError], object]) -> None:
        """Count beats in a thread until the end, or until another process leads; `lost` is told then."""
        threading.Thread(target=self._beat_on, args=(lost,), name="beats", daemon=True).start()

    def _beat_on(self, lost: Callable[[NotLeadingError], object]) -> None:
        while not self._ended.wait(_BEAT_SECONDS):
            try:
                self.beat()
            except NotLeadingError as error:
                if not self._ended.is_set():
                    lost(error)
                return
            except StateError:
                # Nobody else can lead while the database is gone for all; else the next beat finds out.
                continue

    def beat(self) -> None:
        """Count a beat; see `Database.writing` for errors."""
        # Whoever was frozen, and held the folder's lock, may be gone by now.
        self._lock.try_to_take()
        with self._database.writing() as connection:
            values = {"beats": LEADERS.c.beats + 1, "held_on": self._held_on()}
            connection.execute(sql.update(LEADERS).values(**values))

    def end(self) -> None:
        """Let somebody else lead; this process writes nothing more."""
        self._ended.set()
        with contextlib.suppress(StateError, NotLeadingError), self._database.writing() as connection:
            connection.execute(sql.delete(LEADERS))


@contextlib.asynccontextmanager
async def leading(
    lock: FolderLock, database: Database, stands_by: bool = False, instead: str = setting("out")
) -> AsyncIterator[None]:
    """Lead for as long as the context lasts, which is cancelled where another process takes the lead.

    Args:
      lock: of the folder beside the database.
      database: what is written while this process leads.
      stands_by: whether to wait for the lead without end.
      instead: what to give another of where another process leads.

    Raises:
      ConfigurationError: another process leads, and goes on to.
      NotLeadingError: another process took the lead meanwhile.
    """
    lead, deadline = Lead(database, lock), time.monotonic() + _PATIENCE_SECONDS
    if stands_by:
        event("standing_by")
    # Who was frozen within a write keeps the database busy for as long.
    patience = math.inf if stands_by else None
    while not await with_retries_async(lambda: asyncio.to_thread(lead.look, time.monotonic()), patience):
        if not stands_by and time.monotonic() > deadline:
            raise folder_is_taken(lock.directory, instead)
        await asyncio.sleep(_LOOK_SECONDS)
    if stands_by:
        event("leading")
    errors, over = list[NotLeadingError](), False
    loop, inside = asyncio.get_running_loop(), asyncio.current_task()
    assert inside is not None

    def cancel(error: NotLeadingError) -> None:
        if not over:
            errors.append(error)
            inside.cancel()

    def lost(error: NotLeadingError) -> None:
        with contextlib.suppress(RuntimeError):  # where the loop has ended
            loop.call_soon_threadsafe(cancel, error)

    lead.beat_until_lost(lost)
    try:
        yield
    except asyncio.CancelledError:
        if not errors:
            raise
        inside.uncancel()
        raise errors[0] from None
    finally:
        over = True
        await asyncio.to_thread(lead.end)


def _leader(connection: sql.Connection) -> Leader | None:
    row = connection.execute(sql.select(LEADERS.c.name, LEADERS.c.beats, LEADERS.c.held_on)).first()
    return None if row is None else Leader(*row)
