import gzip
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.importing import import_text
from fedlm.simulations.data.sources.tables.byte_parts import last_line_end
from fedlm.simulations.data.sources.tables.jsonl import JsonLines, read_lines
from fedlm.simulations.data.sources.tables.user_rows import RowSettings, document_id
from tests.simulations.data.sources.source_reading import byte_parts_of, read

GOOD = b'{"user": "a", "text": "Some text."}\n'


def read_bytes(tmp_path, data, **settings):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data)
    return read(JsonLines((path,), **settings))


def read_row(tmp_path, row, **settings):
    return read_bytes(tmp_path, json.dumps(row).encode(), **settings)


def test_rows_become_texts(tmp_path):
    row = {"user": 7, "text": " One thing.\n Another\tthing. ", "when": 12, "part": "dev", "more": [{}]}
    (text,), skipped = read_row(tmp_path, row, order="when", split="part")
    assert text == ClientText("7", ["One thing.", "Another thing."], "heldout", 12)
    assert skipped.as_dict() == {}
    (text,), _ = read_row(tmp_path, row, examples="texts")
    assert text == ClientText("7", [" One thing.\n Another\tthing. "])


@pytest.mark.parametrize(
    "data",
    [
        GOOD,
        GOOD.rstrip(),
        GOOD.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + GOOD,
        b"\xef\xbb\xbf\r\n" + GOOD,
        b"\n \t\n" + GOOD + b"\r\n\n",
    ],
)
def test_marks_and_ends_of_lines_do_not_matter(tmp_path, data):
    assert read_bytes(tmp_path, data)[0] == [ClientText("a", ["Some text."])]


def test_users_are_strings_or_whole_numbers(tmp_path):
    users = {"a": "a", " 12 ": " 12 ", "12.0": "12.0", 12: "12", 13.0: "13", -0.0: "0", 10**30: str(10**30)}
    for user, expected in users.items():
        (text,), _ = read_row(tmp_path, {"user": user, "text": "Some text."})
        assert text.client_id == expected


@pytest.mark.parametrize(
    ("field", "expected", "values"),
    [
        ("user", "a string or a whole number", [True, 12.5, 2.0**53, math.inf, [], {}]),
        ("when", "a whole number of 64 bits", [None, "x", "2026-13-01", 1.5, True, math.nan, 2**63, -(2**63) - 1, [1]]),
        ("part", "one of train, heldout, validation", [None, 3, "training", ["train"]]),
    ],
)
def test_fields_of_other_kinds_are_named(tmp_path, field, expected, values):
    for value in values:
        row = {"user": "a", "text": "Some text.", "when": 1, "part": "train"} | {field: value}
        with pytest.raises(DataError, match=rf"rows.jsonl, line 1: '{field}' is .*, expected {expected}"):
            read_row(tmp_path, row, order="when", split="part")


def test_what_is_left_out_is_counted(tmp_path):
    rows = [{"user": user, "text": "Some text."} for user in (None, "", math.nan)]
    rows += [{"user": "a", "text": text} for text in (None, "", " \n ", math.nan)]
    data = b'{"user": "a", "text": "\xff"}\n' + GOOD + b"\n".join(json.dumps(row).encode() for row in rows)
    texts, skipped = read_bytes(tmp_path, data)
    assert len(texts) == 1
    assert skipped.as_dict() == {"bytes that are not UTF-8": 1, "empty text": 4, "row without a user": 3}
    places = {reason: place.rpartition(", ")[2] for reason, place in skipped.first_places().items()}
    assert places == {"bytes that are not UTF-8": "line 1", "empty text": "line 6", "row without a user": "line 3"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"user": "a"', "found no JSON .* Expected one JSON object a line"),
        (b'{"user": "a", "text": "A."} x', "found no JSON"),
        (b"[" * 100_000, "found no JSON"),
        (b'{"user": ' + b"1" * 5000 + b', "text": "A."}', "found no JSON"),
        (b'["a", "b"]', "found list, expected a JSON object"),
        (b'{"text": "A."}', "has no field 'user', only 'text'. Name the fields with user"),
        (b"{}", "has no field 'user', only none"),
        (b'{"user": "a", "text": 5}', "'text' is 5, expected a string"),
        (b'{"user": "a", "text": {"long": "' + b"x" * 500 + b'"}}', r"'text' is .{57}\.\.\., expected a string"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    with pytest.raises(DataError, match=f"rows.jsonl, line 3: {message}"):
        read_bytes(tmp_path, GOOD + b"\n" + line)


def test_orders_are_whole_numbers_or_times_in_nanoseconds_as_those_of_parquet(tmp_path):
    for when, order in {
        -5: -5,
        3.0: 3,
        "17": 17,
        2**63 - 1: 2**63 - 1,
        "1970-01-01": 0,
        "1970-01-02 00:00:01": 86_401_000_000_000,
        "1970-01-02T01:00:01.000002+01:00": 86_401_000_002_000,
        "1969-12-31T23:59:59.999999Z": -1000,
        "1969-12-31T23:59:59.999999999Z": -1,
    }.items():
        (text,), _ = read_row(tmp_path, {"user": "a", "text": "Some text.", "when": when}, order="when")
        assert text.order == order


def test_a_path_that_is_no_file_or_named_twice_is_refused(tmp_path):
    for path, found in [
        (tmp_path / "gone", "nothing"),
        (tmp_path, "a folder"),
        (Path("/dev/null"), "not a regular file"),
    ]:
        with pytest.raises(DataError, match=f"found {found}, expected a file to import"):
            JsonLines((path,)).files()
    with pytest.raises(DataError, match="no file is named"):
        JsonLines(()).files()
    with pytest.raises(DataError, match=r"cannot be read .File name too long"):
        JsonLines((tmp_path / ("x" * 5000),)).files()
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
    for again in (tmp_path / "a.jsonl", tmp_path / ".." / tmp_path.name / "a.jsonl", tmp_path / "link.jsonl"):
        with pytest.raises(DataError, match=r"a.jsonl: is named 2 times"):
            JsonLines((tmp_path / "a.jsonl", again)).files()


@given(st.lists(st.text(st.sampled_from('ab"\\\n\r\u2028é. '), max_size=8)), st.integers(1, 40), st.booleans())
def test_tiny_parts_give_the_same_texts(texts, part_bytes, ascii_only):
    rows = [{"user": "a", "text": text} for text in texts]
    data = "\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows).encode()
    settings = RowSettings(examples="texts")
    skipped = SkippedCounts()
    parts = byte_parts_of(data, last_line_end, part_bytes)
    found = [text for part in parts for text in read_lines(settings, part, skipped)]
    assert [text.sentences for text in found] == [[text] for text in texts if text.strip()]
    assert sum(skipped.as_dict().values()) == sum(not text.strip() for text in texts)


def test_rows_without_users_are_documents_whose_copies_are_in_one_split_unless_the_source_says_otherwise(tmp_path):
    parts = ("train", "train", "dev", "test")
    rows = [{"text": f"Some text {number}. Twice.", "part": part} for number in range(10) for part in parts]
    path = tmp_path / "part.json.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    texts, skipped = read(JsonLines((path,), user=None))
    assert [text.sentences for text in texts] == [[row["text"]] for row in rows]
    assert [text.client_id for text in texts] == [document_id(row["text"].split(), None) for row in rows]
    assert skipped.as_dict() == {}
    texts, _ = read(JsonLines((path,), user=None, examples="sentences"))
    assert texts[0].sentences == ["Some text 0.", "Twice."]
    with pytest.raises(DataError, match=r"line 1: has no field 'user'.* where texts have no users, say user=None"):
        read(JsonLines((path,)))
    source = JsonLines((path,), user=None, split="part")
    assert len({text.client_id for text in read(source)[0]}) == 30
    header = import_text("jsonl", source, tmp_path / "store", workers=1).header
    found = {name: (split.clients, split.examples) for name, split in header.splits.items()}
    assert found == {"train": (10, 20), "heldout": (10, 10), "test": (10, 10)}
