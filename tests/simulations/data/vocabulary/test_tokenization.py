import json
import os
import subprocess
import sys

import pytest
import tokenizers

from fedlm.fl_core.errors import DataError
from fedlm.models.special_tokens import BOS_ID, EOS_ID, OOV_ID, PAD_ID, SPECIAL_TOKENS
from fedlm.simulations.data.vocabulary.text_cutting import LONGEST_WORD
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer, count_words
from fedlm.simulations.data.vocabulary.tokenizer_kinds import TOKENIZERS
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings
from tests.simulations.data.vocabulary.trained_tokenizer import encode, train_tokenizer

TEXTS = [
    f"The {noun} {verb} the {other} near another {noun}, and {other}s {verb} it again."
    for noun in ("cat", "server", "tokenizer", "garden", "Café")
    for verb in ("watches", "reads", "serves", "trained")
    for other in ("dog", "client", "window", "river")
]

TRAIN = """
import random, sys
from tests.simulations.data.vocabulary.trained_tokenizer import train_tokenizer
from tests_texts import TEXTS
texts = TEXTS * 3
random.Random(int(sys.argv[1])).shuffle(texts)
print(train_tokenizer(texts, 70).fingerprint)
"""


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 200)


def test_special_tokens_have_their_ids(tokenizer):
    assert tokenizer.fingerprint == "2175afb010f950e962522110415e90ff9b155a09631fbe1af7a2dd95148c8364"
    vocabulary = json.loads(tokenizer.to_json())["model"]["vocab"]
    assert [vocabulary[token] for token in SPECIAL_TOKENS] == [PAD_ID, BOS_ID, EOS_ID, OOV_ID] == [0, 1, 2, 3]
    assert sorted(vocabulary.values()) == list(range(tokenizer.vocabulary_size))
    assert tokenizer.vocabulary_size <= 200


@pytest.mark.long
def test_training_does_not_depend_on_process_hash_seed_or_order(tmp_path):
    (tmp_path / "tests_texts.py").write_text(f"TEXTS = {TEXTS!r}\n")
    prints = set()
    for seed in range(2):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": str(seed),
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        }
        run = subprocess.run(
            [sys.executable, "-c", TRAIN, str(seed)], env=environment, capture_output=True, text=True, check=True
        )
        prints.add(run.stdout)
    assert len(prints) == 1


def test_encode_decode_and_case(tokenizer):
    ids = encode(tokenizer, ["The cat watches", "tHE CAT WATCHES", "the café", "", "the ☃☃ cat"])
    assert ids[0] == ids[1]
    assert ids[3] == []
    assert tokenizer.decode([BOS_ID, *ids[0], EOS_ID, PAD_ID]) == "the cat watches"
    assert tokenizer.decode(ids[2]) == "the cafe"
    assert ids[4].count(OOV_ID) == 1
    # Rare characters take no place in the vocabulary.
    assert encode(train_tokenizer([*TEXTS * 5, "☃ once"], 200), ["☃"]) == [[OOV_ID]]
    assert encode(train_tokenizer([*TEXTS, "☃ once"], 200), ["☃"]) != [[OOV_ID]]
    with pytest.raises(DataError, match="no word"):
        train_tokenizer(["", "  "], 70)
    with pytest.raises(DataError, match=r"Ask for at least \d+"):
        train_tokenizer(TEXTS, 10)


def test_save_and_load(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "t.json")
    loaded = Tokenizer.load(tmp_path / "t.json")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert encode(loaded, TEXTS) == encode(tokenizer, TEXTS)
    # Layout is not identity.
    document = json.loads((tmp_path / "t.json").read_text())
    turned = dict(reversed(document.items()))
    (tmp_path / "u.json").write_text(json.dumps(turned, indent=3))
    assert Tokenizer.load(tmp_path / "u.json").fingerprint == tokenizer.fingerprint
    assert train_tokenizer(TEXTS, 70).fingerprint != tokenizer.fingerprint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("{", "damaged"),
        ("[]", "damaged"),
        ("{}", r"expected \['\[PAD\]'"),
        ('{"model": {"vocab": {"[UNK]": 0}}}', "expected"),
        ('{"model": {"vocab": {"[PAD]": 0, "[BOS]": 1, "[EOS]": 2, "[UNK]": 3}}}', "damaged"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        Tokenizer.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", [name for name, kind in TOKENIZERS.items() if kind.SPACES_DIVIDE])
def test_words_above_the_longest_count_for_nothing(kind):
    settings, longest = TokenizerSettings(tokenizer=kind), "b" * LONGEST_WORD
    texts = ["the cat. sat", f"The cat {longest}", f"{'a' * (LONGEST_WORD + 1)} the cat", "zq" * 500_000]
    counted = count_words(texts, settings)
    assert counted == {"the": 3, "cat": 3, "sat": 1, ".": 1, longest: 1}
    found = json.loads(Tokenizer.train(counted, settings).to_json())["model"]["vocab"]
    assert not {"z", "q", "##z", "##q"} & set(found), "a letter of theirs has no place either"
    assert max(map(len, found)) <= LONGEST_WORD + len("##")


def test_characters_are_tokens_and_the_space_is_one_wherever_it_stands():
    tokenizer = train_tokenizer(["Too be, too"], 200, tokenizer="characters", lowercase=False)
    ids = encode(tokenizer, ["be  Too", "be", "z"])
    assert ids[0][:4] == [*ids[1], 4, 4]
    assert ids[2] == [OOV_ID]
    assert tokenizer.decode(ids[0]) == "be  Too"
    assert len(train_tokenizer(["Too be, too"], 3, tokenizer="characters").decode([4, 5, 6])) == 3


def test_the_longest_word_that_is_counted_is_the_longest_that_is_read():
    tokenizer = train_tokenizer(["ab" * 50], 200)
    read = encode(tokenizer, ["ab" * (LONGEST_WORD // 2), "ab" * (LONGEST_WORD // 2) + "a"])
    assert OOV_ID not in read[0]
    assert read[1] == [OOV_ID]


def test_a_tokenizer_that_reads_words_of_any_length_is_refused(tokenizer, tmp_path):
    definition = json.loads(tokenizer.to_json())
    definition["model"]["max_input_chars_per_word"] = 1000
    (tmp_path / "t.json").write_text(json.dumps(definition))
    assert OOV_ID not in Tokenizer.load(tmp_path / "t.json").encode_batch(["cat" * 100])[0]
    definition["model"]["max_input_chars_per_word"] = 1001
    (tmp_path / "t.json").write_text(json.dumps(definition))
    with pytest.raises(DataError, match=r"t\.json: .*max_input_chars_per_word is 1001, expected 1000 at"):
        Tokenizer.load(tmp_path / "t.json")


def test_definitions_that_write_special_tokens_are_refused(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "t.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "t.json"))
    library.add_special_tokens(["[BOS]"])
    library.save(str(tmp_path / "added.json"))
    with pytest.raises(DataError, match=r"added\.json: .*the text \[BOS\] encodes to the special token \[BOS\]"):
        Tokenizer.load(tmp_path / "added.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "t.json"))
    library.enable_padding(length=9)
    library.save(str(tmp_path / "padding.json"))
    with pytest.raises(DataError, match=r"padding\.json: tokenizer: pads or cuts"):
        Tokenizer.load(tmp_path / "padding.json")


WORDS = TokenizerSettings(tokenizer="words")


def test_raw_text_is_cut_as_the_published_data_was():
    text = "See <URL>, it's the “well-known” C++ foo_bar; don\u2019t 'quote' - ok? Cafe\u0301\tnow"
    expected = "see <URL> , it's the “ well-known ” c + + foo _ bar ; don't ' quote ' - ok ? café now"
    assert count_words([text], WORDS) == count_words([expected], WORDS, words_are_separated=True)
    assert list(count_words([text], WORDS)) == list(dict.fromkeys(expected.split()))


def test_separated_words_stay_whole():
    text = "use c++ , see <URL> it's ( asp.net )"
    assert list(count_words([text], WORDS, words_are_separated=True)) == text.split()
    tokenizer = train_tokenizer([text], 100, True, tokenizer="words")
    (ids,) = encode(tokenizer, [text])
    assert OOV_ID not in ids
    assert tokenizer.decode([BOS_ID, *ids, EOS_ID, PAD_ID]) == text


def test_case_can_be_kept():
    kept = count_words(["The the THE <URL>"], TokenizerSettings(tokenizer="words", lowercase=False))
    assert kept == {"The": 1, "the": 1, "THE": 1, "<URL>": 1}


def test_the_most_frequent_words_are_kept_and_ties_are_alphabetical():
    for texts in (["d d d c c b b a", "e"], ["e a b b", "c c d d d"]):
        tokenizer = train_tokenizer(texts, 3, tokenizer="words")
        assert tokenizer.vocabulary_size == 3 + len(SPECIAL_TOKENS)
        assert encode(tokenizer, ["a b c d e f"]) == [[OOV_ID, 5, 6, 4, OOV_ID, OOV_ID]]
