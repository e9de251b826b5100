import pickle
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from fedlm.models.special_tokens import BOS_ID, EOS_ID, PAD_ID
from fedlm.simulations.data.vocabulary.piece_cache import PieceCache
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from tests.simulations.data.vocabulary.trained_tokenizer import encode, train_tokenizer

SPELLED_SPECIAL = ["[PAD]", "[EOS] [BOS]", "x[PAD]y", "[PAD] a", "[pad]", "[UNK]", "[[BOS]PAD]"]
TEXTS = ["The cat's café is well-known, see <URL> [PAD] now.", "日本 a\u0301 it\u2019s ǅ İstanbul", *SPELLED_SPECIAL]
# Characters that normalization treats in some way, close to spaces.
PIECES = st.sampled_from(
    "a,the,cat, ,  ,\u0301,\u0338,<,<url>,<URL>,[PAD],[,',-,\u2019,\x1c,\x85,\u200b,\xa0,\u3000,\n,\t,日,İ,ς,Σ,ﬁ,"
    "\ud55c,\u1112\u1161,😀,\0,.".split(",")
)
TEXT = st.lists(PIECES | st.sampled_from(SPELLED_SPECIAL) | st.characters(exclude_categories=["Cs"]), max_size=12).map(
    "".join
)


@pytest.fixture(
    scope="module",
    params=[("wordpiece", False, True), ("wordpiece", False, False)]
    + [("words", separated, lowercase) for separated in (False, True) for lowercase in (False, True)],
    ids=str,
)
def tokenizer(request):
    kind, separated, lowercase = request.param
    made = train_tokenizer(TEXTS, 150, separated, tokenizer=kind, lowercase=lowercase)
    made.separated = separated
    return made


@given(texts=st.lists(TEXT | st.text(max_size=8), max_size=5))
@example(["\x1f", *SPELLED_SPECIAL])
def test_encoding_is_that_of_the_library_and_writes_neither_padding_nor_sentence_ends(tokenizer, texts):
    assert tokenizer._cache is not None
    library = tokenizer._tokenizer.encode_batch(texts, add_special_tokens=False)
    assert encode(tokenizer, texts) == [encoding.ids for encoding in library]
    for text, ids in zip(texts, encode(tokenizer, texts), strict=True):
        assert not {PAD_ID, BOS_ID, EOS_ID} & set(ids)
        assert all(0 <= id_ < tokenizer.vocabulary_size for id_ in ids)
        if tokenizer.separated and text.isascii():
            # Python's split takes the separators 0x1c to 0x1f for spaces, too.
            assert len(ids) == len(re.findall(r"[^ \t\n\v\f\r]+", text))


def span_spaces(other):
    other.add_tokens(["the cat"])


def cut_nowhere(other):
    other.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()


@pytest.mark.parametrize("change", [span_spaces, cut_nowhere])
def test_a_definition_that_is_not_ours_is_encoded_by_the_library(tokenizer, change, tmp_path):
    tokenizer.save(tmp_path / "ours.json")
    other = tokenizers.Tokenizer.from_file(str(tmp_path / "ours.json"))
    change(other)
    other.save(str(tmp_path / "other.json"))
    found = encode(Tokenizer.load(tmp_path / "other.json"), ["see the cat now"])
    assert found == [other.encode("see the cat now").ids]


def test_each_piece_is_encoded_once_while_it_is_remembered():
    calls = []

    def encode_pieces(pieces):
        calls.extend(pieces)
        return [list(map(ord, piece)) for piece in pieces]

    cache = PieceCache(encode_pieces)
    for _ in range(2):
        found = cache.encode_batch(["ab c ab", "", "c  d"])
        assert [ids.tolist() for ids in found] == [[97, 98, 99, 97, 98], [], [99, 100]]
    assert sorted(calls) == ["", "ab", "c", "d"]
    assert cache.encode_batch([]) == []
    calls.clear()
    bounded = PieceCache(encode_pieces, most_pieces=2)
    for text in ("a bb ccc", "a bb", "a bb"):
        bounded.encode_batch([text])
    assert calls == ["a", "bb", "ccc", "a", "bb"]


def test_a_failure_leaves_nothing_half_remembered(tokenizer):
    cache = PieceCache(tokenizer._encode_whole)
    with pytest.raises(TypeError):
        cache.encode_batch(["cat \ud800"])
    assert [ids.tolist() for ids in cache.encode_batch(["cat"])] == encode(tokenizer, ["cat"])


def test_threads_share_what_is_remembered():
    """A second thread asks while the pieces of the first are being encoded."""
    others = []

    def encode(pieces):
        if "first" in pieces:
            others.append(executor.submit(cache.encode_batch, ["second third"]))
            time.sleep(0.05)
        return [[len(piece)] for piece in pieces]

    cache = PieceCache(encode)
    with ThreadPoolExecutor() as executor:
        (found,) = cache.encode_batch(["first piece"])
        (other,) = others[0].result()
    assert (found.tolist(), other.tolist()) == ([5, 5], [6, 5])
    (copied,) = pickle.loads(pickle.dumps(PieceCache(bytes_of))).encode_batch(["to b"])
    assert copied.tolist() == [116, 111, 98]


def bytes_of(pieces):
    return [piece.encode() for piece in pieces]
