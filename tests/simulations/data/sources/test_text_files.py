import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data import group_encoding
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.tables.byte_parts import BytePart
from fedlm.simulations.data.sources.text_files import TextFiles, find_end, read_documents
from fedlm.simulations.data.splits import SPLITS
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from tests.simulations.data.made_up_store import import_made_up
from tests.simulations.data.sources.source_reading import byte_parts_of, read


def read_bytes(tmp_path, data, documents):
    (tmp_path / "some.txt").write_bytes(data)
    texts, skipped = read(TextFiles((tmp_path / "some.txt",), documents=documents))
    return [text.sentences[0] for text in texts], skipped


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("files", ["One text. Of two lines. Another. Last"]),
        ("lines", ["One text.", "Of two lines.", "Another.", "Last"]),
        ("paragraphs", ["One text. Of two lines.", "Another.", "Last"]),
    ],
)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_documents_are_files_lines_or_paragraphs(tmp_path, documents, expected, newline):
    data = b"\xef\xbb\xbfOne  text.\n Of\ttwo lines.\n\nAnother.\n \t\n\n\nLast".replace(b"\n", newline)
    found, skipped = read_bytes(tmp_path, data, documents)
    assert found == expected
    assert skipped.as_dict() == {}


def test_what_is_left_out_is_counted(tmp_path):
    found, skipped = read_bytes(tmp_path, b"One.\n\nTwo.\n\xff\nThree.\n", "lines")
    assert found == ["One.", "Two.", "Three."]
    assert skipped.as_dict() == {"bytes that are not UTF-8": 1}
    assert skipped.first_places()["bytes that are not UTF-8"].endswith("some.txt, line 4")
    found, skipped = read_bytes(tmp_path, b" \n", "files")
    assert (found, skipped.as_dict()) == ([], {"empty text": 1})


def test_each_byte_is_looked_at_once_for_the_line_of_what_is_left_out():
    looked_at = 0

    class Watched(bytes):
        def count(self, what, start=0, stop=None):
            nonlocal looked_at
            looked_at += (len(self) if stop is None else stop) - start
            return super().count(what, start, stop)

    data = Watched(b"one\n" + b"\xff\n" * 300)
    skipped, part = SkippedCounts(), BytePart(Path("some.txt"), 0, len(data), 1, True, data)
    assert len(list(read_documents("lines", [part], skipped))) == 1
    assert skipped.as_dict() == {"bytes that are not UTF-8": 300}
    assert skipped.first_places() == {"bytes that are not UTF-8": "some.txt, line 2"}
    assert looked_at <= len(data)


def test_a_folder_stands_for_the_text_files_below_it(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "A.TXT").write_text("First text.")
    (tmp_path / "below" / "b.Txt.gz").write_bytes(gzip.compress(b"Second text."))
    (tmp_path / "read.me").write_text("No text.")
    texts, _ = read(TextFiles((tmp_path,)))
    assert [text.sentences for text in texts] == [["First text."], ["Second text."]]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: found a folder without a file \*.txt"):
        TextFiles((tmp_path / "empty",)).files()


@pytest.mark.long
def test_long_documents_are_stored_whole(tmp_path):
    words = " ".join(f"{letter * 3}" for _ in range(3000) for letter in "abcdefg")
    for index in range(3):
        (tmp_path / f"{index}.txt").write_text(words.replace(" ", "\n", 1 + index))
    (tmp_path / "other.txt").write_text("aaa bbb")
    settings = ImportSettings(tokenizer="words", vocabulary_size=7)
    store = TokenStore.open(import_text("text", TextFiles((tmp_path,)), tmp_path / "store", settings, workers=1).path)
    splits = [store.split(name) for name in SPLITS]
    # Copies, however wrapped, are one client's.
    assert sorted(count for split in splits for count in split.num_tokens.tolist()) == [2, 3 * 21_000]
    split = max(splits, key=lambda split: split.num_tokens.sum())
    client = split.client(int(split.num_tokens.argmax()))
    assert client.lengths.tolist() == [21_000] * 3
    assert store.tokenizer.decode(client.example(2)) == words


@pytest.mark.parametrize("documents", ["lines", "paragraphs", "files"])
@given(
    data=st.lists(st.sampled_from([b"a", b"\n", b"b\n", b" \r\n", b"\n\n"]), min_size=5, max_size=30),
    size=st.integers(1, 6),
)
def test_tiny_parts_give_the_same_documents(documents, data, size):
    data = b"".join(data)
    whole, tiny = (
        list(read_documents(documents, byte_parts_of(data, find_end(documents), some), SkippedCounts()))
        for some in (1000, size)
    )
    assert whole == tiny


def test_few_long_documents_are_encoded_at_once_and_that_changes_nothing(tmp_path, monkeypatch):
    texts = [ClientText(f"c{i}", [f"word{i % 5} " * 50]) for i in range(40)]
    most, encode_batch = [], Tokenizer.encode_batch
    monkeypatch.setattr(
        Tokenizer, "encode_batch", lambda self, some: most.append(len(some)) or encode_batch(self, some)
    )
    stores = []
    for name, characters in (("a", 600), ("b", 1 << 20)):
        monkeypatch.setattr(group_encoding, "ENCODE_CHARACTERS", characters)
        store = import_made_up(tmp_path / name, texts)
        stores.append({file.name: file.read_bytes() for file in store.path.iterdir()})
    assert stores[0] == stores[1]
    assert most == [2] * 20 + [40]
