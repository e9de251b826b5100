"""Tables of Arrow, from Parquet files and from Arrow streams: cut into parts of rows, and these as texts.

The main process cuts, and sends each part along as an Arrow stream of its own: what has to be read from a file's
beginning is then read once. `pyarrow.dataset` reads no streams, and of a Parquet file it holds
four times as much in memory.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.base import PART_BYTES, Part, Reading
from fedlm.simulations.data.sources.orders import column_orders
from fedlm.simulations.data.sources.tables.byte_parts import unreadable
from fedlm.simulations.data.sources.tables.user_rows import NOT_UTF8, RowSettings, check_columns, row_text

BATCH_ROWS = 8192
"""At most so many rows are converted at once."""
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class Table(NamedTuple):
    """One file."""

    path: Path
    split: str | None = None  # into which its rows belong, where no column says it


class RowPart(NamedTuple):
    """Some rows of a table, in the columns that are read."""

    table: Table
    first_row: int  # its number, from 1
    stream: pa.Buffer  # of Arrow


class Form(NamedTuple):
    """How files of one kind are read."""

    measure: Callable[[Path], tuple[pa.Schema, int]]  # the columns, and how many rows there are
    batches: Callable[[Path, RowSettings, int], Iterator[pa.RecordBatch]]  # none much larger than so many bytes


def open_tables(form: Form, tables: Sequence[Table], settings: RowSettings) -> Reading:
    """Check the columns of all tables, and cut them into parts; raises DataError where they do not fit."""
    total = 0
    for path, _ in tables:
        with arrow_errors(path):
            schema, rows = form.measure(path)
        check_schema(schema, settings, path)
        total += rows
    parts = (part for table in tables for part in row_parts(form, table, settings))
    return Reading("rows", total, parts, functools.partial(read_rows, settings))


def row_parts(form: Form, table: Table, settings: RowSettings, part_bytes: int = PART_BYTES) -> Iterator[Part]:
    """Cut a table into `RowPart`s of about so many bytes, sized in rows."""
    first, rows, size = 1, 0, 0
    pieces: list[pa.RecordBatch] = []
    with arrow_errors(table.path):
        for batch in form.batches(table.path, settings, part_bytes):
            step = min(BATCH_ROWS, max(1, batch.num_rows * part_bytes // max(1, batch.nbytes)))
            for piece in (batch.slice(start, step) for start in range(0, batch.num_rows, step)):
                if pieces and size + piece.nbytes > part_bytes:
                    yield Part(RowPart(table, first, _stream_of(pieces)), rows)
                    first, rows, size, pieces = first + rows, 0, 0, []
                pieces.append(piece)
                rows, size = rows + piece.num_rows, size + piece.nbytes
        if pieces:
            yield Part(RowPart(table, first, _stream_of(pieces)), rows)


def read_rows(settings: RowSettings, part: RowPart, skipped: SkippedCounts) -> Iterator[ClientText]:
    """Yield the texts of some rows; raises DataError where a value is not what it should be."""
    first = part.first_row
    for batch in pa.ipc.open_stream(part.stream):
        yield from _batch_text(batch, settings, part.table, first_row=first, skipped=skipped)
        first += batch.num_rows


def _stream_of(pieces: Sequence[pa.RecordBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pieces[0].schema) as stream:
        for piece in pieces:
            stream.write_batch(piece)
    return sink.getvalue()


def _measure_parquet(path: Path) -> tuple[pa.Schema, int]:
    with pq.ParquetFile(path) as file:
        return file.schema_arrow, file.metadata.num_rows


def _parquet_batches(path: Path, settings: RowSettings, part_bytes: int) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, buffer_size=1 << 20) as file:
        rows = BATCH_ROWS
        for index in range(file.num_row_groups):
            group = file.metadata.row_group(index)
            columns = (group.column(column) for column in range(group.num_columns))
            size = sum(column.total_uncompressed_size for column in columns if _is_read(column, settings))
            rows = min(rows, max(1, group.num_rows * part_bytes // max(1, size)))
        yield from file.iter_batches(rows, columns=settings.fields, use_threads=False)


def _is_read(chunk: pq.ColumnChunkMetaData, settings: RowSettings) -> bool:
    """Say whether a chunk is of a column that is read, or of a field in one."""
    path = chunk.path_in_schema
    return any(path == name or path.startswith(f"{name}.") for name in settings.fields)


def _measure_stream(path: Path) -> tuple[pa.Schema, int]:
    with pa.memory_map(str(path)) as file:
        stream = pa.ipc.open_stream(file)
        rows = sum(batch.num_rows for batch in stream)
    # A stream that was cut off between two of its batches can only be told by this.
    with path.open("rb") as end:
        end.seek(-len(_END_OF_STREAM), 2)
        if end.read() != _END_OF_STREAM:
            raise DataError(f"{path}: is cut off: found no end of the Arrow stream. Fetch the file again.")
    return stream.schema, rows


def _stream_batches(path: Path, settings: RowSettings, part_bytes: int) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as file:
        for batch in pa.ipc.open_stream(file):
            read = batch.select(settings.fields)
            for column in read.columns:  # or a damaged offset would be followed to anywhere in memory
                _as_bytes(column).validate(full=True)
            yield read


def _as_bytes(column: pa.Array) -> pa.Array:
    """View strings as bytes, which need not be UTF-8."""
    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    return column.view(pa.large_binary()) if pa.types.is_large_string(column.type) else column


PARQUET = Form(_measure_parquet, _parquet_batches)
ARROW_STREAM = Form(_measure_stream, _stream_batches)


@contextmanager
def arrow_errors(path: Path) -> Iterator[None]:
    """Turn what Arrow or the operating system raises on a file that is missing or damaged into a DataError."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) from error


def check_schema(schema: pa.Schema, settings: RowSettings, path: Path) -> None:
    """Raise DataError unless a table has the columns that are read, each once, of types that can be read."""
    check_columns(schema.names, settings, str(path))
    texts = (settings.prompt, settings.completion) if settings.has_completions else (settings.text,)
    names = (_is_name, "strings or whole numbers")
    for name, fits, expected in (
        (settings.user, *names),
        *((name, *(names if settings.texts_are_names else (_is_string, "strings"))) for name in texts),
        (settings.messages, pa.types.is_nested, "lists of messages"),
        (settings.split, _is_string, "strings"),
        (settings.order, _is_order, "whole numbers or times"),
    ):
        if name is None:
            continue
        found = schema.field(name).type
        values = found.value_type if pa.types.is_dictionary(found) else found
        if not (fits(values) or pa.types.is_null(values)):
            raise DataError(
                f"{path}: column {name!r} is of type {found}, expected {expected}. "
                "Name another column, or convert this one."
            )


def _batch_text(
    batch: pa.RecordBatch, settings: RowSettings, table: Table, *, first_row: int, skipped: SkippedCounts
) -> Iterator[ClientText]:
    names = settings.fields
    columns = [_values(batch.column(name), as_order=name == settings.order) for name in names]
    for number, values in enumerate(zip(*columns, strict=True), first_row):
        place = f"{table.path}, row {number}"
        if any(isinstance(value, bytes) for value in values):
            skipped.add(NOT_UTF8, place=place)
        else:
            yield from row_text(dict(zip(names, values, strict=True)), settings, place, skipped, split=table.split)


def _values(column: pa.Array, as_order: bool) -> list[object]:
    """Return a column's values; strings that are not UTF-8 as bytes."""
    if as_order:
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        if pa.types.is_temporal(column.type):
            return list(column_orders(column))
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_decoded(value) for value in column.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()]


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def _is_string(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)


def _is_name(type_: pa.DataType) -> bool:
    return _is_string(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_)


def _is_order(type_: pa.DataType) -> bool:
    return _is_name(type_) or pa.types.is_timestamp(type_) or pa.types.is_date(type_)
