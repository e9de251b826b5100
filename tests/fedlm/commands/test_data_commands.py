import json

import pytest

from fedlm.commands.data import COMMAND
from fedlm.fl_core.errors import ConfigurationError, DataError


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    rows = [
        {"user": f"{name}{i}", "text": f"Message {j} of user {i} has <URL> and words."}
        for name in ("user", "\x1b[31mred")
        for i in range(30)
        for j in range(1 + i % 4)
    ]
    (folder / "messages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["import", "jsonl", str(folder / "messages.jsonl"), "--out", str(folder / "store")]
    assert COMMAND.main([*command, "--tokenizer", "words", "--vocabulary-size", "8", "--workers", "1"]) == 0
    return folder / "store"


def test_import_explains_tokenizers(capsys):
    with pytest.raises(SystemExit) as caught:
        COMMAND.main(["import", "jsonl", "--help"])
    assert caught.value.code == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "the 4 special tokens come on top" in printed
    assert "stackoverflow.word_count" in printed


def test_import_with_a_given_vocabulary(store, tmp_path):
    source = str(store.parent / "messages.jsonl")
    command = ["import", "jsonl", source, "--out", str(tmp_path / "s"), "--workers", "1"]
    assert COMMAND.main([*command, "--vocabulary", str(store)]) == 0
    assert (tmp_path / "s" / "train.arrow").read_bytes() == (store / "train.arrow").read_bytes()
    origin = json.loads((tmp_path / "s" / "store.json").read_text())["vocabulary_origin"]
    assert (origin["kind"], origin["of_another"]) == ("training data", True)


def test_import_says_which_splits_are_empty(tmp_path, capsys):
    said = []
    for users in (2, 60):
        rows = (json.dumps({"user": f"user{i}", "text": f"Message {i} has words."}) + "\n" for i in range(users))
        (tmp_path / "rows.jsonl").write_text("".join(rows))
        command = ["import", "jsonl", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / str(users))]
        assert COMMAND.main([*command, "--workers", "1"]) == 0
        said.append(capsys.readouterr().out)
    splits = json.loads((tmp_path / "2" / "store.json").read_text())["splits"]
    empty = [name for name, split in splits.items() if not split["clients"]]
    assert empty, "or this shows nothing"
    assert f"NO EXAMPLES in {' and '.join(empty)}: commands that need all three splits" in said[0]
    assert "NO EXAMPLES" not in said[1]


@pytest.mark.long
def test_describe_shows_coverage_and_cuts(store, capsys):
    assert COMMAND.main(["describe", str(store)]) == 0
    printed = capsys.readouterr().out
    for row in ("cut at length 10", "cut at length 50", "covered by the vocabulary", "vocabulary used"):
        assert row in printed
    assert COMMAND.main(["describe", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["train"]["vocabulary_used"] == 8


def test_sample_prints_text_but_no_commands_to_the_terminal(store, capsys):
    assert COMMAND.main(["sample", str(store), "--client", "user3", "--examples", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("client user3: 4 examples\n  1. message [OOV] of user [OOV] has")
    assert printed.endswith("  ... and 2 more\n")
    assert COMMAND.main(["sample", str(store), "--clients", "100"]) == 0
    printed = capsys.readouterr().out
    assert "client \ufffd[31mred" in printed
    assert "\x1b" not in printed
    assert COMMAND.main(["sample", str(store), "--clients", "2", "--seed", "5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["split"], len(document["clients"])) == ("train", 2)
    assert set(document["clients"][0]) == {"client_id", "num_examples", "examples"}


def test_sample_refuses_what_it_cannot_do(store):
    with pytest.raises(DataError, match="has no client 'nobody'"):
        COMMAND.main(["sample", str(store), "--client", "nobody"])
    with pytest.raises(ConfigurationError, match="examples is 0, but must be at least 1"):
        COMMAND.main(["sample", str(store), "--examples", "0"])
