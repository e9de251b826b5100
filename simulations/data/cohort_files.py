"""Files about the clients of a data set: when they are available, and how much they weigh. Read row by row."""

import csv
import hashlib
import math
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

import numpy as np

from fedlm.fl_core.errors import DataError, setting
from fedlm.fl_core.rounds.cohorts import Availability
from fedlm.fl_core.text_encodings import refuse_other_encodings

_LONGEST_LINE = 1 << 16

TRACE_HEADER = ("client_id", "start", "end")
WEIGHTS_HEADER = ("client_id", "weight")


class CohortFile(NamedTuple):
    """What a run remembers of such a file."""

    path: str
    sha256: str  # of its content
    clients: int  # how many clients of the data it names
    unknown_rows: int  # how many of its rows name a client that the data does not have


def read_availability(path: Path, clients: Mapping[str, int], cycle_hours: float) -> tuple[Availability, CohortFile]:
    """Read a trace: a CSV file with the header `client_id,start,end`, hours within a cycle.

    A client is available from start until just before end, past the cycle's end where start is above end. A client may
    have several rows; one without any is never available. `clients` maps the ids of the data's clients to their
    indices. Raises DataError where the file is missing or damaged, or names no client of the data.
    """
    client, start, end = array("q"), array("d"), array("d")
    unknown = 0
    for line, (name, *values) in _rows(path, TRACE_HEADER):
        first, last = (_number(path, line, *pair) for pair in zip(TRACE_HEADER[1:], values, strict=True))
        _check_interval(path, line, first=first, last=last, cycle_hours=cycle_hours)
        index = clients.get(name)
        if index is None:
            unknown += 1
            continue
        for a, b in [(first, last)] if first < last else [(first, cycle_hours), (0.0, last)]:
            if a < b:
                client.append(index)
                start.append(a)
                end.append(b)
    found = Availability(len(clients), cycle_hours, np.array(client), np.array(start), np.array(end))
    return found, _remember(path, len(np.unique(found.client)), unknown)


def read_weights(path: Path, clients: Mapping[str, int]) -> tuple[np.ndarray, CohortFile]:
    """Read weights: a CSV file with the header `client_id,weight`, each client at most once.

    Returns float64 [clients], 0 for a client that the file does not name. `clients` and errors are as for
    `read_availability`.
    """
    weights = np.full(len(clients), np.nan)
    unknown = 0
    for line, (name, text) in _rows(path, WEIGHTS_HEADER):
        weight = _number(path, line, "weight", text)
        if weight < 0:
            _bad(path, line, f"weight is {text}, expected 0 or more")
        index = clients.get(name)
        if index is None:
            unknown += 1
            continue
        if not math.isnan(weights[index]):
            _bad(path, line, f"client {name!r} has a weight already, expected each client once; remove one of its rows")
        weights[index] = weight
    return np.nan_to_num(weights), _remember(path, int(np.sum(~np.isnan(weights))), unknown)


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file's content in hex; raises DataError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _check_interval(path: Path, line: int, *, first: float, last: float, cycle_hours: float) -> None:
    for name, value in (("start", first), ("end", last)):
        if not 0 <= value <= cycle_hours:
            expected = f"expected hours between 0 and the length of the cycle, {cycle_hours:g}"
            _bad(
                path,
                line,
                f"{name} is {value:g}, {expected}; correct it, or give another {setting('availability_cycle_hours')}",
            )
    if first == last:
        advice = f"remove the row, or give 0 and {cycle_hours:g} for a client that is always available"
        _bad(path, line, f"start and end are both {first:g}, expected them to differ; {advice}")


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        _bad(path, line, f"{column} is {text[:50]!r}, expected a finite number")
    return value


def _rows(path: Path, header: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows below the header with their line numbers; blank lines are passed over."""
    try:
        with path.open("rb") as file:
            reader = csv.reader(_lines(path, file), strict=True)
            try:
                for number, row in enumerate(reader):
                    if number == 0 and tuple(row) != header:
                        _bad(path, 1, f"found the header {','.join(row)[:80]!r}, expected {','.join(header)!r}")
                    if number and row:
                        if len(row) != len(header):
                            _bad(path, reader.line_num, f"found {len(row)} columns, expected {','.join(header)}")
                        yield reader.line_num, row
            except csv.Error as error:
                _bad(path, reader.line_num, f"not a row of a CSV file ({error}), expected {','.join(header)}")
            if not reader.line_num:
                _bad(path, 1, f"the file is empty, expected the header {','.join(header)!r}")
    except OSError as error:
        raise _unreadable(path, error) from error


def _lines(path: Path, file: BinaryIO) -> Iterator[str]:
    number = 0
    # A file that is no text may have no line's end for gigabytes.
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if number == 1:
            refuse_other_encodings(path, line[:4])
        if len(line) == _LONGEST_LINE:
            _bad(path, number, f"found a line of {_LONGEST_LINE:,} bytes or more, expected a CSV file")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            _bad(path, number, f"found bytes that are not UTF-8 ({error.reason}), expected a CSV file in UTF-8")


def _remember(path: Path, clients: int, unknown_rows: int) -> CohortFile:
    if not clients:
        raise DataError(
            f"{path}: none of its clients is a training client of the data ({unknown_rows:,} rows name others); give "
            "the file that belongs to the data, with the client ids of its import"
        )
    return CohortFile(str(path), fingerprint(path), clients, unknown_rows)


def _bad(path: Path, line: int, message: str) -> NoReturn:
    raise DataError(f"{path}, line {line}: {message}")


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read ({error.strerror}), expected a CSV file; correct the path")
