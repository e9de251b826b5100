"""Reading the SQLite tables of TensorFlow Federated, client by client."""

import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.formats.tensorflow_federated import (
    EXAMPLES_COLUMNS,
    METADATA_COLUMNS,
    create_indexes,
    parse_example,
    parse_feature,
)
from fedlm.simulations.data.sources.base import Part
from fedlm.simulations.data.sources.stackoverflow.sqlite_files import Database, check_columns, database_errors, opened
from fedlm.simulations.data.sources.stackoverflow.text_features import (
    check_feature,
    choose_feature,
    client_text,
    no_text,
)

PART_EXAMPLES = 50_000
"""Clients with together about so many examples are one part."""

SPLITS_BY_NAME: dict[str, str | None] = {
    "train": "train",
    "heldout": "heldout",
    "held_out": "heldout",
    "test": "test",
    "default_split": None,  # TensorFlow Federated's writer says this where it is told no split
}

_ROWS_OF_CLIENT = (
    "SELECT rowid, serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? ORDER BY rowid"
)

Key = tuple[str, str]
"""(split name, client id), as the tables have them."""


class TablePart(NamedTuple):
    """A range of rows of `client_metadata` of one database."""

    database: Database
    feature: str  # the one with the text
    first: int  # row id
    last: int  # row id


def text_feature(database: Database) -> str:
    """Return the name of the feature with the text, found in the first example; DataError where there is none."""
    with opened(database) as connection:
        _check_tables(connection, database)
        row = connection.execute("SELECT serialized_example_proto FROM examples LIMIT 1").fetchone()
    if row is None:
        raise DataError(f"{database.given}: the table examples is empty, expected a row for each sentence.")
    try:
        found = parse_example(row[0])
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{database.given}: the first row of examples is damaged ({error}). Fetch the file again."
        ) from error
    return choose_feature(found, str(database.given))


def indexed(database: Database, copy: Path) -> Database:
    """Return a database that has an index of clients' examples, as the published one does: the same, or a copy."""
    with opened(database) as connection:
        _check_tables(connection, database)
        plan = connection.execute("EXPLAIN QUERY PLAN " + _ROWS_OF_CLIENT, ("", "")).fetchall()
    if any("SEARCH" in step[3] and "client_id=?" in step[3] for step in plan):
        return database
    if not copy.exists():
        partial = copy.with_name(f"{copy.name}.partial")
        shutil.copyfile(database.path, partial)
        with database_errors(str(database.given)), closing(sqlite3.connect(partial)) as connection:
            create_indexes(connection)
        partial.replace(copy)
    return Database(copy, database.given)


def table_parts(databases: Iterable[Database], feature: str) -> list[Part]:
    """Cut databases into parts, sized in examples."""
    clients: set[Key] = set()
    parts: list[Part] = []
    for database in databases:
        with opened(database) as connection:
            _check_tables(connection, database)
            parts += _client_parts(connection, database, feature, clients)
    return parts


def read_clients(part: TablePart, skipped: SkippedCounts) -> Iterator[ClientText]:
    """Yield the text of one part, where each client has as many examples as its metadata says."""
    query = "SELECT split_name, client_id, num_examples FROM client_metadata WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
    with opened(part.database) as connection:
        for split, client_id, expected in connection.execute(query, (part.first, part.last)).fetchall():
            where = f"{part.database.given}, client {client_id!r}"
            with database_errors(where):
                rows = connection.execute(_ROWS_OF_CLIENT, (split, client_id)).fetchall()
            if len(rows) != expected:
                _raise_count_differs(part.database, (split, client_id), len(rows), expected)
            values = _values(rows, part.feature, where)
            yield from client_text(
                client_id, SPLITS_BY_NAME[split], values, feature=part.feature, where=where, skipped=skipped
            )


def _check_tables(connection: sqlite3.Connection, database: Database) -> None:
    tables = {"examples": EXAMPLES_COLUMNS, "client_metadata": METADATA_COLUMNS}
    advice = "These are the tables of TensorFlow Federated; stackoverflow-fedjax reads those of FedJAX."
    check_columns(connection, database, tables, advice)


def _metadata(connection: sqlite3.Connection, database: Database, clients: set[Key]) -> Iterator[tuple[int, Key, int]]:
    """Yield (row id, client, number of examples), all checked, and add the clients to `clients`."""
    query = "SELECT rowid, split_name, client_id, num_examples FROM client_metadata ORDER BY rowid"
    for rowid, split, client_id, count in connection.execute(query):
        place = f"{database.given}: client_metadata, row {rowid}"
        if not isinstance(client_id, str) or not isinstance(count, int) or count < 0:
            raise DataError(
                f"{place}: found client {client_id!r} with {count!r} examples, expected a text and a whole number. "
                "Make the file again."
            )
        if split not in SPLITS_BY_NAME:
            raise DataError(f"{place}: found the split {split!r}, expected one of {', '.join(SPLITS_BY_NAME)}.")
        if (split, client_id) in clients:
            raise DataError(
                f"{place}: client {client_id!r} occurs twice in {split}, expected one row for each client and split. "
                "Is a file there twice? If not, join the client's rows."
            )
        clients.add((split, client_id))
        yield rowid, (split, client_id), count


def _client_parts(
    connection: sqlite3.Connection, database: Database, feature: str, clients: set[Key]
) -> Iterator[Part]:
    first: int | None = None
    total = size = last = 0
    for rowid, _, count in _metadata(connection, database, clients):
        if first is not None and size + count > PART_EXAMPLES:
            yield Part(TablePart(database, feature, first, last), size)
            first, size = None, 0
        first = rowid if first is None else first
        last, size, total = rowid, size + count, total + count
    if first is not None:
        yield Part(TablePart(database, feature, first, last), size)
    _check_no_others(connection, database, total)


def _check_no_others(connection: sqlite3.Connection, database: Database, total: int) -> None:
    """Check that every example is of a client in the metadata, quickly where there are as many as it says."""
    if connection.execute("SELECT max(rowid) FROM examples").fetchone()[0] in (total, None):
        return
    if connection.execute("SELECT COUNT(*) FROM examples").fetchone()[0] <= total:
        return
    row = connection.execute(
        "SELECT split_name, client_id FROM examples EXCEPT SELECT split_name, client_id FROM client_metadata LIMIT 1"
    ).fetchone()
    if row is not None:
        _raise_count_differs(database, row, "some", 0)


def _raise_count_differs(database: Database, key: tuple[Any, Any], found: int | str, expected: int) -> NoReturn:
    split, client_id = key
    raise DataError(
        f"{database.given}: client {client_id!r} has {found} rows in examples for {split!r}, expected {expected} as "
        "client_metadata says. Fetch or make the file again."
    )


def _values(rows: Iterable[tuple[int, Any]], feature: str, where: str) -> Iterator[tuple[int, bytes]]:
    for rowid, data in rows:
        place = f"{where}, row {rowid} of examples"
        try:
            values = parse_feature(data, feature)
        except (ValueError, TypeError) as error:
            raise DataError(f"{place}: damaged ({error}). Fetch the file again.") from error
        if values is None:
            check_feature(parse_example(data), feature, place)
        elif len(values) != 1 or not isinstance(values[0], bytes):
            raise no_text(feature, str(values)[:60], "one text", place)
        else:
            yield rowid, values[0]
