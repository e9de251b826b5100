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


def read_table(tmp_path, columns, **settings):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), path)
    return read(ParquetTables((path,), **settings))


def many_rows(rows):
    return pa.table(
        {"user": [f"u{i % 7}" for i in range(rows)], "text": [f"text {i} {'x' * 100}" for i in range(rows)]}
    )


USERS = [
    pa.array(["7", "8", None, ""]),
    pa.array(["7", "8", None, ""], pa.large_string()),
    pa.array(["7", "8", None, ""]).dictionary_encode(),
    pa.array([7, 8, None, None], pa.uint8()),
    pa.array([7, 8, None, None], pa.int64()),
    pa.array([7.0, 8.0, None, math.nan]),
]


def test_columns_of_many_types(tmp_path):
    for type_ in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        text = pa.array(["One. Two.", None, "Three.", "Four."]).cast(type_)
        for user in USERS:
            texts, skipped = read_table(tmp_path, {"user": user, "text": text, "more": [[1], [2], [3], [4]]})
            assert texts == [ClientText("7", ["One.", "Two."])]
            assert skipped.as_dict() == {"empty text": 1, "row without a user": 2}
            assert skipped.first_places()["row without a user"].endswith("rows.parquet, row 3")
    not_unicode = pa.array([b"Some text.", b"\xff", None]).view(pa.string())
    for text in (not_unicode, not_unicode.dictionary_encode()):
        texts, skipped = read_table(tmp_path, {"user": ["a", "b", "c"], "text": text})
        assert [text.client_id for text in texts] == ["a"]
        assert skipped.as_dict() == {"bytes that are not UTF-8": 1, "empty text": 1}


def test_rows_have_splits_and_orders(tmp_path):
    for when in (
        pa.array([2, 1]),
        pa.array(["2", "1"]),
        pa.array([datetime.date(2018, 1, 2), datetime.date(2018, 1, 1)]),
        pa.array([2, 1], pa.timestamp("ns")),
        pa.array([2, 1], pa.timestamp("s", "Europe/Berlin")),
    ):
        columns = {"user": ["a", "a"], "text": ["Later.", "Before."], "part": ["test", "valid"], "when": when}
        texts, _ = read_table(tmp_path, columns, split="part", order="when")
        assert [text.split for text in texts] == ["test", "heldout"]
        assert texts[0].order > texts[1].order
    for unit in ("s", "ms", "us", "ns"):
        when = pa.array([datetime.datetime(2018, 1, 1)], pa.timestamp(unit))
        (text,), _ = read_table(tmp_path, {"user": ["a"], "text": ["A."], "when": when}, order="when")
        assert text.order == 1514764800_000_000_000


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"author": ["a"], "user": None},
            "has no field 'user', only 'text', 'part', 'author'. Name the fields with user",
        ),
        ({"text": [5]}, "column 'text' is of type int64, expected strings"),
        ({"text": [b"A."]}, "column 'text' is of type binary, expected strings"),
        ({"user": [True]}, "column 'user' is of type bool, expected strings or whole numbers"),
        ({"user": [["a"]]}, "column 'user' is of type list"),
        ({"user": [1.5]}, "row 1: 'user' is 1.5, expected a string or a whole number"),
        ({"part": [1]}, "column 'part' is of type int64, expected strings"),
        ({"when": [datetime.time(1)]}, "column 'when' is of type time64.*, expected whole numbers or times"),
    ],
)
def test_wrong_columns_are_named(tmp_path, columns, message):
    columns = {"user": ["a"], "text": ["A."], "part": ["train"]} | columns
    columns = {name: column for name, column in columns.items() if column is not None}
    with pytest.raises(DataError, match=f"rows.parquet.* {message}"):
        read_table(tmp_path, columns, split="part", order="when" if "when" in columns else None)


@pytest.mark.parametrize(("part_bytes", "group_rows"), [(100, 1000), (3000, 10), (40_000, 1000), (1 << 20, 10)])
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


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(many_rows(1000), path, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    damaged = [whole[:-10], whole[: len(whole) // 2], b"", b"user,text\n", whole[:4] + b"\xff" * 3000 + whole[3004:]]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"rows.parquet: is damaged or cut off"):
            read(ParquetTables((path,)))
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 3, ["user", "text", "text"]), path)
    with pytest.raises(DataError, match="found 2 columns 'text', expected one"):
        read(ParquetTables((path,)))
    # Only columns that are needed count for the size of parts.
    table = many_rows(100).append_column("large", pa.array(["y" * 10_000] * 100))
    pq.write_table(table, path, row_group_size=10, use_dictionary=False)
    assert len(list(row_parts(PARQUET, Table(path), ParquetTables((path,)), 50_000))) == 1
