import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.grouping import client_digest
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.in_memory import InMemoryText
from fedlm.simulations.data.splits import split_of
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer, count_words
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings

SMALL = ImportSettings(vocabulary_size=60)


def import_made_up(out, texts, settings=SMALL, **options):
    return import_text("made up", InMemoryText(texts), out, settings, workers=1, **options)


def made_up_clients():
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
    return [
        ClientText(f"client{i}", [" ".join(words[(i * j + k) % 10] for k in range(1 + (i + j) % 30)) for j in range(i)])
        for i in range(60)
    ]


HELD_OUT = [one for one in made_up_clients() if one.sentences and split_of(one.client_id) == "heldout"][:1]


def test_clients_are_in_their_splits(small_store):
    for name in ("train", "heldout", "test"):
        ids = TokenStore.open(small_store).split(name).client_ids
        assert ids == sorted(ids, key=client_digest)
        assert {split_of(client_id, 0) for client_id in ids} == {name}


def test_tokenizer_sees_the_train_split_only(tmp_path):
    summary = import_made_up(tmp_path / "s", made_up_clients(), ImportSettings(vocabulary_size=60, seed=3))
    train = [s for c in made_up_clients() if split_of(c.client_id, 3) == "train" for s in c.sentences]
    expected = Tokenizer.train(count_words(train), TokenizerSettings(vocabulary_size=60))
    assert summary.header.tokenizer_fingerprint == expected.fingerprint


def test_nothing_is_dropped_silently(tmp_path):
    texts = [*made_up_clients(), ClientText("blank", ["", " \n"]), ClientText("half", ["\ud800"])]
    summary = import_made_up(tmp_path / "s", texts)
    assert summary.header.skipped == {
        "client without text": 1,  # "blank"
        "sentence without a token": 2,
        "text that is not Unicode": 1,
        "text without a sentence": 1,  # client0's
    }
    assert summary.header.first_skipped["client without text"] == "client 'blank'"
    assert sum(split.clients for split in summary.header.splits.values()) == 59
    with pytest.raises(DataError, match="pass overwrite=True"):
        import_made_up(tmp_path / "s", texts)


@pytest.mark.parametrize(
    ("texts", "changes", "said"),
    [
        ([], {}, "found no text to import.*Left out: nothing"),
        ([ClientText("half", ["\ud800"])], {}, "found no text to import.*1 times text that is not Unicode, first "),
        (
            made_up_clients(),
            {"min_examples": 1000},
            r"no client is left to import. Left out: \d+ times .*fewer examples",
        ),
        (HELD_OUT, {"vocabulary": None}, r"no word in the training texts.*split train \(by user.*texts of more users"),
    ],
)
def test_an_input_of_which_nothing_is_left_makes_no_store(tmp_path, texts, changes, said):
    """Also where a vocabulary is given, so that none has to be trained."""
    import_made_up(tmp_path / "s", made_up_clients())
    settings = {"vocabulary": tmp_path / "s" / "tokenizer.json"} | changes
    with pytest.raises(DataError, match=said):
        import_made_up(tmp_path / "nothing", texts, ImportSettings(**settings))
    assert not (tmp_path / "nothing").exists()


def test_a_clients_texts_are_joined_in_order(tmp_path):
    texts = [
        ClientText("a", ["alpha"], order=2),
        ClientText("b", ["beta gamma"]),
        ClientText("a", ["gamma", "beta"], order=1),
        ClientText("a", ["alpha beta"], order=2),
    ]
    store = TokenStore.open(import_made_up(tmp_path / "s", texts).path)
    split = store.split("train")
    index = split.client_ids.index("a")
    decoded = [store.tokenizer.decode(split.client(index).example(j)) for j in range(4)]
    assert decoded == ["gamma", "beta", "alpha", "alpha beta"]
