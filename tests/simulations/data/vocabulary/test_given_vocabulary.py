import json

import pytest

from fedlm.fl_core.errors import DataError
from fedlm.models.special_tokens import OOV_ID, SPECIAL_TOKENS
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.in_memory import InMemoryText
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.vocabulary.given_vocabulary import given_tokenizer
from fedlm.simulations.data.vocabulary.tokenizer_kinds import TOKENIZERS
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings
from tests.simulations.data.vocabulary.trained_tokenizer import encode, train_tokenizer

BERT = "[PAD]\n[unused0]\n[unused99]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n##s\nun\n##able\n.\n"
COUNTS = "the 90\n<URL> 31\nc++ 31\ncat 2\ndog 1\n"


def take(path, content, kind, separated=False, **settings):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return given_tokenizer(TokenizerSettings(tokenizer=kind, vocabulary=path, **settings), separated)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_bert_vocabulary_has_our_special_tokens_for_its_own(tmp_path, line_end):
    tokenizer = take(tmp_path / "vocab.txt", BERT.replace("\n", line_end), "wordpiece", vocabulary_size=5)
    tokenizer.save(tmp_path / "t.json")
    vocabulary = json.loads((tmp_path / "t.json").read_text())["model"]["vocab"]
    assert vocabulary == {
        token: id_ for id_, token in enumerate([*SPECIAL_TOKENS, "the", "cat", "##s", "un", "##able", "."])
    }
    assert encode(tokenizer, ["The cats unable, [CLS]."])[0][:5] == [4, 5, 6, 7, 8]
    assert tokenizer.decode(encode(tokenizer, ["the cats."])[0]) == "the cats."


def test_the_published_word_counts(tmp_path):
    tokenizer = take(tmp_path / "stackoverflow.word_count", COUNTS, "words", separated=True, vocabulary_size=4)
    assert tokenizer.vocabulary_size == 4 + len(SPECIAL_TOKENS)
    assert encode(tokenizer, ["the <URL> c++ cat dog"]) == [[4, 5, 6, 7, OOV_ID]]
    tokenizer = take(tmp_path / "v", "The 3\nthe 2\n", "words", lowercase=False)
    assert encode(tokenizer, ["the The"]) == [[5, 4]]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_tokenizer_of_ours_is_taken_as_it_is(tmp_path, kind):
    tokenizer = train_tokenizer(["some words, here"], 40, tokenizer=kind)
    tokenizer.save(tmp_path / "t.json")
    settings = TokenizerSettings(vocabulary=tmp_path / "t.json", lowercase=False)
    assert given_tokenizer(settings).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("wordpiece", "the\n\ncat\n", "line 2: found '', expected one token"),
        ("wordpiece", COUNTS, "line 1: found 'the 90', expected one token a line.*tokenizer='words'"),
        ("wordpiece", "the\ncat\nthe\n", "line 3: found 'the' a second time"),
        ("wordpiece", "the\nCat\n", "line 2: found 'Cat'.*lowercase=False"),
        ("wordpiece", "[UNK]\n", "found no token"),
        ("wordpiece", b"the\n\xff\xfe\n", "line 2: found bytes that are not UTF-8"),
        ("words", BERT, r"line 1: found '\[PAD\]', expected a word.*tokenizer='wordpiece'"),
        ("words", "the 9\nof x\n", "line 2: found 'of x', expected a word"),
        ("words", "the 9\nof 10\n", "line 2: found 'of' with count 10 after a word with count 9"),
        ("words", "the 9\nThe 9\n", "line 2: found 'The'.*lowercase=False"),
        ("characters", " \ne\nthe 9\n", "line 3: found 'the 9', expected one character a line.*tokenizer='words'"),
    ],
)
def test_bad_files_are_named(tmp_path, kind, content, message):
    path = tmp_path / "vocabulary"
    with pytest.raises(DataError, match=message) as caught:
        take(path, content, kind)
    assert str(path) in str(caught.value)


def test_missing_files_are_named(tmp_path):
    assert given_tokenizer(TokenizerSettings()) is None
    with pytest.raises(DataError, match=r"none.txt: found nothing, expected a vocabulary"):
        given_tokenizer(TokenizerSettings(vocabulary=tmp_path / "none.txt"))
    with pytest.raises(DataError, match=r"found a folder without a tokenizer\.json, expected a vocabulary"):
        given_tokenizer(TokenizerSettings(vocabulary=tmp_path))


def test_an_import_with_a_vocabulary_trains_nothing_and_begins_anew_with_another(tmp_path):
    path = tmp_path / "stackoverflow.word_count"
    path.write_text(COUNTS)
    source = InMemoryText([ClientText(f"c{i}", ["the <URL> c++ word"]) for i in range(20)], words_are_separated=True)
    settings = ImportSettings(tokenizer="words", vocabulary=path, vocabulary_size=3)

    def imported(out, progress):
        store = TokenStore.open(
            import_text("made up", source, tmp_path / out, settings, workers=1, progress=progress).path
        )
        return store.split("train").client(0).example(0).tolist()

    phases = []
    assert imported("s", lambda phase, *rest: phases.append(phase)) == [4, 5, 6, OOV_ID]
    assert list(dict.fromkeys(phases)) == ["read", "tokenize", "write"]

    def stop_before_writing(phase, *rest):
        if phase == "write":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        imported("other", stop_before_writing)
    path.write_text("word 3\nc++ 2\nthe 1\n")
    assert imported("other", lambda *call: None) == [6, OOV_ID, 5, 4]
