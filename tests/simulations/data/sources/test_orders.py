"""What puts a user's rows in order: exact to the nanosecond, and of one form in the whole of a column."""

import datetime
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.grouping import NUM_GROUPS, read_clients, write_run
from fedlm.simulations.data.importing import import_text
from fedlm.simulations.data.recommendation.importing import import_recommendation
from fedlm.simulations.data.recommendation.settings import RecommendationSettings
from fedlm.simulations.data.sources.interactions import Interactions
from fedlm.simulations.data.sources.tables.jsonl import JsonLines
from fedlm.simulations.data.sources.tables.parquet import ParquetTables
from fedlm.simulations.data.store.token_store import TokenStore

SECOND = 10**9
UNIX = 1_769_880_600  # 31 January 2026, 17:30 UTC


def write(path, times):
    """A file of JSON Lines, in which each user writes at each of the times."""
    rows = [{"user": f"u{n}", "text": f"word{k}", "when": time} for n in range(30) for k, time in enumerate(times)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def imported(tmp_path, *files, source=JsonLines):
    import_text("made up", source(files, order="when"), tmp_path / "store", workers=1, overwrite=True)
    store = TokenStore.open(tmp_path / "store")
    split = store.split("train")
    return [store.tokenizer.decode(row[1:2]) for row in split.sequences(0, 2)]


def test_times_are_put_in_order_to_the_nanosecond(tmp_path):
    times = [f"2026-01-31T18:30:00.{rest}" for rest in ("123456789", "123456788", "12345678701", "1234567875")]
    with pytest.raises(DataError, match=r"line 3: 'when' is '2026-.*', expected .* nine digits of a second at most"):
        imported(tmp_path, write(tmp_path / "finer.jsonl", times))
    times[2:] = ["2026-01-31T18:30:00.123456787", "20260131T183000.12345678600"]
    assert imported(tmp_path, write(tmp_path / "rows.jsonl", times)) == ["word3", "word2", "word1", "word0"]
    when = pa.array([1_769_880_600_123_456_789 - k for k in range(3)] * 30, pa.timestamp("ns"))
    users, texts = [f"u{n}" for n in range(30) for _ in range(3)], ["word0", "word1", "word2"] * 30
    pq.write_table(pa.table({"user": users, "text": texts, "when": when}), tmp_path / "rows.parquet")
    assert imported(tmp_path, tmp_path / "rows.parquet", source=ParquetTables) == ["word2", "word1", "word0"]


def test_far_times_keep_their_nanoseconds(tmp_path):
    orders = [253_402_300_799 * SECOND + 999_999_999, -62_135_596_800 * SECOND, -1, 0, 2**63 - 1, -(2**63)]
    write_run(tmp_path / "run", [ClientText("a", [str(order)], order=order) for order in orders], SkippedCounts())
    ((_, texts),) = read_clients([tmp_path / "run"], range(NUM_GROUPS))
    assert [text.order for text in texts] == sorted(orders)
    assert [int(text.sentences[0]) for text in texts] == sorted(orders)


MIXED = [
    (["20260131T183000", "20260201"], "20260201", "20260131T183000"),
    (["2026-01-31T18:30:00", str(UNIX)], "2026-01-31T18:30:00", str(UNIX)),
    ([UNIX, "2026-01-31"], "2026-01-31", UNIX),
    (["2026-01-31", "2026-01-31T18:30:00"], "2026-01-31T18:30:00", "2026-01-31"),
    (["2026-01-31T18:30:00", "2026-01-31T18:30:00+01:00"], "2026-01-31T18:30:00+01:00", "2026-01-31T18:30:00"),
    ([UNIX, UNIX * 1000, 0], UNIX * 1000, UNIX),
    ([UNIX * 10**6, UNIX * 10**9], UNIX * 10**9, UNIX * 10**6),
    ([0, "2026-01-31"], "2026-01-31", 0),
]


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize(("times", "named", "other"), MIXED)
def test_a_column_of_two_forms_is_refused_with_the_rows_of_both(tmp_path, times, named, other, files):
    parts = [times] if files == 1 else [times[:1], times[1:]]
    paths = [write(tmp_path / f"{number}.jsonl", some) for number, some in enumerate(parts)]
    with pytest.raises(DataError, match="Expected one form in all rows") as caught:
        imported(tmp_path, *paths)
    rows = {
        value: (path, number) for path, some in zip(paths, parts, strict=True) for number, value in enumerate(some, 1)
    }
    for value in (named, other):
        path, line = rows[value]
        assert f"{path}, line {line}" in str(caught.value)
        assert repr(value) in str(caught.value)
    assert not (tmp_path / "store").exists()


def test_a_column_of_one_form_is_taken(tmp_path):
    for times in (
        [5, UNIX, UNIX * 1000, 0],  # numbers that are no times: of events, say
        [0, UNIX, UNIX + 1],
        ["2026-01-31T18:30:00Z", "20260131T193000+0100"],
        ["2026-01-31 18:30", "2026-01-31T18:30:00.5"],
        ["2026-01-31", "2026-W06-1"],
    ):
        assert len(imported(tmp_path, write(tmp_path / "rows.jsonl", times))) == len(times)


def test_columns_of_tables_are_of_one_form_too(tmp_path):
    zone, day = datetime.UTC, datetime.datetime(2026, 1, 31, 18)
    columns = [[day], [day.replace(tzinfo=zone)], [day.date()], [UNIX]]
    for n, when in enumerate(columns):
        pq.write_table(pa.table({"user": ["a"], "text": ["A."], "when": when}), tmp_path / f"{n}.parquet")
    for n in range(1, len(columns)):
        source = ParquetTables((tmp_path / "0.parquet", tmp_path / f"{n}.parquet"), order="when")
        with pytest.raises(DataError, match="'when' is 2026-01-31T18:00:00"):
            import_text("parquet", source, tmp_path / "store", workers=1)


def test_interactions_of_two_forms_are_refused(tmp_path):
    rows = [
        f"u{user},i{item},{when}\n" for user in range(9) for item, when in enumerate([UNIX, "2026-01-31", UNIX + 5])
    ]
    of_table, of_movielens = {"format": "csv", "time": "when"}, {"format": "movielens"}
    for content, options, message in (
        (
            "user,item,when\n" + "".join(rows),
            of_table,
            "line 3: 'when' is '2026-01-31', a date, and in .*line 2 it is .* Unix time",
        ),
        (f"1::2::3::{UNIX}\n1::3::3::{UNIX * 1000}\n", of_movielens, "line 2: 'timestamp' is .*milliseconds"),
        (f"1::2::3::{UNIX}\n1::3::3::{10**40}\n", of_movielens, "line 2: 'timestamp' .*a whole number of 64 bits"),
    ):
        (tmp_path / "rows").write_text(content)
        source, settings = Interactions((tmp_path / "rows",), **options), RecommendationSettings(min_interactions=1)
        with pytest.raises(DataError, match=message):
            import_recommendation(source, tmp_path / "s", settings, workers=1)
