"""Batches of plans are those of docs/protocol.md, and its tokens those of the tokenizer."""

import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fedlm_client.errors import PlanError
from fedlm.fedlm_client.plans.batches import RoundSeed, batch_rows, random_words, sequences_of, shuffled, stream
from fedlm.fedlm_client.plans.manifest import Batches
from fedlm.fedlm_client.text.tokenizer import WordPiece
from fedlm.fl_core.rounds.client_examples import ClientExamples, padded_sequences
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.local_sgd import batch_rows as native_rows
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer, count_words
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings
from tests.fl_core.deployment.protocol.another_language import VECTORS

VECTOR = json.loads((VECTORS / "plan_batches.json").read_text())
STREAM = RoundSeed(VECTOR["seed"], VECTOR["round_number"], VECTOR["client_index"])
SPECIAL = {"length": 6, "pad": 0, "bos": 1, "eos": 2, "oov": 3}


def rules_of(found):
    names = ("batch_size", "epochs", "max_batches", "max_examples", "cap_order", "batches_across_epochs")
    return Batches(**SPECIAL, **{name: found[name] for name in names})


def test_orders_batches_and_words_are_those_of_the_page():
    for count, orders in VECTOR["orders"].items():
        for epoch, order in enumerate(orders):
            key = stream(STREAM[0], "shuffle", *STREAM[1:], epoch)
            assert shuffled(int(count), key).tolist() == order
    for one in VECTOR["batches"]:
        assert batch_rows(one["examples"], rules_of(one), 1000, STREAM).tolist() == one["rows"]
    for step, words in enumerate(VECTOR["random"]):
        assert random_words(rules_of(VECTOR["batches"][0]), STREAM, step).tolist() == words


class Orders:
    """The page's shuffle, for code that wants NumPy's."""

    def __init__(self):
        self.epoch = -1

    def permutation(self, count):
        self.epoch += 1
        return shuffled(count, stream(STREAM[0], "shuffle", *STREAM[1:], self.epoch))


@given(
    st.integers(1, 30),
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(1, 12),
    st.none() | st.integers(1, 30),
    st.booleans(),
    st.booleans(),
)
def test_batches_are_cut_as_local_sgd_cuts_them(count, size, epochs, most, kept, first, across):
    order = "cap_then_shuffle" if first and kept is not None else "shuffle_then_cap"
    training = LocalTraining(size, epochs, most, None, kept, order, across)
    found = batch_rows(count, Batches(6, size, epochs, most, kept, order, across, 0, 1, 2, 3), 1000, STREAM)
    assert found.tolist() == native_rows(count, training, Orders()).tolist()


@given(st.lists(st.lists(st.integers(4, 40), max_size=9), min_size=1, max_size=4))
def test_sequences_are_cut_and_padded_as_ours(texts):
    expected = padded_sequences(ClientExamples.from_sequences(texts), 6)
    np.testing.assert_array_equal(sequences_of(texts, rules_of(VECTOR["batches"][0])), expected)


@pytest.fixture(scope="module")
def tokenizers():
    texts = [
        "The cat sat, on the MAT.",
        "Straße caf\u00e9 \u4f60\u597d na\u00efve \u0130stanbul",
        "don't stop-now 3.14",
    ] * 3
    made = []
    for lowercase in (True, False):
        how = TokenizerSettings(vocabulary_size=120, lowercase=lowercase)
        tokenizer = Tokenizer.train(count_words(texts, how), how)
        made.append((tokenizer, WordPiece(tokenizer.to_json().encode())))
    return made


def is_old(character):
    """The library knows characters as Unicode 8 has them, and Python as its own version does: take what stayed."""
    return unicodedata.ucd_3_2_0.category(character) == unicodedata.category(character)


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cn"]).filter(is_old), max_size=40)
    | st.text("abcdeßéÉ İ,.'\t你a\u0301Σς", max_size=30)
)
def test_pieces_are_those_of_the_library(tokenizers, text):
    for tokenizer, ours in tokenizers:
        assert ours.encode(text) == tokenizer.encode_batch([text])[0].tolist()


def test_another_kind_of_tokenizer_is_refused():
    how = TokenizerSettings(tokenizer="words", vocabulary_size=10)
    other = Tokenizer.train(count_words(["a b c"], how), how)
    with pytest.raises(PlanError, match="WordPiece alone"):
        WordPiece(other.to_json().encode())
    with pytest.raises(PlanError, match="cannot be read"):
        WordPiece(b"{}")
