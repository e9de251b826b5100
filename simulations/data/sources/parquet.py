"""Your own users' text as Parquet files."""

import functools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import tyro

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.arrow_rows import arrow_errors, batch_text, check_schema
from fedlm.simulations.data.sources.base import PART_BYTES, Part, Progress, Reading
from fedlm.simulations.data.sources.user_rows import RowSettings, existing_files

BATCH_ROWS = 8192
"""Rows that are converted at once."""


@dataclass(frozen=True)
class ParquetTables(RowSettings):
    """Your own users' text as Parquet files: a row for each text, with a user (or none) and a text."""

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """The files. A folder stands for the files in it whose names end in .parquet."""

    def files(self) -> list[Path]:
        return [*self._tables(), *self.template_files()]

    def _tables(self) -> list[Path]:
        return existing_files([file for path in self.paths for file in _files_of(path)])

    def open(self, workspace: Path, progress: Progress) -> Reading:
        files = self._tables()
        rows = sum(_check_file(path, self) for path in files)
        parts = (part for path in files for part in row_parts(path, self))
        return Reading("rows", rows, parts, functools.partial(read_rows, self))


class RowPart(NamedTuple):
    """Some rows of a file.

    Rows are the row groups that hold them, or the rows themselves where they are a piece of one large row group, which
    can only be decompressed from its beginning.
    """

    path: Path
    first_row: int  # its number, from 1
    rows: list[int] | pa.RecordBatch


def row_parts(path: Path, settings: RowSettings, part_bytes: int = PART_BYTES) -> Iterator[Part]:
    """Cut a file into `RowPart`s, sized in rows: runs of row groups, or pieces of a large one.

    A part is about as large as `part_bytes` says, decompressed.
    """
    with arrow_errors(path), _open(path) as file:
        groups: list[int] = []
        first, rows, size = 1, 0, 0
        for index in range(file.num_row_groups):
            group = file.metadata.row_group(index)
            columns = (group.column(column) for column in range(group.num_columns))
            group_bytes = sum(c.total_uncompressed_size for c in columns if _is_read(c, settings))
            if groups and size + group_bytes > part_bytes:
                yield Part(RowPart(path, first, groups), rows)
                groups, first, rows, size = [], first + rows, 0, 0
            if group_bytes > part_bytes:
                batch_rows = max(1, group.num_rows * part_bytes // group_bytes)
                for batch in _batches(file, settings, [index], batch_rows):
                    yield Part(RowPart(path, first, batch), batch.num_rows)
                    first += batch.num_rows
            else:
                groups, rows, size = [*groups, index], rows + group.num_rows, size + group_bytes
        if groups:
            yield Part(RowPart(path, first, groups), rows)


def read_rows(settings: RowSettings, part: RowPart, skipped: SkippedCounts) -> Iterator[ClientText]:
    """Yield the texts of some rows; raises DataError where the file is damaged or a value is not what it should be."""
    if isinstance(part.rows, pa.RecordBatch):
        yield from batch_text(part.rows, settings, part.path, part.first_row, skipped)
        return
    first = part.first_row
    with arrow_errors(part.path), _open(part.path) as file:
        for batch in _batches(file, settings, part.rows, BATCH_ROWS):
            yield from batch_text(batch, settings, part.path, first, skipped)
            first += batch.num_rows


def _is_read(chunk: pq.ColumnChunkMetaData, settings: RowSettings) -> bool:
    """Say whether a chunk is of a column that is read, or of a field in one."""
    path = chunk.path_in_schema
    return any(path == name or path.startswith(f"{name}.") for name in settings.fields)


def _files_of(path: Path) -> list[Path]:
    if not os.path.isdir(path):  # unlike Path.is_dir, quiet where a folder may not be entered
        return [path]
    files = sorted(path.glob("*.parquet"))
    if not files:
        raise DataError(f"{path}: found a folder without a file *.parquet, expected at least one.")
    return files


def _check_file(path: Path, settings: RowSettings) -> int:
    """Check a file's columns; return how many rows it has."""
    with arrow_errors(path), _open(path) as file:
        check_schema(file.schema_arrow, settings, path)
        return file.metadata.num_rows


def _open(path: Path) -> pq.ParquetFile:
    return pq.ParquetFile(path, buffer_size=1 << 20)


def _batches(file: pq.ParquetFile, settings: RowSettings, row_groups: list[int], rows: int) -> Iterable[pa.RecordBatch]:
    return file.iter_batches(rows, row_groups=row_groups, columns=settings.fields, use_threads=False)
