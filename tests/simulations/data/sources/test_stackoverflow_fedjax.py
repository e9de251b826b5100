import numpy as np
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.formats.fedjax import create_table, pack_client
from fedlm.simulations.data.sources.stackoverflow import fedjax_source as stackoverflow_fedjax
from fedlm.simulations.data.sources.stackoverflow.fedjax_source import StackOverflowFedjax
from tests.simulations.data.sources.source_reading import assert_refused, change, no_progress, read, writing

CLIENTS = {"1": ["how do i sort a list ?", "edit : thanks .", "see <URL> ."], "2": ["this works fine"]}


def pack(texts, feature="tokens"):
    values = [text if isinstance(text, bytes) else text.encode() for text in texts]
    return pack_client({feature: values, "score": np.arange(len(values))})


def write_database(path, clients=CLIENTS, feature="tokens", primary_key=True):
    with writing(path) as connection:
        if primary_key:
            create_table(connection)
        else:
            connection.execute("CREATE TABLE federated_data (client_id BLOB, data BLOB, num_examples INTEGER)")
        for client_id, texts in clients.items():
            key = client_id if isinstance(client_id, bytes) else client_id.encode()
            row = (key, pack(texts, feature), len(texts))
            connection.execute("INSERT INTO federated_data VALUES (?, ?, ?)", row)
    return path


def texts_of(clients, split):
    return [ClientText(client_id, texts, split) for client_id, texts in clients.items()]


def refused(path, *words, **options):
    assert_refused(StackOverflowFedjax((path,), **options), *words)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("stackoverflow_train", "train"),
        ("stackoverflow_held_out", "heldout"),
        ("stackoverflow-heldout", "heldout"),
        ("Test", "test"),
        ("latest", None),
        ("stackoverflow", None),
        ("train_of_thought", None),
    ],
)
def test_the_split_is_in_the_name(tmp_path, name, split):
    source = StackOverflowFedjax((write_database(tmp_path / f"{name}.sqlite"),))
    texts, skipped = read(source)
    assert texts == texts_of(CLIENTS, split)
    assert skipped.as_dict() == {}
    assert source.words_are_separated
    reading = source.open(tmp_path, no_progress)
    assert (reading.unit, reading.total) == ("clients", 2)


def test_files_that_do_not_go_together_are_refused(tmp_path):
    train, other, again = (write_database(tmp_path / f"{name}.sqlite") for name in ("x_train", "x", "y_train"))
    with pytest.raises(DataError, match=r"x\.sqlite: its name says no split"):
        read(StackOverflowFedjax((train, other)))
    with pytest.raises(DataError, match=r"y_train\.sqlite: client '1' occurs twice and in .*x_train\.sqlite"):
        read(StackOverflowFedjax((train, again)))


def test_parts_divide_the_clients(tmp_path, monkeypatch):
    clients = {f"{i:03d}": [f"sentence {j} of {i}" for j in range(1 + i % 7)] for i in range(100)}
    path = write_database(tmp_path / "x_train.sqlite", clients)
    change(path, "DELETE FROM federated_data WHERE rowid % 5 = 0")
    monkeypatch.setattr(stackoverflow_fedjax, "PART_BYTES", path.stat().st_size // 8)
    source = StackOverflowFedjax((path,))
    reading = source.open(tmp_path, no_progress)
    assert len(list(reading.parts)) >= 8
    assert sum(part.size for part in reading.parts) == reading.total == 80
    kept = {client_id: texts for row, (client_id, texts) in enumerate(clients.items(), start=1) if row % 5}
    assert read(source)[0] == texts_of(kept, "train")


def test_snippets_are_kept_as_they_are(tmp_path):
    clients = {"KING_LEAR": ["Blow,  winds,\nand crack your cheeks!"]}
    source = StackOverflowFedjax((write_database(tmp_path / "x_train.sqlite", clients, "snippets"),))
    assert not source.words_are_separated
    assert read(source)[0] == texts_of(clients, "train")


def test_the_feature_can_be_named(tmp_path):
    path = write_database(tmp_path / "x.sqlite", feature="body")
    assert read(StackOverflowFedjax((path,), feature="body"))[0] == texts_of(CLIENTS, None)
    refused(path, "client '1'", "body, score", "tokens or snippets", "with feature.")
    refused(path, "client '1'", "body, score", "expected tokens", feature="tokens")
    refused(path, "client '1'", "score is [0 1 2]", "expected a list of texts", feature="score")


def test_what_is_left_out_is_counted_with_its_place(tmp_path):
    clients = {"1": ["good", b"\xff", "", " "], "2": [], "3": [""], b"\xff\x01": ["a b"], "über": ["c d"]}
    texts, skipped = read(StackOverflowFedjax((write_database(tmp_path / "x.sqlite", clients),)))
    # An id that is no text is hexadecimal.
    assert texts == texts_of({"1": ["good"], "ff01": ["a b"], "über": ["c d"]}, None)
    assert skipped.as_dict() == {"bytes that are not UTF-8": 1, "client without text": 1, "empty text": 3}
    assert skipped.first_places()["bytes that are not UTF-8"].endswith("x.sqlite, client '1', row 2")
    assert skipped.first_places()["client without text"].endswith("x.sqlite, client '2'")


def test_other_tables_are_refused(tmp_path):
    path = change(tmp_path / "x.sqlite", "CREATE TABLE examples (client_id TEXT)")
    refused(path, "found examples(client_id)", "expected federated_data(client_id, data", "stackoverflow-tff")
    path = change(write_database(tmp_path / "y.sqlite"), "ALTER TABLE federated_data RENAME num_examples TO n")
    refused(path, "federated_data(client_id, data, n)", "num_examples")
    refused(write_database(tmp_path / "z.sqlite", {}), "federated_data is empty")


@pytest.mark.parametrize("feature", [None, "tokens"])
def test_damaged_files_are_refused(tmp_path, feature):
    clients = {f"{i}": [f"sentence {j} of client {i}" for j in range(50)] for i in range(100)}
    path = write_database(tmp_path / "x.sqlite", clients)
    whole = path.read_bytes()
    half = whole[: len(whole) // 2 // 4096 * 4096]
    for content in (whole[:-4096], half + b"\xff" * (len(whole) - len(half)), b"not a database " * 100):
        path.write_bytes(content)
        refused(path, "damaged or cut off", feature=feature)


UPDATE = "UPDATE federated_data SET"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (f"{UPDATE} num_examples = 2 WHERE rowid = 2", ["client '2'", "found 1 examples", "expected 2"]),
        (f"{UPDATE} data = x'789c00' WHERE rowid = 2", ["client '2'", "data is damaged"]),
        (f"{UPDATE} data = 'text' WHERE rowid = 2", ["client '2'", "data is damaged"]),
        (f"{UPDATE} data = x'' WHERE rowid = 1", ["client '1'", "data is damaged"]),
        ("INSERT INTO federated_data SELECT * FROM federated_data WHERE rowid = 2", ["client '2' occurs twice"]),
        (f"{UPDATE} client_id = NULL WHERE rowid = 2", ["row 2", "no client_id"]),
    ],
)
def test_contradictions_are_refused(tmp_path, statement, words):
    refused(change(write_database(tmp_path / "x_train.sqlite", primary_key=False), statement), *words)
