import dataclasses
import errno
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fedlm.command_line import command_tree
from fedlm.command_line.command_tree import COMMANDS, find_commands
from fedlm.command_line.progress import StepProgress
from fedlm.commands import models
from fedlm.commands.account import COMMAND as ACCOUNT
from fedlm.commands.cli import main


def test_models_as_json_are_exact_counts(capsys):
    assert main(["models", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["cifg_19m"] == counts["si_cifg_19m"] - 1024 == 18_884_608
    assert counts["cifg_6m"] == 6_242_250


@pytest.mark.parametrize("name", ["models", "no_such_command"])
def test_garbage_is_collected_again_once_a_command_is_imported(name, monkeypatch):
    monkeypatch.delitem(sys.modules, f"fedlm.commands.{name}", raising=False)
    with suppress(ModuleNotFoundError):
        assert command_tree.imported(name).__name__ == f"fedlm.commands.{name}"
    assert gc.isenabled()


def test_a_command_may_have_nowhere_to_write_to(monkeypatch):
    """A shell's `>&-` closes standard output before the command begins."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["--version"]) == 0


def test_a_server_says_where_adapters_are_trained(capsys):
    assert main(["serve", "--lora-rank", "4", "--out", "run"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedlm serve: there is no option --lora-rank; ")
    assert "option of `fedlm simulate`" in said
    assert len(said.splitlines()) == 1


@pytest.mark.long
def test_models_are_listed_with_their_objectives_and_sizes_of_another_vocabulary(capsys):
    assert main(["models", "--vocabulary-size", "10"]) == 0
    rows = {line.split()[1]: line.split() for line in capsys.readouterr().out.splitlines() if "_tiny" in line}
    assert (rows["cifg_tiny"][3], rows["bert_tiny"][3]) == ("causal", "masked")
    assert f"{381_696 - 4086 * 65:,}" in rows["cifg_tiny"]


GROUPS = ("data", "keys", "account", "runs", "run", "model", "plan", "laws", "audit")
HELPS = [["simulate"], ["data", "import", "jsonl"], ["account", "tree"], ["keys", "enrol"], ["laws", "fit"]]
"""The words of commands that explain options, of each kind one."""
OTHER_HELPS = [
    *([command] for command in COMMANDS if command not in (*GROUPS, "simulate")),
    *(["data", name] for name in ("describe", "sample", "relevance", "export")),
    *(["account", kind] for kind in ACCOUNT.choices if kind != "tree"),
    *(words.split() for words in ("keys ca", "keys token", "model import", "model export", "plan export")),
    *(words.split() for words in ("plan inspect", "runs list", "runs clean")),
    *(["run", action] for action in ("submit", "list", "show", "pause", "resume", "stop", "logs")),
    *(["laws", action] for action in ("run", "import", "figures", "table2", "report")),
    *(["audit", action] for action in ("verify", "export", "receipts")),
]


def help_of(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [*HELPS, *(pytest.param(one, marks=pytest.mark.long) for one in OTHER_HELPS)], ids=" ".join
)
def test_help_is_short_and_help_all_explains_every_option(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    brief, whole = (help_of([*words, option], capsys) for option in ("--help", "--help-all"))
    assert max(map(len, f"{brief}{whole}".splitlines())) <= 80
    assert len(brief.splitlines()) <= 120
    explained, in_brief = (set(re.findall(r"^  (--[\w\[\]-]+)", text, re.MULTILINE)) for text in (whole, brief))
    blocks = re.findall(r"^  also (.*\n(?:       --.*\n)*)", brief, re.MULTILINE)
    named = {flag for block in blocks for flag in block.split()}
    assert explained == in_brief | named
    assert not in_brief & named
    for option in re.findall(r"^  --.*\n(?:   .*\n)*", whole, re.MULTILINE):
        assert option.strip()[-1] in ".)", f"nothing explains {option}"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["simulat"], "`fedlm simulate`"),
        (["import"], "`fedlm data import` or `fedlm laws import` or `fedlm model import`"),
        (["jsonl"], "`fedlm data import jsonl`"),
        (["data", "simulate"], "`fedlm simulate` or `fedlm account simulate`"),
        (["keys", "clint"], "`fedlm keys client`"),
        (["data", "import", "json"], "`fedlm data import jsonl`"),
    ],
)
def test_an_unknown_sub_command_is_told_what_may_be_meant(words, meant, capsys):
    assert main(words) == main([]) == 2
    assert f"{words[-1]!r}; did you mean {meant}? Or choose from " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], "sets workers, which is no option of this command; 'workers' is an option of `fedlm data import`, `fedlm"),
        (["--split", "test"], "no option --split; --split is an option of `fedlm data import`, `fedlm data sample`, `"),
        (["--zyx", "x"], "there is no option --zyx; --help-all lists all options"),
    ],
)
def test_an_unknown_option_is_told_which_commands_have_it(words, found, tmp_path, capsys):
    (tmp_path / "run.toml").write_text("workers = 1\n")
    assert main(["simulate", *(words or ["--config", str(tmp_path / "run.toml")])]) == 2
    assert found in capsys.readouterr().err


def test_every_command_is_found_with_its_options(capsys):
    found = find_commands()
    assert {prog.split()[1] for prog in found} == set(COMMANDS)
    assert {"fedlm data import jsonl", "fedlm keys enrol", "fedlm account simulate"} <= set(found)
    assert all(dataclasses.is_dataclass(command) for command in found.values())
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_the_version_is_told_in_a_line(word, capsys):
    assert main([word]) == 0
    assert re.fullmatch(r"fedlm \S+, Python 3\.\d+\.\d+, jax \S+, \S+\n", capsys.readouterr().out)


@pytest.fixture
def failing(monkeypatch, tmp_path):
    """Let `fedlm models` raise an error."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def fail_with(error):
        def run(argv):
            raise error

        monkeypatch.setattr(models, "COMMAND", models.COMMAND._replace(main=run))

    return fail_with


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 38.0 GiB"), FileNotFoundError(errno.ENOENT, "No such file", "model.npz")]
)
def test_a_defect_is_a_line_and_a_file_with_the_traceback(error, failing, tmp_path, capsys):
    failing(error)
    assert main(["models", "--json"]) == 1
    said = capsys.readouterr().err
    (log,) = (tmp_path / "state" / "fedlm").iterdir()
    assert said.startswith("fedlm models: failed: ")
    assert "fedlm knows no mistake of yours that explains it" in said
    assert str(error) in said
    assert f"The traceback is in {log}, " in said
    assert said.count("\n") == 1
    assert log.stat().st_mode & 0o777 == 0o600
    text = log.read_text()
    assert "fedlm models --json\n" in text
    assert "Traceback" in text


def test_a_traceback_is_printed_to_those_who_ask_and_kept_where_files_can_be(failing, tmp_path, monkeypatch, capsys):
    failing(KeyError("heldout"))
    assert main(["--debug", "models"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
    # Of a user without a home it is where temporary files are.
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", _no_home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["models"]) == 1
    (log,) = tmp_path.glob("*.log")
    assert f"The traceback is in {log}, " in capsys.readouterr().err
    for variable in ("XDG_STATE_HOME", "TMPDIR"):
        monkeypatch.setenv(variable, "/dev/null/nowhere")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null/nowhere")
    assert main(["models"]) == 1
    said = capsys.readouterr().err
    assert "KeyError: 'heldout'. " in said
    assert "The traceback cannot be kept (" in said


def _no_home():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (errno.EACCES, 2, "run/x: Permission denied; give another path, or mend this one"),
        (errno.ENOTDIR, 2, "run/x: Not a directory; give another path, or mend this one"),
        (errno.ENOSPC, 1, "the disk is full ([Errno 28] No space left on device: 'run/x'); free some space, and "),
    ],
)
def test_places_that_cannot_be_used_are_named(number, status, said, failing, capsys):
    failing(OSError(number, os.strerror(number), "run/x"))
    assert main(["models"]) == status
    assert capsys.readouterr().err.startswith(f"fedlm models: {said}")


@pytest.mark.long
def test_a_reader_that_goes_away_is_no_error():
    words = [sys.executable, "-m", "fedlm", "models", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    assert process.wait() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--coordinator", "host:80"], "belong together"),
        (["--coordinator", "host", "--num-processes", "2", "--process-id", "0"], "HOST:PORT"),
        (["--coordinator", "host:70000", "--num-processes", "2", "--process-id", "0"], "HOST:PORT"),
        (["--coordinator", "host:80", "--num-processes", "2", "--process-id", "2"], "--process-id is 2"),
        (["--coordinator", "auto", "--num-processes", "2"], "leave them out"),
    ],
)
def test_options_of_several_processes_must_fit(options, message, capsys, tmp_path):
    words = ["simulate", "--model", "cifg_tiny", "--data", str(tmp_path), "--out", str(tmp_path / "out"), *options]
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_an_epsilon_on_the_way_is_no_less_than_it_was(capsys):
    with StepProgress("cifg_tiny") as progress:
        progress.published({"step": 4, "epsilon": 2.3401})
        progress.stepped(9, 9, 100.0)
    assert "epsilon 2.35 as" in " ".join(capsys.readouterr().err.split())


def test_the_time_left_is_not_by_what_was_compiled_for_the_first_step(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with StepProgress("cifg_tiny") as progress:
        for now[0], done in ((170.0, 5), (190.0, 7), (191.0, 8), (206.0, 9)):
            progress.stepped(done, 9, 100.0)
    left = [line.split(", ")[-1] for line in capsys.readouterr().err.splitlines()]
    assert left == ["? left", "0:20 left", "0:00 left"]


@pytest.mark.long
def test_devices_that_are_not_there_are_no_defect():
    platform = "no_such_platform"
    environment = os.environ | {"JAX_PLATFORMS": platform}
    words = [sys.executable, "-m", "fedlm", "generate", "nowhere", "--prompt", "a"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=100)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("fedlm")]
    assert line.startswith(
        f"fedlm generate: the environment has JAX_PLATFORMS={platform}, but JAX finds no such device"
    )
    assert "Traceback" not in done.stderr
