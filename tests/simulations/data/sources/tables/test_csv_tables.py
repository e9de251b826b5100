import csv
import functools
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.tables import csv_tables
from fedlm.simulations.data.sources.tables.csv_tables import CsvTables, QuotedRowEnd, read_rows
from tests.simulations.data.sources.source_reading import byte_parts_of, read

HEADER = b"id,user,text\n"
MEMORY = Path("memory")


def read_bytes(tmp_path, data, name="rows.csv", **settings):
    path = tmp_path / name
    path.write_bytes(data)
    return read(CsvTables((path,), **settings))


def read_in_parts(data, part_bytes, settings):
    """Return the texts of a table of user and text that is read in small parts, and the counts of what is left out."""
    skipped = SkippedCounts()
    parts = byte_parts_of(data, QuotedRowEnd(), part_bytes)
    headers = {MEMORY: ["user", "text"]}
    return [text for part in parts for text in read_rows(settings, headers, part, skipped)], skipped


@pytest.mark.parametrize(
    "data",
    [
        HEADER + b"1,a,Some text.\n",
        HEADER + b"1,a,Some text.",
        b"\xef\xbb\xbf" + HEADER + b"\n\n1,a,Some text.\n\n",
        b'\xef\xbb\xbf"user","text"\r\n"a","Some text."\r\n',
        b'user,text,"a\nb"\na,"Some\r\ntext.",""\n',
        b'text,user\n"Some text.",a\n',
    ],
)
def test_rows_become_texts(tmp_path, data):
    assert read_bytes(tmp_path, data)[0] == [ClientText("a", ["Some text."])]


def test_tabs_and_other_delimiters(tmp_path):
    for delimiter in ("\\t", "\t", ";", "|", "^", "]", "-", "\\"):
        character = delimiter.replace("\\t", "\t")
        data = (HEADER.decode() + '1,a,"One, ""two,"" three"\n').replace(",", character).encode()
        (text,), _ = read_bytes(tmp_path, data, delimiter=delimiter, examples="texts")
        assert text.sentences == ['One, "two," three'.replace(",", character)]
    for delimiter in ("", ",,", '"', "\n", "§"):
        with pytest.raises(ConfigurationError, match="must be one ASCII character"):
            CsvTables((MEMORY,), delimiter=delimiter)
    (text,), _ = read_bytes(tmp_path, HEADER + b'1,a,"' + b"x" * 300_000 + b'"\n', examples="texts")
    assert text.sentences == ["x" * 300_000]


def test_without_quotes_a_mark_is_a_character(tmp_path):
    data = b'user\ttext\na\t"Some" text.\nb\tA 5" pipe.\n'
    texts, _ = read_bytes(tmp_path, data, delimiter="\\t", quotes=False)
    assert [text.sentences for text in texts] == [['"Some" text.'], ['A 5" pipe.']]


def test_what_is_left_out_is_counted(tmp_path):
    data = HEADER + b'1,,"Some\n\ntext."\n2,a,\n\n3,a,"\xff\n"\n4,\xe9,Some text.\n5,a,"\0"\n6,"a", \n'
    (text,), skipped = read_bytes(tmp_path, data)
    assert text.sentences == ["\0"]
    assert skipped.as_dict() == {"bytes that are not UTF-8": 2, "empty text": 2, "row without a user": 1}
    places = {reason: place.rpartition(", ")[2] for reason, place in skipped.first_places().items()}
    assert places == {"bytes that are not UTF-8": "line 7", "empty text": "line 5", "row without a user": "line 2"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "found nothing, expected a header"),
        (b"\n" + HEADER, "found nothing, expected a header"),
        (b"id,name\n", "has no field 'user', only 'id', 'name'. Name the fields with user.*with delimiter what"),
        (HEADER.replace(b",", b";"), "has no field 'user', only 'id;user;text'"),
        (b"user,text,user\n", "found 2 columns 'user', expected one"),
        (b"user,text,\xff\n", "found bytes that are not UTF-8, expected a header"),
        (b"user,text\ra,b\r", "found no row of a table"),
        (b'user,"text\n' * 3, "found a quotation mark that is not closed"),
    ],
)
def test_a_wrong_header_is_named(tmp_path, data, message):
    with pytest.raises(DataError, match=f"rows.csv, line 1: {message}"):
        read_bytes(tmp_path, data)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"3,a", "found a row of 2 fields, expected 3"),
        (b"3,a,b,c", "found a row of 4 fields, expected 3"),
        (b"3,a,b\rc,d", "found no row of a table"),
        (b'3,a,A 5" pipe', "found a quotation mark that is not closed, or is closed inside a field.*pass quotes=False"),
        (b'3,a,"A" pipe', "found a quotation mark that is not closed, or is closed inside"),
        (b'3,a, "A pipe"', "found a quotation mark that is not closed, or is closed inside"),
        (b'3,a,"A pipe', "found a quotation mark that is not closed"),
    ],
)
@pytest.mark.parametrize("after", [b"", b'\n4,b,"More."\n'])
@pytest.mark.parametrize("part_bytes", [5, 1 << 20])
def test_a_wrong_row_is_named(tmp_path, monkeypatch, row, message, after, part_bytes):
    monkeypatch.setattr(csv_tables, "byte_parts", functools.partial(csv_tables.byte_parts, part_bytes=part_bytes))
    with pytest.raises(DataError, match=f"rows.csv, line 6: {message}"):
        read_bytes(tmp_path, HEADER + b'1,a,"Some\n\ntext."\n\n' + row + after)


table_text = st.text(st.sampled_from('ab",;\n\r\u2028é\0 '), max_size=8)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), table_text), max_size=10),
    st.integers(1, 40),
    st.sampled_from([("\r\n", csv.QUOTE_MINIMAL), ("\r\n", csv.QUOTE_ALL), ("\n", csv.QUOTE_ALL)]),
)
def test_tiny_parts_give_the_same_texts(rows, part_bytes, style):
    file = io.StringIO()
    csv.writer(file, lineterminator=style[0], quoting=style[1]).writerows([("user", "text"), *rows])
    settings = CsvTables((MEMORY,), examples="texts")
    texts, skipped = read_in_parts(file.getvalue().encode(), part_bytes, settings)
    assert [(text.client_id, *text.sentences) for text in texts] == [row for row in rows if row[1].strip()]
    assert sum(skipped.as_dict().values()) == sum(not text.strip() for _, text in rows)


def outcome(data, part_bytes):
    try:
        return read_in_parts(data, part_bytes, CsvTables((MEMORY,), examples="texts"))
    except DataError:
        return "refused"


@given(st.lists(st.sampled_from([b'"', b",", b"\n", b"\r", b"a", b"\xff"]), max_size=30), st.integers(1, 10))
def test_any_bytes_have_the_same_outcome_in_tiny_parts(pieces, part_bytes):
    data = b"user,text\n" + b"".join(pieces)
    assert outcome(data, part_bytes) == outcome(data, 1000)
