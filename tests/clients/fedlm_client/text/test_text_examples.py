"""Which texts count: the same wherever text is read, by one table of cases."""

import json

import numpy as np
import pytest

import fedlm
from fedlm.fedlm_client.errors import ClientError
from fedlm.fedlm_client.text import text_examples
from fedlm.fedlm_client.text.example_store import ExampleStore
from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.sources.tables.jsonl import JsonLines
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from tests.clients.rules import RULES, named

CUTS = text_examples.CUTS


@pytest.mark.parametrize("case", RULES["examples"], ids=named)
def test_a_text_is_cut_into_its_examples(case):
    assert {cut: text_examples.examples_of(case["text"], cut) for cut in CUTS} == {cut: case[cut] for cut in CUTS}


@pytest.mark.parametrize("cut", CUTS)
def test_a_device_cuts_as_an_import_does(tmp_path, cut):
    path = tmp_path / "all.jsonl"
    for number, case in enumerate(RULES["examples"]):
        path.write_text(json.dumps({"user": f"user{number}", "text": case["text"]}) + "\n")
        reading = JsonLines(paths=(path,), examples=cut).open(tmp_path, lambda *progress: None)
        skipped = SkippedCounts()
        imported = [found.sentences for part in reading.parts for found in reading.read(part.content, skipped)]
        assert imported == ([case[cut]] if case[cut] else [])
        assert ExampleStore(path).examples(cut) == case[cut]
        if not case[cut]:
            assert skipped.first_places() in ({reason: f"{path}, line 1"} for reason in skipped.as_dict())


def test_data_in_memory_leaves_out_what_an_import_does():
    texts = [case["text"] for case in RULES["examples"] if text_examples.is_unicode(case["text"])]
    people = {"ann": texts, "bob": ["", "one"]}
    data = fedlm.DataInMemory.from_texts(people, heldout={"c": ["one"]}, test={"d": ["one"]}, vocabulary_size=80)
    with_words = [text for text in texts if text.strip() and text.strip("\u200b\ufeff")]
    assert data.split("train").num_examples.tolist() == [len(with_words), 1]


def test_white_space_is_no_text_in_memory_whatever_the_tokenizer_makes_of_it(monkeypatch):
    people = {"ann": [" ", "\u2003", "one"]}, {"c": ["one"]}, {"d": ["one"]}
    monkeypatch.setattr(Tokenizer, "encode_batch", lambda self, texts: [np.full(len(text), 4) for text in texts])
    data = fedlm.DataInMemory.from_texts(people[0], heldout=people[1], test=people[2], vocabulary_size=40)
    assert data.split("train").num_examples.tolist() == [1]


def test_an_example_without_a_token_does_not_count():
    assert list(map(len, text_examples.with_tokens([np.arange(2), np.arange(0), [1], []]))) == [2, 1]


@pytest.mark.parametrize("case", RULES["lines"], ids=named)
def test_a_line_is_an_example_or_is_named(tmp_path, case):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(case["content"].encode())
    if case["error"] is None:
        assert ExampleStore(path).texts() == case["texts"]
        return
    with pytest.raises(ClientError) as caught:
        ExampleStore(path).texts()
    assert str(caught.value).startswith(f"{path}: {case['error']}")


def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    with pytest.raises(ClientError, match="line 2 is not UTF-8"):
        ExampleStore(path).texts()
