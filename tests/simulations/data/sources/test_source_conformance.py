"""What every source that is registered must do. A new source adds its maker to `MAKERS`."""

import csv
import json
import pickle
import sqlite3
from collections import Counter
from contextlib import closing, nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.fl_core.worker_processes import WorkerPool
from fedlm.simulations.data import importing
from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.formats import fedjax, tensorflow_federated
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources import standard_library as stdlib
from fedlm.simulations.data.sources import text_files
from fedlm.simulations.data.sources.plays import Plays
from fedlm.simulations.data.sources.registry import SOURCES
from fedlm.simulations.data.sources.stackexchange.source import StackExchange
from fedlm.simulations.data.sources.stackoverflow import tff_tables
from fedlm.simulations.data.sources.stackoverflow.fedjax_source import StackOverflowFedjax
from fedlm.simulations.data.sources.stackoverflow.tff_source import StackOverflowTff
from fedlm.simulations.data.sources.standard_library import StandardLibrary
from fedlm.simulations.data.sources.tables.csv_tables import CsvTables
from fedlm.simulations.data.sources.tables.huggingface import HuggingFaceDataset
from fedlm.simulations.data.sources.tables.jsonl import JsonLines
from fedlm.simulations.data.sources.tables.parquet import ParquetTables
from fedlm.simulations.data.sources.tables.user_rows import document_id
from fedlm.simulations.data.sources.text_files import TextFiles
from tests.simulations.data.sources.hugging_face_files import save_dataset
from tests.simulations.data.sources.source_reading import no_progress, read

LETTERS = "abcdefghijkl"
TEXTS = {
    str(user): [f"some words about {LETTERS[user % 12]}{LETTERS[user // 12]}{LETTERS[text]}" for text in range(4)]
    for user in range(1, 41)
}
"""Sentences by user, each of them once."""
ROWS = [(user, TEXTS[user][text]) for text in range(4) for user in TEXTS]
HALVES = (ROWS[::2], ROWS[1::2])
"""A user's texts are in both."""


def make_stdlib(folder, monkeypatch):
    for user, texts in TEXTS.items():
        (folder / f"m{user}.py").write_text('"""' + "\n\n".join(texts) + '\n"""\n')
    monkeypatch.setattr(stdlib, "stdlib_root", lambda: folder)
    monkeypatch.setattr(stdlib, "MODULES_PER_PART", 10)
    return StandardLibrary(), "m{}"


def make_jsonl(folder, monkeypatch):
    for index, rows in enumerate(HALVES):
        lines = [json.dumps({"user": user, "text": text}) for user, text in rows]
        (folder / f"{index}.jsonl").write_text("\n".join([*lines, ""]))
    return JsonLines(tuple(sorted(folder.iterdir()))), "{}"


def make_text(folder, monkeypatch):
    for index, rows in enumerate(HALVES):
        (folder / f"{index}.txt").write_text("\n\n".join(text for _, text in rows))
    monkeypatch.setattr(text_files, "PART_BYTES", 1000)
    return TextFiles((folder,), documents="paragraphs"), None


def make_plays(folder, monkeypatch):
    for user, texts in TEXTS.items():
        (folder / f"{user}.txt").write_text("".join(f"ANNA.\n{text}\n\n" for text in texts))
    return Plays((folder,)), "{}/ANNA"


def make_csv(folder, monkeypatch):
    for index, rows in enumerate(HALVES):
        with (folder / f"{index}.csv").open("w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("user", "text"), *rows])
    return CsvTables(tuple(sorted(folder.iterdir()))), "{}"


def table(rows):
    users, texts = zip(*rows, strict=True)
    return pa.table({"user": pa.array(map(int, users)), "text": pa.array(texts)})


def make_parquet(folder, monkeypatch):
    for index, rows in enumerate(HALVES):
        pq.write_table(table(rows), folder / f"{index}.parquet", row_group_size=20)
    return ParquetTables((folder,)), "{}"


def make_huggingface(folder, monkeypatch):
    save_dataset(folder / "saved", table(ROWS), num_shards=2, batch_rows=20)
    return HuggingFaceDataset(path=folder / "saved"), "{}"


def make_stackoverflow_tff(folder, monkeypatch):
    path = folder / "stackoverflow.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        tensorflow_federated.create_tables(connection)
        for user, text in ROWS:
            example = tensorflow_federated.make_example({"tokens": [text.encode()]})
            connection.execute("INSERT INTO examples VALUES (?, ?, ?)", ("train", user, example))
        for user, texts in TEXTS.items():
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (user, "train", len(texts)))
        tensorflow_federated.create_indexes(connection)
    monkeypatch.setattr(tff_tables, "PART_EXAMPLES", 40)
    return StackOverflowTff((path,)), "{}"


def make_stackoverflow_fedjax(folder, monkeypatch):
    for index in range(2):
        with closing(sqlite3.connect(folder / f"{index}.sqlite")) as connection, connection:
            fedjax.create_table(connection)
            for user, texts in list(TEXTS.items())[index::2]:
                data = fedjax.pack_client({"tokens": [text.encode() for text in texts]})
                connection.execute("INSERT INTO federated_data VALUES (?, ?, ?)", (user.encode(), data, len(texts)))
    return StackOverflowFedjax(tuple(sorted(folder.iterdir()))), "{}"


def make_stackexchange(folder, monkeypatch):
    for kind, rows in zip(("Posts", "Comments"), HALVES, strict=True):
        owner, text_field = {"Posts": ("OwnerUserId", "Body"), "Comments": ("UserId", "Text")}[kind]
        lines = [
            f'<row Id="{index}" PostTypeId="1" {owner}="{user}" {text_field}="{text}" />'
            for index, (user, text) in enumerate(rows)
        ]
        (folder / f"site.{kind}.xml").write_text(f"<{kind.lower()}>\n" + "\n".join(lines) + f"\n</{kind.lower()}>\n")
    return StackExchange((folder,)), "site/{}"


MAKERS = {
    "stdlib": make_stdlib,
    "jsonl": make_jsonl,
    "text": make_text,
    "plays": make_plays,
    "csv": make_csv,
    "parquet": make_parquet,
    "huggingface": make_huggingface,
    "stackoverflow-tff": make_stackoverflow_tff,
    "stackoverflow-fedjax": make_stackoverflow_fedjax,
    "stackexchange": make_stackexchange,
}
"""By the source's name, a function of an empty folder and of `monkeypatch`. It writes `TEXTS` there, to be read in
several parts, and returns the source and how its client ids are made of users; None where each text is a client."""


@pytest.fixture(params=sorted({*SOURCES, *MAKERS}))
def made(request, tmp_path, monkeypatch):
    """The name of a source, the source, and how its client ids are made of users."""
    if request.param not in MAKERS:
        pytest.fail(f"the source {request.param!r} has no maker: add one to MAKERS in this file")
    (tmp_path / "input").mkdir()
    return request.param, *MAKERS[request.param](tmp_path / "input", monkeypatch)


@pytest.fixture(scope="module")
def two_workers():
    with WorkerPool(2) as pool:
        yield pool


def test_every_text_is_read_once(made):
    _, source, client_id = made
    texts, skipped = read(source)
    assert Counter((text.client_id, sentence) for text in texts for sentence in text.sentences) == {
        (document_id(text.split(), None) if client_id is None else client_id.format(user), text): 1
        for user, text in ROWS
    }
    assert skipped.as_dict() == {}


def test_parts_are_the_same_each_time_and_travel(made, tmp_path):
    _, source, _ = made
    files = source.files()
    assert files == source.files()
    assert all(path.is_file() for path in files)
    first, second = (list(source.open(tmp_path, no_progress).parts) for _ in range(2))
    assert first == second
    assert len(first) > 1
    reading = source.open(tmp_path, no_progress)
    assert reading.total in (None, sum(part.size for part in first))
    read_here, read_there = reading.read, pickle.loads(pickle.dumps(reading.read))
    for part in first:
        there = pickle.loads(pickle.dumps(part))
        assert list(read_there(there.content, SkippedCounts())) == list(read_here(part.content, SkippedCounts()))


@pytest.mark.long
def test_any_number_of_workers_makes_the_same_store(made, tmp_path, monkeypatch, two_workers):
    name, source, _ = made
    # Processes that are started once serve all imports.
    pools = {1: WorkerPool(1), 2: two_workers}
    monkeypatch.setattr(importing, "WorkerPool", lambda workers: nullcontext(pools[workers]))
    monkeypatch.setattr(importing, "ENCODE_BYTES", 2000)
    stores = []
    for workers in pools:
        summary = import_text(
            name, source, tmp_path / f"{workers}", ImportSettings(vocabulary_size=60), workers=workers
        )
        stores.append({file.name: file.read_bytes() for file in summary.path.iterdir()})
    assert stores[0] == stores[1]
    assert sum(split.examples for split in summary.header.splits.values()) == len(ROWS)


def test_files_that_are_cut_off_empty_or_gone_are_an_error_of_the_user(made, tmp_path):
    name, source, _ = made
    whole = {path: path.read_bytes() for path in source.files()}
    for tenths in (9, 5, 1):
        for path, content in whole.items():
            path.write_bytes(content[: len(content) * tenths // 10])
        try:
            texts, said = read(source, tmp_path)[0], str(tmp_path / "input")
        except DataError as error:
            texts, said = [], str(error)
        assert str(tmp_path / "input") in said
        assert sum(len(text.sentences) for text in texts) <= len(ROWS)
    for spoil, said in (
        (lambda path: path.write_bytes(b""), "|found no word in the training texts"),
        (Path.unlink, ""),
    ):
        for path in whole:
            spoil(path)
        with pytest.raises(DataError, match=f"{tmp_path / 'input'}{said}"):
            import_text(name, source, tmp_path / "store", workers=1)
        assert not (tmp_path / "store").exists()
