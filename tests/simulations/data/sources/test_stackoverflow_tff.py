import lzma
from pathlib import Path

import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.formats.tensorflow_federated import create_indexes, create_tables, make_example
from fedlm.simulations.data.sources.stackoverflow import tff_tables
from fedlm.simulations.data.sources.stackoverflow.tff_source import StackOverflowTff
from tests.simulations.data.sources.source_reading import assert_refused, change, no_progress, read, writing

CLIENTS = [
    ("train", "00000001", ["how do i sort a list ?", "edit : thanks .", "see <URL> ."]),
    ("train", "00000002", ["this works fine"]),
    ("test", "00000001", ["later i asked again"]),
    ("heldout", "00000010", ["never seen", "nor this"]),
]
TEXTS = [ClientText(client_id, texts, split) for split, client_id, texts in CLIENTS]


def example(text, feature="tokens"):
    text = text if isinstance(text, bytes) else text.encode()
    return make_example({feature: [text], "score": [-3], "title": [b"a title"]})


def write_database(path, clients=CLIENTS, index=True, feature="tokens"):
    with writing(path) as connection:
        create_tables(connection)
        for split, client_id, texts in clients:
            connection.executemany(
                "INSERT INTO examples VALUES (?, ?, ?)", [(split, client_id, example(text, feature)) for text in texts]
            )
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client_id, split, len(texts)))
        if index:
            create_indexes(connection)
    return path


def sorted_texts(source, workspace=Path("unused")):
    texts, skipped = read(source, workspace)
    assert skipped.as_dict() == {}
    return sorted(texts)


def refused(path, *words, **options):
    assert_refused(StackOverflowTff((path,), **options), *words)


@pytest.mark.parametrize("index", [True, False])
def test_reads_clients_with_their_splits(tmp_path, index):
    """TensorFlow Federated's own writer makes no index."""
    source = StackOverflowTff((write_database(tmp_path / "a b?%41#.sqlite", index=index),))
    before = source.paths[0].read_bytes()
    assert sorted_texts(source, tmp_path) == sorted(TEXTS)
    assert source.paths[0].read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1 + (not index)
    assert source.words_are_separated
    reading = source.open(tmp_path, no_progress)
    assert (reading.unit, reading.total) == ("sentences", 7)
    # The writer's own name of a split means none, and tokens have single spaces between them.
    clients = [("default_split", "1", [" a  b\t"]), ("held_out", "2", ["c d"])]
    texts = sorted_texts(StackOverflowTff((write_database(tmp_path / "x.sqlite", clients),)))
    assert texts == [ClientText("1", ["a b"], None), ClientText("2", ["c d"], "heldout")]


def test_parts_divide_the_clients(tmp_path, monkeypatch):
    monkeypatch.setattr(tff_tables, "PART_EXAMPLES", 20)
    clients = [("train", f"{i:03d}", [f"sentence {j} of {i}" for j in range(1 + i % 7)]) for i in range(50)]
    clients.append(("train", "silent", []))
    source = StackOverflowTff((write_database(tmp_path / "x.sqlite", clients),))
    change(source.paths[0], "DELETE FROM client_metadata WHERE client_id = '030'")
    change(source.paths[0], "DELETE FROM examples WHERE client_id = '030'")
    reading = source.open(tmp_path, no_progress)
    assert len(list(reading.parts)) >= 10
    assert all(0 < part.size <= 20 for part in reading.parts)
    joined: dict[str, list[str]] = {}
    texts, skipped = read(source)
    assert skipped.as_dict() == {"client without text": 1}
    for text in texts:
        joined.setdefault(text.client_id, []).extend(text.sentences)
    assert joined == {client_id: texts for _, client_id, texts in clients if client_id not in ("030", "silent")}


def test_rows_of_a_client_may_lie_apart(tmp_path):
    clients = [("train", f"{i}", [f"row {j} of {i}" for j in range(9)]) for i in range(3)]
    path = write_database(tmp_path / "x.sqlite", clients)
    # In the order of another column.
    change(
        path,
        *(f"UPDATE examples SET rowid = {100 + 3 * (row % 9) + row // 9} WHERE rowid = {row + 1}" for row in range(27)),
    )
    expected = [ClientText(client_id, texts, split) for split, client_id, texts in clients]
    assert sorted_texts(StackOverflowTff((path,))) == expected


@pytest.mark.parametrize(
    ("kind", "feature"), [(lzma.FORMAT_XZ, "tokens"), (lzma.FORMAT_ALONE, "tokens"), (lzma.FORMAT_XZ, "snippets")]
)
def test_a_compressed_database_is_decompressed_once(tmp_path, kind, feature):
    database = write_database(tmp_path / "plain.sqlite", feature=feature)
    path = tmp_path / ("stackoverflow.sqlite.lzma" if feature == "tokens" else "shakespeare.sqlite.lzma")
    path.write_bytes(lzma.compress(database.read_bytes(), format=kind))
    source = StackOverflowTff((path,))
    assert source.words_are_separated == (feature == "tokens")
    calls = []
    source.open(tmp_path, lambda *call: calls.append(call))
    size = path.stat().st_size
    assert calls[-1] == ("decompress", size, size, "bytes")
    assert {one.name for one in tmp_path.iterdir()} == {database.name, path.name, f"decompressed-0-{path.stem}"}
    calls.clear()
    source.open(tmp_path, lambda *call: calls.append(call))
    assert calls == []
    assert sorted_texts(source, tmp_path) == sorted(TEXTS)


@pytest.mark.parametrize("feature", [None, "tokens"])
def test_a_damaged_compressed_file_is_refused(tmp_path, feature):
    compressed = lzma.compress(write_database(tmp_path / "plain.sqlite").read_bytes())
    path = tmp_path / "x.sqlite.lzma"
    for content, words in (
        (compressed[:-40], ["cut off"]),
        (compressed[:200] + b"\xff" * 50 + compressed[250:], ["damaged"]),
        (lzma.compress(b"some other text, not a database"), ["some other text", "expected an SQLite database"]),
    ):
        path.write_bytes(content)
        refused(path, *words, feature=feature)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plain.sqlite", "x.sqlite.lzma"]


def test_the_feature_can_be_named(tmp_path):
    path = write_database(tmp_path / "x.sqlite")
    source = StackOverflowTff((path,), feature="title")
    assert not source.words_are_separated
    assert sorted_texts(source)[1] == ClientText("00000001", ["a title"] * 3, "train")
    refused(path, "client '00000001'", "row 1", "score is [-3]", "with feature.", feature="score")
    refused(path, "client '00000001'", "score, title, tokens", "expected body", feature="body")
    path = write_database(tmp_path / "y.sqlite", feature="body")
    refused(path, "body, score, title", "tokens or snippets", "with feature.")


def test_what_is_left_out_is_counted_with_its_place(tmp_path):
    clients = [("train", "1", ["", "good", b"\xff", "  "]), ("train", "2", []), ("train", "3", [""])]
    texts, skipped = read(StackOverflowTff((write_database(tmp_path / "x.sqlite", clients),)))
    assert texts == [ClientText("1", ["good"], "train")]
    assert skipped.as_dict() == {"bytes that are not UTF-8": 1, "client without text": 1, "empty text": 3}
    places = skipped.first_places()
    assert places["empty text"].endswith("x.sqlite, client '1', row 1")
    assert places["bytes that are not UTF-8"].endswith("x.sqlite, client '1', row 3")
    assert places["client without text"].endswith("x.sqlite, client '2'")


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "x.sqlite"
    for content, found in ((b"PK\x03\x04 something else", "PK"), (b"", "")):
        path.write_bytes(content)
        refused(path, found, "expected an SQLite database")
    with pytest.raises(DataError, match="found nothing"):
        StackOverflowTff((tmp_path / "absent",)).files()
    paths = tuple(write_database(tmp_path / name) for name in ("one.sqlite", "copy.sqlite"))
    with pytest.raises(DataError, match="occurs twice in train"):
        read(StackOverflowTff(paths))
    (tmp_path / "one.sqlite-wal").write_bytes(b"changes that are not taken in")
    refused(paths[0], "one.sqlite-wal")


def test_other_tables_are_refused(tmp_path):
    path = change(tmp_path / "x.sqlite", "CREATE TABLE federated_data (client_id BLOB)")
    refused(path, "found federated_data(client_id)", "expected examples(split_name, client_id", "fedjax")
    path = change(write_database(tmp_path / "y.sqlite"), "ALTER TABLE client_metadata RENAME num_examples TO n")
    refused(path, "client_metadata(client_id, split_name, n)", "num_examples")
    refused(write_database(tmp_path / "z.sqlite", []), "examples is empty")


def test_a_corrupt_or_cut_off_database_is_refused(tmp_path):
    clients = [("train", f"{i}", [f"sentence {j} of client {i} ." for j in range(100)]) for i in range(10)]
    path = write_database(tmp_path / "x.sqlite", clients)
    whole = path.read_bytes()
    start = whole.index(b"sentence 50 of client 7") // 4096 * 4096
    path.write_bytes(whole[:start] + b"\xff" * 4096 + whole[start + 4096 :])
    refused(path, "client '7'", "damaged or cut off")
    path.write_bytes(whole[:-4096])
    for feature in (None, "tokens"):
        refused(path, "damaged or cut off", feature=feature)


METADATA, PROTO = "UPDATE client_metadata SET", "UPDATE examples SET serialized_example_proto ="


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (f"{METADATA} split_name = 'dev' WHERE client_id = '00000002'", ["row 2", "'dev'", "train, held"]),
        (f"{METADATA} num_examples = 2 WHERE client_id = '00000002'", ["'00000002' has 1 rows", "ed 2"]),
        (f"{METADATA} num_examples = 'x' WHERE rowid = 1", ["row 1", "'x' examples"]),
        (f"{METADATA} client_id = x'00' WHERE rowid = 1", ["row 1", "expected a text"]),
        ("INSERT INTO client_metadata VALUES ('00000002', 'train', 1)", ["row 5", "client '00000002' occurs twice"]),
        ("DELETE FROM examples WHERE rowid = 2", ["client '00000001' has 2 rows", "expected 3"]),
        ("INSERT INTO examples VALUES ('train', 'another', x'00')", ["client 'another'", "expected 0"]),
        (f"{PROTO} x'0aff' WHERE rowid = 2", ["client '00000001', row 2", "damaged"]),
        (f"{PROTO} 'text' WHERE rowid = 2", ["client '00000001', row 2", "damaged"]),
        (f"{PROTO} x'' WHERE rowid = 2", ["row 2", "features are none"]),
        (f"{PROTO} x'0aff' WHERE rowid = 1", ["first row", "damaged"]),
    ],
)
def test_contradictions_are_refused(tmp_path, statement, words):
    refused(change(write_database(tmp_path / "x.sqlite"), statement), *words)
