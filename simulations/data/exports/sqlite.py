"""Writing a new SQLite database quickly: it is not seen before it is whole, so nothing need ever be undone."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def new_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Make a database in one transaction, without a journal; SQLite moves finished pages to the file as it goes.

    Raises OSError where the disk refuses.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        raise OSError(f"SQLite: {error}") from error
