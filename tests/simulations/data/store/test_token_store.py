"""What tells that two data sets have the same clients with the same tokens."""

import json
import os
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.errors import DataError, DiskError
from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.splits import SPLITS
from fedlm.simulations.data.splits_in_memory import TokensInMemory
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.store.writer import StoreWriter
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from tests.simulations.data.vocabulary.trained_tokenizer import train_tokenizer
from tests.support.properties import costly


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["some words make a small vocabulary of words"], 64)


def clients_strategy(maximum):
    sequences = st.lists(st.lists(st.integers(0, maximum), max_size=6), max_size=5)
    return st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), sequences, max_size=12)


def make(path, tokenizer, clients, **options):
    with StoreWriter(path, "made up", tokenizer, **options) as writer:
        for split, members in clients.items():
            for client_id, sequences in members.items():
                writer.add(split, client_id, sequences)
    return TokenStore.open(path)


@pytest.fixture
def store(tmp_path, tokenizer):
    clients = {"train": {f"c{i}": [[i % 8] * j for j in range(1 + i % 5)] for i in range(40)}, "test": {"t": [[4]]}}
    return make(tmp_path / "store", tokenizer, clients, batch_clients=16)


@costly(4)
@given(data=st.data(), batch_clients=st.integers(1, 5), batch_bytes=st.integers(0, 40))
def test_round_trip(tmp_path_factory, tokenizer, data, batch_clients, batch_bytes):
    clients = data.draw(clients_strategy(tokenizer.vocabulary_size - 1))
    path = tmp_path_factory.mktemp("round") / "store"
    store = make(path, tokenizer, {"train": clients}, batch_clients=batch_clients, batch_bytes=batch_bytes)
    split = store.split("train")
    assert split.client_ids == list(clients)
    assert split.num_clients == len(clients)
    assert split.num_examples.tolist() == [len(sequences) for sequences in clients.values()]
    assert split.num_tokens.tolist() == [sum(map(len, sequences)) for sequences in clients.values()]
    for index, (client_id, sequences) in enumerate(clients.items()):
        client = split.client(index)
        assert split.client_id(index) == client_id
        assert [client.example(j).tolist() for j in range(client.num_examples)] == sequences
        assert client.offsets.tolist() == [0, *np.cumsum([len(s) for s in sequences])]
    header = store.header.splits["train"]
    assert (header.clients, header.examples) == (len(clients), sum(map(len, clients.values())))
    assert header.tokens == int(split.num_tokens.sum())
    assert max(header.batch_clients, default=0) <= batch_clients


def test_clients_are_views_of_the_mapped_file(store):
    before = pa.total_allocated_bytes()
    split = store.split("train")
    again = store.split("train")
    for index in (0, 17, 39):
        client = split.client(index)
        assert not client.values.flags.owndata
        assert not client.values.flags.writeable
        assert not client.stored_offsets.flags.owndata
        assert np.shares_memory(client.stored_offsets, again.client(index).stored_offsets)
    assert np.shares_memory(split.client(38).values, again.client(38).values)
    assert pa.total_allocated_bytes() <= before, "reading a client allocated Arrow memory"


def test_opening_does_not_touch_the_data(store, monkeypatch):
    def refuse(*_):
        raise AssertionError("a split was opened")

    monkeypatch.setattr(pa, "memory_map", refuse)
    assert TokenStore.open(store.path).header == store.header


def test_record_batches_are_bounded_by_bytes_and_wide_vocabularies_have_32_bits(tmp_path, tokenizer, monkeypatch):
    store = make(tmp_path / "store", tokenizer, {"train": {f"c{i}": [[5] * 10] for i in range(20)}}, batch_bytes=40)
    assert store.header.splits["train"].batch_clients == (2,) * 10
    monkeypatch.setattr(Tokenizer, "vocabulary_size", property(lambda self: 70_000))
    store = make(tmp_path / "wide", tokenizer, {"train": {"a": [[69_999, 1]]}})
    assert store.split("train").client(0).values.dtype == np.uint32
    assert store.split("train").client(0).values.tolist() == [69_999, 1]


def test_header_and_parameters(tmp_path, tokenizer):
    with StoreWriter(tmp_path / "s", "made up", tokenizer, parameters={"seed": 3}) as writer:
        writer.add("heldout", "a", [[4]])
        writer.record_skipped(SkippedCounts(Counter(empty=2)))
        writer.record_skipped(SkippedCounts(Counter(empty=1)))
    store = TokenStore.open(tmp_path / "s")
    assert (store.source, store.header.parameters, store.header.skipped) == ("made up", {"seed": 3}, {"empty": 3})
    assert store.fingerprint == store.tokenizer.fingerprint == tokenizer.fingerprint
    assert tuple(store.header.splits) == SPLITS
    assert store.split("train").num_clients == 0
    assert store.split("train").num_examples.shape == (0,)


def test_an_exception_or_a_full_disk_leaves_nothing(tmp_path, tokenizer, monkeypatch):
    def interrupted():
        yield [4]
        raise KeyboardInterrupt

    def full(*_):
        raise OSError(28, "No space left on device")

    with pytest.raises(KeyboardInterrupt), StoreWriter(tmp_path / "s", "x", tokenizer) as writer:
        writer.add("train", "a", interrupted())
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match="No space left"), StoreWriter(tmp_path / "s", "x", tokenizer) as writer:
        writer.add("train", "a", [[4]])
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_leaves_no_store(tmp_path, tokenizer):
    out = tmp_path / "made" / "store"
    writer = StoreWriter(out, "x", tokenizer).__enter__()
    writer.add("train", "a", [[4]])
    assert not out.exists()
    assert make(out, tokenizer, {}).split("train").num_clients == 0
    assert list(out.parent.iterdir()) == [out]


def test_destination_in_use(store, tokenizer, tmp_path):
    before = sorted(file.name for file in store.path.iterdir())
    with pytest.raises(DataError, match=r"a token store already.*pass overwrite=True"):
        StoreWriter(store.path, "x", tokenizer)
    with pytest.raises(RuntimeError), StoreWriter(store.path, "x", tokenizer, overwrite=True):
        raise RuntimeError
    assert TokenStore.open(store.path).split("train").num_clients == 40
    assert make(store.path, tokenizer, {}, overwrite=True).split("train").num_clients == 0
    assert sorted(file.name for file in store.path.iterdir()) == before
    assert list(tmp_path.iterdir()) == [store.path]


def test_overwrite_spares_what_is_not_a_store(tmp_path, tokenizer):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="not a token store"):
        StoreWriter(tmp_path, "x", tokenizer, overwrite=True)
    with pytest.raises(DataError, match="is a file"):
        StoreWriter(tmp_path / "thesis.txt", "x", tokenizer, overwrite=True)
    (tmp_path / "empty").mkdir()
    assert make(tmp_path / "empty", tokenizer, {}).split("train").num_clients == 0


def test_wrong_clients_are_refused(tmp_path, tokenizer):
    with StoreWriter(tmp_path / "s", "x", tokenizer) as writer:
        writer.add("train", "a", [[4]])
        with pytest.raises(DataError, match="client 'a' occurs twice"):
            writer.add("train", "a", [[5]])
        with pytest.raises(DataError, match=r"client 'a' occurs twice \(heldout, train\)"):
            writer.add("heldout", "a", [[5]])
        writer.add("test", "a", [[5]])  # a later time of the same user
        with pytest.raises(ValueError, match="split 'dev'"):
            writer.add("dev", "b", [[5]])
        for wrong in (-1, tokenizer.vocabulary_size):
            with pytest.raises(ValueError, match="token ids span"):
                writer.add("train", f"c{wrong}", [[4, wrong]])
    assert TokenStore.open(tmp_path / "s").split("train").client_ids == ["a"]


def test_unknown_split_and_client(store):
    with pytest.raises(DataError, match=r"no split 'valid'.*train, heldout, test"):
        store.split("valid")
    for index in (-1, 40):
        with pytest.raises(IndexError):
            store.split("train").client(index)


def edit_header(store, **changes):
    path = store.path / "store.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def swap_batches(store):
    header = json.loads((store.path / "store.json").read_text())
    header["splits"]["train"]["batch_clients"].reverse()
    edit_header(store, splits=header["splits"])


def edit(file, change):
    """Damage that changes the bytes of a file."""
    return lambda store: (store.path / file).write_bytes(change((store.path / file).read_bytes()))


def of_others(content):
    return train_tokenizer(["entirely other words here"], 40).to_json().encode()


def spoil_middle(content):
    first = len(content) // 8
    return content[:first] + b"\xff" * (len(content) - 1024 - first) + content[-1024:]


@pytest.mark.parametrize(
    ("damage", "file", "message"),
    [
        (lambda store: (store.path / "store.json").unlink(), "store.json", "fedlm data import"),
        (edit("store.json", lambda content: b"{"), "store.json", "Import the data again"),
        (lambda store: edit_header(store, format="other"), "store.json", "expected a token store"),
        (lambda store: edit_header(store, format_version=99), "store.json", "format version 99"),
        (lambda store: edit_header(store, splits={}), "store.json", "'train'"),
        (lambda store: edit_header(store, skipped=None), "store.json", "field is missing or wrong"),
        (edit("train.arrow", lambda content: content[:-8]), "train.arrow", r"found \d+ bytes, expected"),
        (lambda store: (store.path / "test.arrow").unlink(), "test.arrow", "no such file"),
        (lambda store: (store.path / "tokenizer.json").unlink(), "tokenizer.json", "no such file"),
        (edit("tokenizer.json", of_others), "tokenizer.json", "fingerprint"),
        (swap_batches, "train.arrow", "record batch 0 has .* instead of"),
        (edit("train.arrow", lambda content: bytes(len(content))), "train.arrow", "cannot be read"),
        (edit("train.arrow", spoil_middle), "train.arrow", "Import the data again"),
        (lambda store: edit_header(store, vocabulary_size=100_000), "train.arrow", "other columns"),
    ],
)
def test_damage_is_named(store, damage, file, message):
    damage(store)
    with pytest.raises(DataError, match=message) as caught:
        [split.client(index) for split in [TokenStore.open(store.path).split("train")] for index in range(40)]
    assert str(store.path / file) in str(caught.value)


def test_a_store_of_the_same_clients_has_the_same_fingerprint(small_store):
    train = TokenStore.open(small_store).split("train")
    clients = {name: train.client(index) for index, name in enumerate(train.client_ids)}
    assert TokensInMemory(clients).fingerprint() == train.fingerprint() == train.header.sha256
    first = next(iter(clients))
    for changed in ({"somebody else": clients[first]}, {first: clients[train.client_ids[1]]}):
        others = {name: client for name, client in clients.items() if name != first}
        assert TokensInMemory(changed | others).fingerprint() != train.header.sha256
    assert TokensInMemory(dict(reversed(clients.items()))).fingerprint() != train.header.sha256
