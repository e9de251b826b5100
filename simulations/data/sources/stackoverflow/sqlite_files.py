"""SQLite databases as input: opened for reading only, and damage told apart from defects of the code."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.sources.tables.byte_parts import damage_errors

SQLITE_SIGNATURE = b"SQLite format 3\x00"


class Database(NamedTuple):
    """A database file."""

    path: Path  # the file to open
    given: Path  # the file that the user named, for messages; another one where it was compressed


@contextmanager
def opened(database: Database) -> Iterator[sqlite3.Connection]:
    """Open a database, which nobody may write to meanwhile, for reading; it is closed when the block ends."""
    for suffix in ("-wal", "-journal"):
        beside = database.path.with_name(database.path.name + suffix)
        if beside.exists() and beside.stat().st_size:
            raise DataError(
                f"{database.given}: found {beside.name} beside it, with changes that the database has not taken in. "
                "End the program that writes to it, or open and close it once with the sqlite3 program."
            )
    # "immutable" lets SQLite read where it may write neither the file nor locks beside it.
    uri = f"{database.path.absolute().as_uri()}?mode=ro&immutable=1"
    with database_errors(str(database.given)), closing(sqlite3.connect(uri, uri=True)) as connection:
        yield connection


def database_errors(place: str) -> AbstractContextManager[None]:
    """Turn any sqlite3.Error in a block into a DataError that says where it was and what to do."""
    return damage_errors("SQLite", place, sqlite3.Error)


def check_columns(
    connection: sqlite3.Connection, database: Database, expected: Mapping[str, Sequence[str]], advice: str
) -> None:
    """Raise DataError unless a database has tables with certain columns.

    `expected` has the names of columns by that of their table; `advice` is a sentence that says what the user can do.
    """
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    found = {table: [row[0] for row in connection.execute(_COLUMNS, (table,))] for (table,) in rows}
    if any(not set(columns) <= set(found.get(table, ())) for table, columns in expected.items()):
        raise DataError(
            f"{database.given}: found {_describe(found) or 'no table'}, expected {_describe(expected)}. {advice}"
        )


_COLUMNS = "SELECT name FROM pragma_table_info(?) ORDER BY cid"


def _describe(tables: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{table}({', '.join(columns)})" for table, columns in tables.items())
