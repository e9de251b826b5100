import random
import re

from hypothesis import example, given
from hypothesis import strategies as st

from fedlm.models.special_tokens import BOS_ID, EOS_ID, OOV_ID, PAD_ID, SPECIAL_TOKENS
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer, count_words
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings
from tests.simulations.data.vocabulary.trained_tokenizer import encode, train_tokenizer

WORDS = TokenizerSettings(tokenizer="words")
SPELLED_SPECIAL = ["[PAD]", "[EOS] [BOS]", "x[PAD]y", "[PAD] a", "[pad]", "[UNK]", "[[BOS]PAD]"]


def train(texts, size=100, separated=False, lowercase=True):
    return train_tokenizer(texts, size, separated, tokenizer="words", lowercase=lowercase)


def test_raw_text_is_cut_as_the_published_data_was():
    text = "See <URL>, it's the “well-known” C++ foo_bar; don\u2019t 'quote' - ok? Cafe\u0301\tnow"
    expected = "see <URL> , it's the “ well-known ” c + + foo _ bar ; don't ' quote ' - ok ? café now"
    assert count_words([text], WORDS) == count_words([expected], WORDS, words_are_separated=True)
    assert list(count_words([text], WORDS)) == list(dict.fromkeys(expected.split()))


def test_separated_words_stay_whole():
    text = "use c++ , see <URL> it's ( asp.net )"
    assert list(count_words([text], WORDS, words_are_separated=True)) == text.split()
    tokenizer = train([text], separated=True)
    (ids,) = encode(tokenizer, [text])
    assert OOV_ID not in ids
    assert tokenizer.decode([BOS_ID, *ids, EOS_ID, PAD_ID]) == text


def test_case_can_be_kept():
    assert count_words(["The the THE <URL>"], TokenizerSettings(tokenizer="words", lowercase=False)) == {
        "The": 1,
        "the": 1,
        "THE": 1,
        "<URL>": 1,
    }


def test_the_most_frequent_words_are_kept_and_ties_are_alphabetical(tmp_path):
    tokenizer = train(["d d d c c b b a", "e"], 3)
    assert tokenizer.vocabulary_size == 3 + len(SPECIAL_TOKENS)
    assert encode(tokenizer, ["a b c d e f"]) == [[OOV_ID, 5, 6, 4, OOV_ID, OOV_ID]]


def test_the_same_counts_give_the_same_bytes(tmp_path):
    words = [f"w{i}" for i in range(50)]
    contents = set()
    for seed in range(3):
        random.Random(seed).shuffle(words)
        Tokenizer.train(dict.fromkeys(words, 2), WORDS).save(tmp_path / "t.json")
        contents.add((tmp_path / "t.json").read_bytes())
    assert len(contents) == 1


@given(
    st.text() | st.sampled_from(SPELLED_SPECIAL),
    st.booleans(),
    st.booleans(),
)
@example("\x1f", True, False)
def test_no_text_encodes_to_padding_or_sentence_ends(text, separated, lowercase):
    tokenizer = train(["some words", *SPELLED_SPECIAL], separated=separated, lowercase=lowercase)
    (ids,) = encode(tokenizer, [text])
    assert not {PAD_ID, BOS_ID, EOS_ID} & set(ids)
    if separated:
        # Python's split takes the separators 0x1c to 0x1f for spaces, too.
        assert len(ids) == len(re.findall(r"[^ \t\n\v\f\r]+", text)) or not text.isascii()
