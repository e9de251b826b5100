"""The log in the server's database, with its key. Several processes may share it."""

import threading
from collections.abc import Sequence

import sqlalchemy as sql
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.engine import Connection

from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.retrying import with_retries
from fedlm.fl_core.deployment.state.tables import LOG_KEYS, LOG_LEAVES
from fedlm.fl_core.deployment.transparency.signed_log import SignedLog


class StoredLog:
    """What is in its head is in the database. Any thread may use it.

    Attributes:
      signed: the log as this process knows it.
    """

    def __init__(self, database: Database):
        """Read the log, or begin one; raises `StateError` where the database cannot be used."""
        self._database, self._lock = database, threading.Lock()
        self.signed = SignedLog(with_retries(self._key))
        self.refresh()

    def _key(self) -> Ed25519PrivateKey:
        with self._database.writing() as connection:
            found = connection.scalar(sql.select(LOG_KEYS.c.private_key))
            if found is None:
                found = Ed25519PrivateKey.generate().private_bytes_raw()
                connection.execute(sql.insert(LOG_KEYS).values(private_key=found))
        return Ed25519PrivateKey.from_private_bytes(found)

    def enter(self, leaves: Sequence[bytes]) -> None:
        """Add what is missing, see `SignedLog.missing`; when this returns, it is in the head.

        It waits for a database that cannot be reached; raises `StateError` where it cannot be used.
        """
        if self.signed.missing(leaves):
            with self._lock:
                with_retries(lambda: self._write(leaves))

    def _write(self, leaves: Sequence[bytes]) -> None:
        with self._database.writing() as connection:
            # Also what this process wrote, where it never heard that it was committed.
            self._catch_up(connection)
            new, size = self.signed.missing(leaves), self.signed.size
            if new:
                rows = [{"number": size + place, "leaf": leaf} for place, leaf in enumerate(new)]
                connection.execute(sql.insert(LOG_LEAVES), rows)
        self.signed.add(new)

    def refresh(self) -> None:
        """Take over what other processes have entered; see `enter` for errors."""
        with self._lock:
            with_retries(self._read)

    def _read(self) -> None:
        with self._database.reading() as connection:
            self._catch_up(connection)

    def _catch_up(self, connection: Connection) -> None:
        later = sql.select(LOG_LEAVES.c.leaf).where(LOG_LEAVES.c.number >= self.signed.size)
        self.signed.add(list(connection.scalars(later.order_by(LOG_LEAVES.c.number))))
