"""Interactions of users with items: what recommendation is learned from."""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.base import Progress, Reading, Source
from fedlm.simulations.data.sources.tables.byte_parts import BytePart, byte_parts, last_line_end
from fedlm.simulations.data.sources.tables.csv_tables import CsvTables
from fedlm.simulations.data.sources.tables.jsonl import JsonLines
from fedlm.simulations.data.sources.tables.parquet import ParquetTables
from fedlm.simulations.data.sources.tables.user_rows import NOT_UTF8, existing_files, in_order

Form = Literal["pairs", "movielens", "csv", "jsonl", "parquet"]

_FIELDS_OF_MOVIELENS = 4  # user, item, rating, time


@dataclass(frozen=True)
class Interactions:
    """Interactions of users with items, one a line or row: one sequence of items a user.

    Every interaction counts the same, whatever rating it has. Of text files each may be compressed: .gz, .bz2 or .xz.
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """The files. With parquet a folder stands for the files in it whose names end in .parquet."""
    format: Form = field(kw_only=True)
    """Form of the files. pairs: lines `user item` in the order of time. movielens: ratings.dat, ratings.csv or u.data
    as GroupLens publishes them. csv, jsonl, parquet: tables with the fields that --user, --item and --time name.
    Reviews of Amazon are jsonl with reviewerID, asin and unixReviewTime, since 2023 with user_id, parent_asin and
    timestamp."""
    user: str | None = field(default=None, kw_only=True)
    """Name of a table's field with the user, a string or a whole number. If not given, user."""
    item: str | None = field(default=None, kw_only=True)
    """Name of a table's field with the item, a string or a whole number. If not given, item."""
    time: str | None = field(default=None, kw_only=True)
    """Name of a table's field that puts a user's items in order: whole numbers, or times such as 2026-01-31 or
    2026-01-31T18:30:00, all of one form. Items of equal time keep the table's order. If not given, all items do."""
    delimiter: str | None = field(default=None, kw_only=True)
    """The character between the fields of csv; \\t for a tab. If not given, a comma."""

    words_are_separated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        given = [name for name in ("user", "item", "time") if getattr(self, name) is not None]
        if self.format in ("pairs", "movielens") and given:
            raise ConfigurationError(
                f"{setting(given[0])} names the field of a table, and files of the format {self.format} have no names "
                "to choose; leave it out"
            )
        if self.format != "csv" and self.delimiter is not None:
            raise ConfigurationError(f"{setting('delimiter')} does nothing with the format {self.format}; leave it out")

    def files(self) -> list[Path]:
        if self.format == "parquet":
            return self._table().files()
        return existing_files(self.paths)

    def open(self, workspace: Path, progress: Progress) -> Reading:
        if self.format in ("csv", "jsonl", "parquet"):
            return self._table().open(workspace, progress)
        tables = tuple(path for path in self.paths if self.format == "movielens" and ".csv" in path.suffixes)
        if not tables:
            files = self.files()
            parts = (part for path in files for part in byte_parts(path, last_line_end))
            return Reading.of_files(files, parts, functools.partial(read_lines, self.format))
        if len(tables) < len(self.paths):
            raise DataError(
                f"{tables[0]}: found a .csv among files of other kinds, expected files of one kind. Give one kind."
            )
        return _CsvInteractions(tables, user="userId", text="movieId", order="timestamp").open(workspace, progress)

    def _table(self) -> Source:
        names: dict[str, Any] = {"user": self.user or "user", "text": self.item or "item", "order": self.time}
        if self.format == "csv":
            return _CsvInteractions(self.paths, **names, delimiter=self.delimiter or ",")
        return (_JsonInteractions if self.format == "jsonl" else _ParquetInteractions)(self.paths, **names)


def read_lines(form: Form, part: BytePart, skipped: SkippedCounts) -> Iterator[ClientText]:
    """Yield the interactions of some lines; raises DataError where a line has not the fields of its form."""
    for number, line in enumerate(part.load().split(b"\n"), part.first_line):
        if not line or line.isspace():
            continue
        place = f"{part.path}, line {number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            skipped.add(NOT_UTF8, place=place)
            continue
        if form == "movielens" and number == 1:
            _refuse_header(text, place)
        yield (_pair if form == "pairs" else _rating)(text, place)


def _pair(line: str, place: str) -> ClientText:
    fields = line.split()
    if len(fields) != 2:
        raise DataError(
            f"{place}: found {len(fields)} fields, expected two with a space between: a user and an item. Mend the "
            f"line, or give the {setting('format')} that the file has."
        )
    return ClientText(fields[0], fields[1:], place=place)


def _refuse_header(line: str, place: str) -> None:
    """Raise DataError where a line of a file of MovieLens has names of fields, not a rating."""
    fields = re.split("::|[\t,;|]", line.strip())
    if len(fields) >= _FIELDS_OF_MOVIELENS and not any(re.search(r"\d", one) for one in fields):
        raise DataError(
            f"{place}: found a header, {line.strip()[:60]!r}, expected a rating. Among files of MovieLens only "
            "ratings.csv has a header, and its name must contain .csv. Delete the line, or read a table: "
            f"{setting('format')} csv, with {setting('user')}, {setting('item')}, {setting('time')} and "
            f"{setting('delimiter')}."
        )


def _rating(line: str, place: str) -> ClientText:
    fields = line.strip().split("::" if "::" in line else "\t")
    time = fields[-1]
    if len(fields) != _FIELDS_OF_MOVIELENS or not all(fields) or not (time.isascii() and time.isdigit()):
        raise DataError(
            f"{place}: found {line[:60]!r}, expected user::item::rating::time, or these four with tabs between. Mend "
            f"the line, or give the {setting('format')} that the file has."
        )
    return in_order(ClientText(fields[0], fields[1:2], place=place), "timestamp", time)


class _ItemRows:
    """What makes a table of texts one of interactions."""

    texts_are_names: ClassVar[bool] = True
    naming = f"Name the fields with {setting('user')}, {setting('item')} and {setting('time')}."


@dataclass(frozen=True)
class _CsvInteractions(_ItemRows, CsvTables):
    """Interactions as CSV."""


@dataclass(frozen=True)
class _JsonInteractions(_ItemRows, JsonLines):
    """Interactions as JSON Lines."""


@dataclass(frozen=True)
class _ParquetInteractions(_ItemRows, ParquetTables):
    """Interactions as Parquet."""
