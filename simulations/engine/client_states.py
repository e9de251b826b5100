"""What simulated clients keep to themselves from round to round: on disk, so that there may be any number of them."""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedlm.fl_core.errors import CheckpointError, DiskError

CLIENTS_FILE = "clients.sqlite"
"""In the folder of a run."""


class ClientStates:
    """States of clients, float32 arrays each, of which every client has that of its last round.

    Those of earlier rounds stay for as long as a run may go back to a checkpoint from before the last: a client has at
    most one for each round since the oldest one.
    """

    def __init__(self, path: Path | None = None, rounds: int = 0, oldest: Callable[[], int] = lambda: 0):
        """Open the states of a run that goes on after so many rounds, and forget what came later.

        Args:
          path: of their file, which its owner alone can read; they last as long as the object where None.
          rounds: that the run has seen; 0 where it begins.
          oldest: gives the rounds that the oldest checkpoint has seen.

        Raises:
          CheckpointError: the file is of an earlier time, missing or damaged.
        """
        self._path, self._oldest = path, oldest
        with self._errors():
            if path is not None:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._file = sqlite3.connect(":memory:" if path is None else path, isolation_level=None)
            # Else a loss of power may take back what was committed last, also after its checkpoint was written.
            self._file.execute("PRAGMA synchronous = EXTRA")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS states (client INTEGER, round INTEGER, state BLOB, "
                "PRIMARY KEY (client, round)) WITHOUT ROWID"
            )
            seen = self._file.execute("PRAGMA user_version").fetchone()[0]
            if seen < rounds:
                raise CheckpointError(
                    f"{path}: has what clients kept in {seen} rounds, but the run goes on after {rounds}; put back the "
                    "file that belongs to the run"
                )
            with self._transaction():
                self._file.execute("DELETE FROM states WHERE round >= ?", (rounds,))
                self._file.execute(f"PRAGMA user_version = {rounds}")

    def close(self) -> None:
        """Close the file; what is kept in memory is lost."""
        self._file.close()

    def has(self, client: int) -> bool:
        """Say whether a client has kept anything."""
        return self._newest(client) is not None

    def read(self, clients: np.ndarray, first: Any, room: int = 0) -> Any:
        """Read the states of clients.

        Args:
          clients: int64 [clients].
          first: the state of a client that has kept nothing.
          room: for so many clients at least.

        Returns:
          Arrays of float32 [clients or more], the clients' in their order; zeros behind them.

        Raises:
          CheckpointError: what a client kept is of another size.
        """
        leaves, structure = jax.tree_util.tree_flatten(jax.device_get(first))
        rows = [np.zeros((max(room, len(clients)), *leaf.shape), np.float32) for leaf in leaves]
        for place, client in enumerate(map(int, clients)):
            for row, value in zip(rows, self._values(client, leaves), strict=True):
                row[place] = value
        return jax.tree_util.tree_unflatten(structure, rows)

    def _values(self, client: int, first: list[np.ndarray]) -> list[np.ndarray]:
        content, ends = self._newest(client), np.cumsum([leaf.size for leaf in first])
        if content is None:
            return first
        if len(content) != 4 * ends[-1]:
            raise CheckpointError(f"{self._path}: has other layers than those of the run; put its own file back")
        values = np.split(np.frombuffer(content, np.float32), ends[:-1])
        return [value.reshape(leaf.shape) for value, leaf in zip(values, first, strict=True)]

    def write(self, round_number: int, clients: np.ndarray, states: Any) -> None:
        """Keep the states of clients after a round, arrays with an axis of clients before their own. When this returns,
        they are on disk. Raises DiskError where they cannot be written."""
        rows = [np.asarray(leaf, np.float32) for leaf in jax.tree_util.tree_leaves(states)]
        oldest = self._oldest()
        with self._errors(), self._transaction():
            for place, client in enumerate(map(int, clients)):
                content = b"".join(row[place].tobytes() for row in rows)
                self._file.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", (client, round_number, content))
                self._file.execute(
                    "DELETE FROM states WHERE client = ?1 AND round < "
                    "(SELECT MAX(round) FROM states WHERE client = ?1 AND round < ?2)",
                    (client, oldest),
                )
            self._file.execute(f"PRAGMA user_version = {round_number + 1}")

    def _newest(self, client: int) -> bytes | None:
        with self._errors():
            found = self._file.execute(
                "SELECT state FROM states WHERE client = ? ORDER BY round DESC LIMIT 1", (client,)
            ).fetchone()
        return None if found is None else found[0]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._file.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:
            raise DiskError(f"{self._path}: cannot be written or read ({error}); make room, or permit that") from error
        except sqlite3.DatabaseError as error:
            raise CheckpointError(f"{self._path}: is damaged ({error}); put back what was there") from error
