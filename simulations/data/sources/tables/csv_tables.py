"""Your own users' text as CSV or TSV: rows under a header line, fields perhaps in quotation marks (RFC 4180)."""

import codecs
import csv
import functools
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import tyro

from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.base import Progress, Reading
from fedlm.simulations.data.sources.tables.byte_parts import (
    MAX_RECORD_BYTES,
    BytePart,
    FindEnd,
    byte_parts,
    last_line_end,
)
from fedlm.simulations.data.sources.tables.user_rows import (
    NOT_UTF8,
    RowSettings,
    check_columns,
    existing_files,
    row_text,
)

HEADER_BYTES = 64 << 10
"""So much of a file is read at first to find its header."""


@dataclass(frozen=True)
class CsvTables(RowSettings):
    """Your own users' text as CSV or TSV: a header line, then rows with a user and a text.

    Text is UTF-8. A field with the delimiter, a newline or a quotation mark in it stands in double quotation marks,
    and a quotation mark in it is doubled. Files may be compressed: .gz, .bz2 or .xz.
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """The files."""
    delimiter: str = field(default=",", kw_only=True)
    """The character between fields; \\t for a tab."""
    quotes: bool = field(default=True, kw_only=True)
    """Whether quotation marks may stand around fields. Without this, a quotation mark is a character like any other,
    and a line is a row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.separator) != 1 or not self.separator.isascii() or self.separator in '"\r\n':
            raise ConfigurationError(
                f"{setting('delimiter')} is {self.delimiter!r}, but must be one ASCII character, not a quotation mark "
                "or newline"
            )

    @property
    def separator(self) -> str:
        """The delimiter as one character."""
        return "\t" if self.delimiter == "\\t" else self.delimiter

    def files(self) -> list[Path]:
        return [*existing_files(self.paths), *self.template_files()]

    def open(self, workspace: Path, progress: Progress) -> Reading:
        files = existing_files(self.paths)
        headers = {path: read_header(self, path) for path in files}
        parts = (part for path in files for part in byte_parts(path, row_end_finder(self)))
        return Reading.of_files(files, parts, functools.partial(read_rows, self, headers))


class QuotedRowEnd:
    """A `FindEnd` of rows whose fields may hold newlines between quotation marks.

    A newline ends a row where the number of quotation marks before it is even. They are counted once, though a row
    may be looked at many times.
    """

    def __init__(self) -> None:
        self._quoted = False

    def __call__(self, data: bytes, start: int) -> int:
        quoted = (self._quoted and start > 0) ^ (data.count(b'"', start) % 2 == 1)
        self._quoted = quoted
        stop = len(data)
        while True:
            mark = data.rfind(b'"', start, stop)
            if not quoted:
                newline = data.rfind(b"\n", max(mark, start), stop)
                if newline >= 0:
                    return newline + 1
            if mark < 0:
                return -1
            quoted, stop = not quoted, mark


def row_end_finder(settings: CsvTables) -> FindEnd:
    """Return what finds the ends of rows, for one file."""
    return QuotedRowEnd() if settings.quotes else last_line_end


def read_header(settings: CsvTables, path: Path) -> list[str]:
    """Read the names of a file's columns, which must have those that are read, each once."""
    part: BytePart = next(byte_parts(path, row_end_finder(settings), part_bytes=HEADER_BYTES)).content
    place = f"{path}, line 1"
    row = next(_rows(settings, part), None)
    if row is None or row.line != 1:
        raise DataError(f"{place}: found nothing, expected a header: the names of the columns.")
    if not _is_unicode(row.values):
        raise DataError(f"{place}: found {NOT_UTF8}, expected a header. Save the file as UTF-8.")
    check_columns(
        row.values, settings, place, f" If several are found in one, say with {setting('delimiter')} what is between."
    )
    return row.values


def read_rows(
    settings: CsvTables, headers: Mapping[Path, list[str]], part: BytePart, skipped: SkippedCounts
) -> Iterator[ClientText]:
    """Yield the texts of some rows of a file, the columns of which `headers` names."""
    header = headers[part.path]
    columns = [(name, header.index(name)) for name in settings.fields]
    for line, values in _rows(settings, part):
        if line == 1:
            continue
        place = f"{part.path}, line {line}"
        if len(values) != len(header):
            raise DataError(
                f"{place}: found a row of {len(values)} fields, expected {len(header)} as in the header. Mend or "
                "remove the row; a field with the delimiter or a newline in it belongs in quotation marks."
            )
        if not _is_unicode(values):
            skipped.add(NOT_UTF8, place=place)
            continue
        yield from row_text({name: values[index] for name, index in columns}, settings, place, skipped)


class _Row(NamedTuple):
    line: int
    values: list[str]


def _rows(settings: CsvTables, part: BytePart) -> Iterator[_Row]:
    """Yield the rows of a part, each with the number of its first line; bytes that are not UTF-8 as surrogates."""
    data = part.load()
    if part.start == 0:
        data = data.removeprefix(codecs.BOM_UTF8)
    if settings.quotes:
        _check_quotation_marks(settings, part, data)
    csv.field_size_limit(max(csv.field_size_limit(), 2 * MAX_RECORD_BYTES))
    lines = io.TextIOWrapper(io.BytesIO(data), "utf-8", "surrogateescape", newline="\n")
    reader = csv.reader(
        lines,
        delimiter=settings.separator,
        quoting=csv.QUOTE_MINIMAL if settings.quotes else csv.QUOTE_NONE,
        strict=True,
    )
    first = part.first_line
    try:
        for values in reader:
            if values:
                yield _Row(first, values)
            first = part.first_line + reader.line_num
    except csv.Error as error:
        raise DataError(
            f"{part.path}, line {first}: found no row of a table ({error}). Mend or remove the row."
        ) from error


def _check_quotation_marks(settings: CsvTables, part: BytePart, data: bytes) -> None:
    """Raise DataError unless every quotation mark opens, closes or is doubled in a quoted field.

    The csv module would take some for characters of a field, but where rows end is decided by their number.
    """
    for match in _quoted(settings.separator).finditer(data):
        if match.lastgroup == "stray":
            line = part.first_line + data.count(b"\n", 0, match.start())
            raise DataError(
                f"{part.path}, line {line}: found a quotation mark that is not closed, or is closed inside a field. "
                "Expected marks around whole fields, and doubled marks inside. Mend the row; if marks have no such "
                f"meaning in this file, pass {setting('quotes', False)}."
            )


@functools.cache
def _quoted(separator: str) -> re.Pattern[bytes]:
    # A doubled mark closes one piece of a quoted field and opens the next at once.
    around = re.escape(separator)
    return re.compile(rf'(?<![^{around}\n"])"[^"]*"(?=[{around}\r\n"]|\Z)|(?P<stray>")'.encode())


def _is_unicode(values: Iterable[str]) -> bool:
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        return False
    return True
