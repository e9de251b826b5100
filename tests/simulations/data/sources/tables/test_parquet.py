import datetime
import functools
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.sources.tables import arrow_tables
from fedlm.simulations.data.sources.tables.arrow_tables import PARQUET, Table, row_parts
from fedlm.simulations.data.sources.tables.parquet import ParquetTables
from tests.simulations.data.sources.source_reading import read

NOT_UTF8 = pa.array([b"Some text.", b"\xff", None]).view(pa.string())


def read_table(tmp_path, columns, **settings):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), path)
    return read(ParquetTables((path,), **settings))


def many_rows(rows):
    return pa.table(
        {"user": [f"u{i % 7}" for i in range(rows)], "text": [f"text {i} {'x' * 100}" for i in range(rows)]}
    )


@pytest.mark.parametrize(
    "user",
    [
        pa.array(["7", "8", None, ""]),
        pa.array(["7", "8", None, ""], pa.large_string()),
        pa.array(["7", "8", None, ""]).dictionary_encode(),
        pa.array([7, 8, None, None], pa.uint8()),
        pa.array([7, 8, None, None], pa.int64()),
        pa.array([7.0, 8.0, None, math.nan]),
    ],
)
@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_columns_of_many_types(tmp_path, user, type_):
    text = pa.array(["One. Two.", None, "Three.", "Four."]).cast(type_)
    texts, skipped = read_table(tmp_path, {"user": user, "text": text, "more": [[1], [2], [3], [4]]})
    assert texts == [ClientText("7", ["One.", "Two."])]
    assert skipped.as_dict() == {"empty text": 1, "row without a user": 2}
    assert skipped.first_places()["row without a user"].endswith("rows.parquet, row 3")


@pytest.mark.parametrize(
    "when",
    [
        pa.array([2, 1]),
        pa.array(["2", "1"]),
        pa.array([datetime.date(2018, 1, 2), datetime.date(2018, 1, 1)]),
        pa.array([2, 1], pa.timestamp("ns")),
        pa.array([2, 1], pa.timestamp("s", "Europe/Berlin")),
    ],
)
def test_rows_have_splits_and_orders(tmp_path, when):
    columns = {"user": ["a", "a"], "text": ["Later.", "Before."], "part": ["test", "valid"], "when": when}
    texts, _ = read_table(tmp_path, columns, split="part", order="when")
    assert [text.split for text in texts] == ["test", "heldout"]
    assert texts[0].order >= texts[1].order


def test_times_of_all_units_have_one_order(tmp_path):
    time = datetime.datetime(2018, 1, 1)
    for unit in ("s", "ms", "us", "ns"):
        columns = {"user": ["a"], "text": ["A."], "when": pa.array([time], pa.timestamp(unit))}
        (text,), _ = read_table(tmp_path, columns, order="when")
        assert text.order == 1514764800_000_000_000


def test_text_that_is_not_unicode_is_counted(tmp_path):
    texts, skipped = read_table(tmp_path, {"user": ["a", "b", "c"], "text": NOT_UTF8})
    assert [text.client_id for text in texts] == ["a"]
    assert skipped.as_dict() == {"bytes that are not UTF-8": 1, "empty text": 1}
    texts, skipped = read_table(tmp_path, {"user": ["a", "b", "c"], "text": NOT_UTF8.dictionary_encode()})
    assert len(texts) == skipped.as_dict()["bytes that are not UTF-8"] == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"author": ["a"], "text": ["A."]}, "has no field 'user', only 'author', 'text'. Name the fields with user"),
        ({"user": ["a"], "text": [5]}, "column 'text' is of type int64, expected strings"),
        ({"user": ["a"], "text": [b"A."]}, "column 'text' is of type binary, expected strings"),
        ({"user": [True], "text": ["A."]}, "column 'user' is of type bool, expected strings or whole numbers"),
        ({"user": [["a"]], "text": ["A."]}, "column 'user' is of type list"),
        ({"user": [1.5], "text": ["A."]}, "row 1: 'user' is 1.5, expected a string or a whole number"),
    ],
)
def test_wrong_columns_are_named(tmp_path, columns, message):
    with pytest.raises(DataError, match=f"rows.parquet.* {message}"):
        read_table(tmp_path, columns)


def test_wrong_splits_and_orders_are_named(tmp_path):
    columns = {"user": ["a"], "text": ["A."], "part": [1], "when": [datetime.time(1)]}
    with pytest.raises(DataError, match="column 'part' is of type int64, expected strings"):
        read_table(tmp_path, columns, split="part")
    with pytest.raises(DataError, match=r"column 'when' is of type time64.*, expected whole numbers or times"):
        read_table(tmp_path, columns, order="when")


def test_two_columns_of_a_name_are_refused(tmp_path):
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 3, ["user", "text", "text"]), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="found 2 columns 'text', expected one"):
        read(ParquetTables((tmp_path / "t.parquet",)))


@pytest.mark.parametrize("part_bytes", [100, 3000, 40_000, 1 << 20])
@pytest.mark.parametrize("group_rows", [10, 1000])
def test_row_groups_are_gathered_or_divided(tmp_path, monkeypatch, part_bytes, group_rows):
    table = many_rows(1000)
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=group_rows)
    monkeypatch.setattr(arrow_tables, "row_parts", functools.partial(row_parts, part_bytes=part_bytes))
    source = ParquetTables((tmp_path / "rows.parquet",))
    texts, _ = read(source)
    assert [(text.client_id, *text.sentences) for text in texts] == list(zip(*table.to_pydict().values(), strict=True))
    parts = list(row_parts(PARQUET, Table(tmp_path / "rows.parquet"), source, part_bytes))
    assert sum(part.size for part in parts) == source.open(tmp_path, print).total == 1000
    firsts = [part.content.first_row for part in parts]
    assert firsts == [1 + sum(part.size for part in parts[:index]) for index in range(len(parts))]
    assert max(part.size for part in parts) <= max(1, part_bytes // 100)
    assert len(parts) <= 1 + 3 * 1000 * 130 // part_bytes


def test_only_the_columns_needed_are_read(tmp_path):
    table = many_rows(100).append_column("large", pa.array(["y" * 10_000] * 100))
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=10, use_dictionary=False)
    source = ParquetTables((tmp_path / "rows.parquet",))
    assert len(list(row_parts(PARQUET, Table(tmp_path / "rows.parquet"), source, 50_000))) == 1


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(many_rows(1000), path, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    damaged = [whole[:-10], whole[: len(whole) // 2], b"", b"user,text\n", whole[:4] + b"\xff" * 3000 + whole[3004:]]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"rows.parquet: is damaged or cut off"):
            read(ParquetTables((path,)))
