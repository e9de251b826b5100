"""Places that cannot be, or that hold something else, are told in one line, and nothing is written there."""

import pytest

TINY = ["--model", "cifg_tiny", "--length", "8"]
WRITING = {
    "simulate": [*TINY, "--rounds", "1", "--cohort-size", "4", "--data", "STORE"],
    "compare": ["--models", "cifg_tiny", "--rounds", "1", "--seeds", "0", "--workers", "1", "--data", "STORE"],
    "pretrain": [*TINY, "--steps", "1", "--batch-size", "4", "--privacy", "none", "--data", "STORE"],
    "serve": [*TINY, "--insecure", "--address", "127.0.0.1:0", "--linger-seconds", "0", "--vocabulary", "STORE"],
}


@pytest.fixture
def refused(small_store, fedlm_here):
    """Run a command that must be refused in one line; returns the line."""

    def refused(command, *words):
        result = fedlm_here(command, *(small_store if word == "STORE" else word for word in words))
        said = [line for line in result.stderr.splitlines() if line.startswith("fedlm ")]
        assert (result.returncode, len(said)) == (2, 1)
        return said[0]

    return refused


@pytest.mark.parametrize("command", WRITING)
def test_a_place_where_no_folder_can_be_is_named(command, tmp_path, refused):
    file = tmp_path / "file"
    file.write_text("mine")
    assert f"{file}: is a file, but must be a folder" in refused(command, *WRITING[command], "--out", file)
    assert "no folder can be made there (Not a directory)" in refused(command, *WRITING[command], "--out", file / "x")
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("command", "content", "what"),
    [
        ("compare", "summary.json", "holds a run"),
        ("simulate", "comparison.json", "holds a comparison"),
        ("pretrain", "store.json", "holds a data set"),
        ("serve", "comparison.json", "holds a comparison"),
    ],
)
def test_a_folder_of_something_else_is_left_as_it_is(command, content, what, tmp_path, refused):
    (tmp_path / content).write_text("{}")
    assert what in refused(command, *WRITING[command], "--out", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {content}


@pytest.mark.parametrize(("name", "source"), [("text.csv", "csv"), ("text.dat", "SOURCE")])
def test_a_file_of_text_is_to_be_imported_into_another_place(name, source, tmp_path, refused):
    file = tmp_path / name
    file.write_text('{"user": "a", "text": "b"}\n')
    said = refused("simulate", *TINY, "--data", file, "--out", tmp_path / "out")
    assert f"fedlm data import {source} {file} --out FOLDER" in said
    assert f"--out {file}" not in said


@pytest.mark.parametrize(
    "words",
    [
        ["status", "--server", "127.0.0.1:99999"],
        ["client", "--server", "127.0.0.1:99999", "--insecure", "--name", "a", "--data", "text.jsonl"],
        ["fleet", "--server", "127.0.0.1:0", "--insecure", "--data", "text.jsonl"],
        ["keys", "enrol", "--server", "localhost:port", "--ca", "ca.pem", "--token", "t", "--out", "x"],
    ],
)
def test_an_address_that_cannot_be_dialled_is_named(words, refused):
    assert "but must be HOST:PORT, with a port from 1 to 65535" in refused(*words)
