"""How cases, files, rules and allowed differences are read, and what a mistake in the command is told."""

import io
import zipfile

import numpy as np
import pytest
import safetensors.numpy

from tests.golden.__main__ import main
from tests.golden.cases import read_cases
from tests.golden.contents import read_file, read_folder
from tests.golden.differences import AllowedError, Difference, compare, read_allowed
from tests.golden.rules import normalised


def test_commands_are_read_as_they_are_typed():
    text = "P = --port {port}\n\n== a\none\n\n== b after a\ntwo \\\n    $P &\n[when l/*.log has x: y] three {relay}\n"
    first, second = read_cases(text + "[killed at b/1] four\n")
    assert first.lines == ("one",)
    assert second.needs == ("a",)
    request = second.request("folder", (5, 6))
    assert request["relay"] == [6, 5]
    assert request["commands"] == [
        {"background": True, "line": "two --port 5"},
        {"background": False, "wait": ["l/*.log", "x: y"], "line": "three 6"},
        {"background": False, "killed": "b/1", "line": "four"},
        {"background": False, "line": "four"},
    ]


def npz(array):
    file = io.BytesIO()
    np.savez(file, a=array)
    return file.getvalue()


def zipped(text, year):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("a", (year, 1, 1, 0, 0, 0)), text)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "first", "second", "fields"),
    [
        ("a.txt", b"one\ntwo", b"one\nTwo", {"line 2"}),
        ("a.json", b'{"a": {"b": [1, 2]}}', b'{"a": {"b": [1, 3]}}', {"a.b[1]"}),
        ("a.json", b'{"a": 0.1}', b'{"a": 0.10000000000000002}', {"a"}),
        ("a.jsonl", b'{"a": 1}\n{"a": 2}', b'{"a": 1}\n{"a": 3}', {"[1].a"}),
        ("a.html", b"<p>one</p><style>x</style>", b"<p>two</p><style>y</style>", {"text 0"}),
        ("a.html", b"<p>one<img src='x'></p>", b"<p>one<img src='y'></p>", {"picture 0"}),
        ("a.npz", npz(np.float32([0.0])), npz(np.float32([-0.0])), {"a"}),
        ("a.safetensors", *(safetensors.numpy.save({"a": np.float32([value])}) for value in (1, 2)), {"a"}),
        ("a.zip", zipped("x", 2000), zipped("y", 2000), {"a"}),
        ("a.bin", b"x", b"y", {""}),
    ],
)
def test_a_change_in_a_file_is_named(tmp_path, name, first, second, fields):
    assert changed(tmp_path / name, first, second) == fields


def changed(path, *contents):
    both = []
    for content in contents:
        path.write_bytes(content)
        both.append({path.name: read_file(path)})
    return {difference.field for difference in compare("case", *both)}


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("a.zip", zipped("x", 2000), zipped("x", 2001)),
        ("a.html", b"<p>one  two</p>", b"<p>one\n two</p>"),
        ("a.json", b'{"a": 1, "b": 2}', b'{"b": 2,"a": 1}'),
    ],
)
def test_what_only_packs_a_content_is_no_change(tmp_path, name, first, second):
    assert not changed(tmp_path / name, first, second)


def test_files_that_one_side_alone_has_are_differences(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "more.txt").write_text("")
    (found,) = compare("case", read_folder(tmp_path / "old"), read_folder(tmp_path / "new"))
    assert (found.path, found.old) == ("more.txt", None)


def test_rules_leave_out_times_and_nothing_else():
    rows = {"[0].seconds": "1.5", "[0].train_loss": "4.2", "[0].clients_dropped": "0"}
    said = {"line 1": "cifg round 1/3 loss 4.2, 0:10 left", "line 2": "fedlm: no such file"}
    found = normalised(
        {"run/metrics.jsonl": rows, "0.stderr.txt": said, "tb/events.out.tfevents.17.host": {"a at 1": "1"}}
    )
    assert found == {
        "run/metrics.jsonl": {"[0].train_loss": "4.2", "[0].clients_dropped": "0"},
        "0.stderr.txt": {"line 1": "fedlm: no such file"},
        "tb/events.out.tfevents": {"a at 1": "1"},
    }


def test_an_allowed_difference_is_a_line_with_a_reason(tmp_path):
    path = tmp_path / "allowed.txt"
    path.write_text("# comment\nserve* | run/summary.json *seconds | it is measured anew\n")
    (line,) = read_allowed(path)
    assert line.covers(Difference("serve_http", "run/summary.json", "a.seconds", "1", "2"))
    assert not line.covers(Difference("serve_http", "run/summary.json", "a.loss", "1", "2"))
    assert not line.covers(Difference("text", "run/summary.json", "a.seconds", "1", "2"))
    path.write_text("serve | run/summary.json\n")
    with pytest.raises(AllowedError, match=r"line 1: expected CASE \| WHAT \| REASON"):
        read_allowed(path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--against COMMIT says which code"),
        (["--against", "no-such-commit"], "'no-such-commit' is no commit"),
        (["--against", "HEAD", "--cases", "txet"], "no case is called txet; choose from text"),
        (["--against", "HEAD", "--keep", "/"], "/ is there already"),
        (["--against", "HEAD", "--jobs", "0"], "--jobs must be at least 1"),
    ],
)
def test_mistakes_end_with_two(words, said, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert said in capsys.readouterr().err
