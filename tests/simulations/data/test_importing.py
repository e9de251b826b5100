import json
from pathlib import Path

import numpy as np
import pytest

from fedlm.commands.data import COMMAND
from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.models.special_tokens import OOV_ID
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.describing.description import describe
from fedlm.simulations.data.grouping import client_digest
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources import standard_library as stdlib
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


@pytest.fixture
def store(small_store):
    return TokenStore.open(small_store)


def test_clients_are_in_their_splits(store):
    for name in ("train", "heldout", "test"):
        ids = store.split(name).client_ids
        assert ids == sorted(ids, key=client_digest)
        assert {split_of(client_id, 0) for client_id in ids} == {name}


def test_stored_tokens_decode_to_english(store):
    for name in ("train", "heldout", "test"):
        split = store.split(name)
        client = split.client(int(split.num_examples.argmax()))
        text = " ".join(store.tokenizer.decode(client.example(j)) for j in range(client.num_examples))
        assert {"the", "every"} & set(text.split())
        assert "[BOS]" not in text
        assert client.values.max() < store.vocabulary_size


def test_two_imports_are_the_same_bytes(tmp_path):
    for name in "ab":
        import_made_up(tmp_path / name, made_up_clients())
    files = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert files == ["heldout.arrow", "store.json", "test.arrow", "tokenizer.json", "train.arrow"]
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


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


def test_an_input_of_which_nothing_is_left_makes_no_store(tmp_path):
    """Also where a vocabulary is given, so that none has to be trained."""
    import_made_up(tmp_path / "s", made_up_clients())
    given = ImportSettings(vocabulary=tmp_path / "s" / "tokenizer.json")
    for texts, left_out in (
        ([], "Left out: nothing"),
        ([ClientText("half", ["\ud800"]), ClientText("blank", [])], "1 times text that is not Unicode, first "),
    ):
        with pytest.raises(DataError, match=f"found no text to import.*{left_out}"):
            import_made_up(tmp_path / "nothing", texts, given)
        assert not (tmp_path / "nothing").exists()


def test_clients_of_whom_none_is_left_make_no_store(tmp_path):
    settings = ImportSettings(vocabulary_size=60, min_examples=1000)
    with pytest.raises(DataError, match=r"no client is left to import. Left out: \d+ times .*fewer examples"):
        import_made_up(tmp_path / "nothing", made_up_clients(), settings)
    assert not (tmp_path / "nothing").exists()


def test_texts_that_are_all_held_out_are_told_from_no_texts(tmp_path):
    (held_out, *_) = [one for one in made_up_clients() if one.sentences and split_of(one.client_id, 0) == "heldout"]
    with pytest.raises(DataError, match=r"no word in the training texts.*split train \(by user.*texts of more users"):
        import_made_up(tmp_path / "nothing", [held_out])


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


def test_describe_agrees_with_numpy(tmp_path):
    import_made_up(tmp_path / "s", made_up_clients())
    store = TokenStore.open(tmp_path / "s")
    description = json.loads(json.dumps(describe(store)))
    assert description["skipped"] == {"text without a sentence": 1}
    assert description["fingerprint"] == store.tokenizer.fingerprint
    for name, found in description["splits"].items():
        split = store.split(name)
        clients = [split.client(i) for i in range(split.num_clients)]
        values = np.concatenate([client.values for client in clients])
        lengths = np.concatenate([client.lengths for client in clients])
        assert (found["clients"], found["examples"], found["tokens"]) == (len(clients), len(lengths), len(values))
        assert found["oov_share"] == pytest.approx(np.mean(values == OOV_ID))
        assert found["truncated_share"] == pytest.approx(np.mean(lengths + 2 > 20 + 1))
        for key, numbers in (("examples_per_client", split.num_examples), ("tokens_per_example", lengths)):
            expected = {
                "min": numbers.min(),
                "median": np.median(numbers),
                "mean": numbers.mean(),
                "p90": np.quantile(numbers, 0.9),
                "max": numbers.max(),
            }
            assert found[key] == pytest.approx(expected)


def test_command_describes_as_json(store, capsys):
    assert COMMAND.main(["describe", str(store.path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["splits"]["train"]["clients"] == store.split("train").num_clients
    assert "skipped" in document
    assert COMMAND.main(["describe", str(store.path)]) == 0
    assert "examples per client: median" in capsys.readouterr().out


def test_command_imports(tmp_path: Path, capsys, monkeypatch):
    root = tmp_path / "lib"
    root.mkdir()
    for i in range(30):
        (root / f"m{i}.py").write_text(f'"""This module has the number {i} in it. It is made for a test."""\n')
    monkeypatch.setattr(stdlib, "stdlib_root", lambda: root)
    out = tmp_path / "made" / "store"
    command = ["import", "stdlib", "--out", str(out), "--vocabulary-size", "100", "--workers", "1"]
    assert COMMAND.main(command) == 0
    printed = capsys.readouterr()
    assert f"fedlm data describe {out}" in printed.out
    assert TokenStore.open(out).vocabulary_size <= 100
    with pytest.raises(DataError, match="pass overwrite=True"):
        COMMAND.main(command)
    assert COMMAND.main([*command, "--overwrite"]) == 0


def test_unknown_actions_and_sources_are_refused():
    assert COMMAND.main([]) == COMMAND.main(["import"]) == 2
    with pytest.raises(ConfigurationError, match="unknown action 'imprt'; did you mean `fedlm data import`"):
        COMMAND.main(["imprt"])
    with pytest.raises(ConfigurationError, match="unknown source 'nowhere'; choose from stdlib, "):
        COMMAND.main(["import", "nowhere"])
