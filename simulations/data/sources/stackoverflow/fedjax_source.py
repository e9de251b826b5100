"""Federated text in the files of FedJAX: Stack Overflow, Shakespeare, or your own in their form."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.formats.fedjax import COLUMNS, unpack_client
from fedlm.simulations.data.sources.base import Part, Progress, Reading
from fedlm.simulations.data.sources.stackoverflow.sqlite_files import Database, check_columns, database_errors, opened
from fedlm.simulations.data.sources.stackoverflow.text_features import (
    FeatureFiles,
    check_feature,
    choose_feature,
    client_text,
    no_text,
    splits_in_names,
)

PART_BYTES = 8 << 20
"""Clients with together about so many compressed bytes are one part."""


class FedjaxPart(NamedTuple):
    """A range of rows of one database."""

    database: Database
    split: str | None  # train, heldout or test, where the file's name says it
    feature: str  # the one with the text
    first: int  # row id
    last: int  # row id


@dataclass(frozen=True)
class StackOverflowFedjax(FeatureFiles):
    """Stack Overflow, or Shakespeare, as FedJAX publishes them.

    SQLite files whose names end in _train, _held_out and _test, or none of them: then users are split 80/10/10.
    """

    def open(self, workspace: Path, progress: Progress) -> Reading:
        files = self.files()
        feature = self.text_feature()
        seen: dict[tuple[str | None, str], Path] = {}
        parts: list[Part] = []
        for path, split in zip(files, splits_in_names(files), strict=True):
            parts += _parts(Database(path, path), split, feature, seen)
        return Reading("clients", sum(part.size for part in parts), parts, read_clients)

    def _find_feature(self, path: Path) -> str:
        with opened(Database(path, path)) as connection:
            _check_table(connection, Database(path, path))
            row = connection.execute("SELECT client_id, data FROM federated_data ORDER BY rowid LIMIT 1").fetchone()
        if row is None:
            raise DataError(f"{path}: the table federated_data is empty, expected a row for each client.")
        where = f"{path}, client {_client_name(row[0])!r}"
        return choose_feature(_unpack(row[1], where), where)


def read_clients(part: FedjaxPart, skipped: SkippedCounts) -> Iterator[ClientText]:
    """Yield the text of one part, where each client has as many examples as its row says."""
    query = "SELECT rowid, client_id, num_examples FROM federated_data WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
    with opened(part.database) as connection:
        for rowid, client_id, expected in connection.execute(query, (part.first, part.last)):
            name = _client_name(client_id)
            where = f"{part.database.given}, client {name!r}"
            with database_errors(where):
                (data,) = connection.execute("SELECT data FROM federated_data WHERE rowid = ?", (rowid,)).fetchone()
            values = _text_values(_unpack(data, where), part.feature, where)
            if len(values) != expected:
                raise DataError(
                    f"{where}: found {len(values)} examples, expected {expected} as num_examples says. Fetch or make "
                    "the file again."
                )
            yield from client_text(
                name, part.split, enumerate(values, start=1), feature=part.feature, where=where, skipped=skipped
            )


def _check_table(connection: sqlite3.Connection, database: Database) -> None:
    advice = "This is the table of FedJAX; stackoverflow-tff reads those of TensorFlow Federated."
    check_columns(connection, database, {"federated_data": COLUMNS}, advice)


def _parts(
    database: Database, split: str | None, feature: str, seen: dict[tuple[str | None, str], Path]
) -> Iterator[Part]:
    with opened(database) as connection:
        _check_table(connection, database)
        # Not ordered by SQLite, so that it can read the index of the client ids and none of the data.
        rowids = []
        for rowid, client_id in connection.execute("SELECT rowid, client_id FROM federated_data"):
            if client_id is None:
                raise DataError(f"{database.given}: row {rowid} of federated_data has no client_id, expected one.")
            name = _client_name(client_id)
            if (split, name) in seen:
                also = "" if seen[split, name] == database.given else f" and in {seen[split, name]}"
                raise DataError(
                    f"{database.given}: client {name!r} occurs twice{also}, in the same split. Expected one row for "
                    "each client; name each file once, and join the client's rows."
                )
            seen[split, name] = database.given
            rowids.append(rowid)
    rowids.sort()
    count = max(1, len(rowids) * PART_BYTES // database.path.stat().st_size)
    for first in range(0, len(rowids), count):
        some = rowids[first : first + count]
        yield Part(FedjaxPart(database, split, feature, some[0], some[-1]), len(some))


def _client_name(client_id: object) -> str:
    """Return a client's id as text, in hexadecimal where its bytes are not text."""
    if isinstance(client_id, bytes):
        try:
            return client_id.decode()
        except UnicodeDecodeError:
            return client_id.hex()
    return str(client_id)


def _unpack(data: Any, where: str) -> dict[str, Any]:
    try:
        return unpack_client(data)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: its data is damaged ({error}). Fetch or make the file again.") from error


def _text_values(features: dict[str, Any], feature: str, where: str) -> list[bytes]:
    check_feature(features, feature, where)
    values = features[feature]
    if not isinstance(values, np.ndarray) or values.dtype != object or values.ndim != 1:
        raise no_text(feature, str(values)[:60], "a list of texts", where)
    return values.tolist()
