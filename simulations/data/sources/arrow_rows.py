"""Rows of Arrow tables: whether the columns' types fit, and their values as Python's."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.byte_parts import unreadable
from fedlm.simulations.data.sources.orders import column_orders
from fedlm.simulations.data.sources.user_rows import NOT_UTF8, RowSettings, check_columns, row_text


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


def batch_text(
    batch: pa.RecordBatch,
    settings: RowSettings,
    path: Path,
    first_row: int,
    skipped: SkippedCounts,
    split: str | None = None,
) -> Iterator[ClientText]:
    """Yield the texts of some rows, the columns of which `check_schema` has seen.

    The first row has the number `first_row` in its table, from 1; the rows belong to `split` where no column says it.
    """
    names = settings.fields
    columns = [_values(batch.column(name), as_order=name == settings.order) for name in names]
    for number, values in enumerate(zip(*columns, strict=True), first_row):
        place = f"{path}, row {number}"
        if any(isinstance(value, bytes) for value in values):
            skipped.add(NOT_UTF8, place=place)
        else:
            yield from row_text(dict(zip(names, values, strict=True)), settings, place, skipped, split)


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
