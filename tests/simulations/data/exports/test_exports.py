import functools
import sqlite3

import pyarrow.parquet as pq
import pytest

from fedlm.commands.cli import main
from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.exports import base, parquet
from fedlm.simulations.data.exports.exporting import export_store
from fedlm.simulations.data.exports.registry import EXPORTS
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.stackoverflow.fedjax_source import StackOverflowFedjax
from fedlm.simulations.data.sources.stackoverflow.tff_source import StackOverflowTff
from fedlm.simulations.data.sources.tables.parquet import ParquetTables
from fedlm.simulations.data.splits import SPLITS
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.store.writer import StoreWriter
from tests.simulations.data.exports.export_reading import READERS
from tests.simulations.data.vocabulary.trained_tokenizer import train_tokenizer

every_export = pytest.mark.parametrize("name", {**EXPORTS, **READERS})
of_either_kind = pytest.mark.parametrize("name", ["parquet", "fedjax"], ids=["file", "folder"])
OF_PARQUET = {"user": "client_id", "text": "text", "split": "split", "order": "position", "examples": "texts"}
SOURCES = {
    "tff": StackOverflowTff,
    "fedjax": StackOverflowFedjax,
    "parquet": functools.partial(ParquetTables, **OF_PARQUET),
}


@pytest.fixture
def small(small_store):
    return TokenStore.open(small_store)


@pytest.fixture
def odd(tmp_path):
    """A store with what may be empty, repeated or not ASCII."""
    tokenizer = train_tokenizer(["some words make a small vocabulary of words, öfter"], 64)
    words = tokenizer.encode_batch(["some words, öfter", "words"])
    path = tmp_path / "odd.store"
    with StoreWriter(path, "made up", tokenizer) as writer:
        writer.add("train", "007", [words[0], [], words[1]])
        writer.add("train", "7", [[]])
        writer.add("train", "no examples", [])
        writer.add("train", 'Jürgen "J" 東京 %s; --', [words[1]] * 3)
        writer.add("test", "007", [words[1]])
    return TokenStore.open(path)


def contents(store, value):
    """Return {split: {client id: [value of an example, ..]}} of a store."""
    return {
        split: {
            client_id: value(store.split(split).client(index))
            for index, client_id in enumerate(store.split(split).client_ids)
        }
        for split in SPLITS
    }


def texts_of(store):
    decode = store.tokenizer.decode
    return contents(store, lambda client: [decode(client.example(j)) for j in range(client.num_examples)])


def files_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@every_export
def test_has_every_text_of_every_client_and_can_be_imported_again(name, small, tmp_path, monkeypatch):
    monkeypatch.setattr(base, "PIECE_EXAMPLES", 2)
    out = tmp_path / "new" / f"export.{name}"
    summary = export_store(small, name, out)
    read = READERS[name](out)
    expected = texts_of(small)
    assert read["tokens"] == expected
    for split, clients in expected.items():
        assert list(read["tokens"][split]) == list(clients), "clients keep their order"
    assert sum(summary.clients.values()) == 120
    assert summary.examples == {split: sum(map(len, clients.values())) for split, clients in expected.items()}
    assert summary.bytes == sum(len(content or b"") for content in files_in(out.parent).values())
    assert list(out.parent.iterdir()) == [out]
    source = SOURCES[name](tuple(sorted(out.iterdir())) if out.is_dir() else (out,))
    import_text(name, source, tmp_path / "again", ImportSettings(vocabulary_size=120), workers=1)
    assert texts_of(TokenStore.open(tmp_path / "again")) == expected


@every_export
def test_has_what_is_empty_repeated_or_not_ascii(name, odd, tmp_path):
    export_store(odd, name, tmp_path / "export")
    expected = texts_of(odd)
    if name == "parquet":  # one row an example: a client without any has none
        del expected["train"]["no examples"]
    assert READERS[name](tmp_path / "export")["tokens"] == expected


def test_parquet_has_all_token_ids_and_positions_in_bounded_row_groups(small, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 10)
    monkeypatch.setattr(base, "PIECE_EXAMPLES", 3)
    export_store(small, "parquet", tmp_path / "export")
    metadata = pq.ParquetFile(tmp_path / "export").metadata
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert len(rows) > 50
    assert max(rows) < 10 + 3
    read = READERS["parquet"](tmp_path / "export")
    assert read["ids"] == contents(small, lambda one: [one.example(j).tolist() for j in range(one.num_examples)])
    assert read["position"] == contents(small, lambda client: list(range(client.num_examples)))


def test_tff_has_indexes_and_counts(small, tmp_path):
    export_store(small, "tff", tmp_path / "export")
    with sqlite3.connect(tmp_path / "export") as connection:
        indexes = connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'").fetchall()
        counts = connection.execute("SELECT split_name, client_id, num_examples FROM client_metadata").fetchall()
        found = connection.execute(
            "SELECT split_name, client_id, count(*) FROM examples GROUP BY split_name, client_id"
        ).fetchall()
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert len(indexes) == 3
    assert sorted(counts) == sorted(found)


def test_tff_refuses_client_ids_that_it_cannot_read(tmp_path):
    tokenizer = train_tokenizer(["some words"], 64)
    with StoreWriter(tmp_path / "store", "made up", tokenizer) as writer:
        writer.add("test", "O'Brien", [[4]])
    store = TokenStore.open(tmp_path / "store")
    with pytest.raises(DataError, match=r"O'Brien.*apostrophe.*choose another format"):
        export_store(store, "tff", tmp_path / "export")
    export_store(store, "fedjax", tmp_path / "export")


@of_either_kind
def test_what_exists_stays_until_a_whole_export_replaces_it(name, small, odd, tmp_path):
    out = tmp_path / "out" / "export"

    def stop(phase, done, total, unit):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_store(small, name, out, progress=stop)
    assert not list(out.parent.iterdir())
    (out.parent / ".export.export").mkdir()
    (out.parent / ".export.export" / "made").write_text("half, of an export that was killed")
    export_store(odd, name, out)
    before = files_in(out.parent)
    with pytest.raises(DataError, match="pass overwrite=True"):
        export_store(small, name, out)
    with pytest.raises(KeyboardInterrupt):
        export_store(small, name, out, overwrite=True, progress=stop)
    assert files_in(out.parent) == before
    (out.parent / ".export.export" / "made" / "deeper").mkdir(parents=True)
    export_store(small, name, out, overwrite=True)
    assert READERS[name](out)["tokens"] == texts_of(small)
    assert list(out.parent.iterdir()) == [out]


@of_either_kind
def test_never_replaces_what_is_no_export(name, small, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    link = tmp_path / "link"
    link.symlink_to(folder / "thesis.txt")
    before = files_in(tmp_path)
    for out in (folder, link):
        with pytest.raises(DataError, match="Choose another out"):
            export_store(small, name, out, overwrite=True)
    if name == "fedjax":
        with pytest.raises(DataError, match="is not a folder"):
            export_store(small, name, folder / "thesis.txt", overwrite=True)
    assert files_in(tmp_path) == before


def test_never_writes_into_the_store(odd):
    before = files_in(odd.path)
    for out in (odd.path, odd.path / "train.arrow", odd.path / "new"):
        with pytest.raises(DataError, match="is in the token store"):
            export_store(odd, "parquet", out, overwrite=True)
    assert files_in(odd.path) == before


@of_either_kind
def test_keeps_what_appears_at_the_destination_meanwhile(name, small, tmp_path):
    out = tmp_path / "export"

    def appear(phase, done, total, unit):
        out.mkdir(exist_ok=True)
        (out / "thesis.txt").write_text("years of work")

    with pytest.raises(DataError, match="Choose another out"):
        export_store(small, name, out, progress=appear)
    assert files_in(tmp_path) == {"export": None, "export/thesis.txt": b"years of work"}


@every_export
def test_a_full_disk_is_one_message(name, small_store, tmp_path, capsys, largest_file):
    """The operating system refuses files above a limit as it refuses to fill a disk."""
    out = tmp_path / "out" / "export"
    with largest_file(4096):
        assert main(["data", "export", str(small_store), "--format", name, "--out", str(out)]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith(f"fedlm data: {out}: cannot be written")
    assert "Make room" in message
    assert not list((tmp_path / "out").iterdir())


@every_export
def test_the_command_says_what_it_wrote_and_how_to_read_it(name, small_store, tmp_path, capsys):
    out = tmp_path / "export"
    words = ["data", "export", str(small_store), "--format", name, "--out", str(out)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "train" in printed
    assert str(out) in printed.partition("Read it in Python:")[2]
    assert main(words) == 2
    assert "pass --overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0
