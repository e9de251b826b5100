"""Runs of any kind in a list, and what of them is removed."""

import json

import pytest

from fedlm.commands.cli import main
from tests.fl_core.runs.test_recorded_runs import TERMS, make_run


@pytest.fixture
def runs(tmp_path):
    """A folder with a finished run, a shorter private one, one that diverged, and one of central training."""
    folder = tmp_path / "runs"
    make_run(folder / "plain")
    make_run(folder / "stopped <b>", rounds=2, status=None, client_learning_rate=2.0)
    make_run(folder / "private", private=True)
    make_run(folder / "lost", status="diverged")
    central = make_run(folder / "central", status=None, steps=9, data="other")
    (central / "metrics.jsonl").write_text('{"step": 2, "heldout_perplexity": 5.0, "seconds": 3.0}\n')
    return folder


def listed(capsys, *words):
    assert main(["runs", "list", *map(str, words), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_runs_are_listed_and_sorted(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    found = listed(capsys, runs, "--sort", "heldout")
    assert [run["heldout_perplexity"] for run in found] == [5.0, 7.0, 7.0, 7.0, 9.0]
    assert [run["kind"] for run in found] == ["pretrain"] + 4 * ["simulate"]
    assert main(["runs", "list", str(runs)]) == 0
    text = capsys.readouterr().out
    for part in (TERMS, "NOT PRIVATE", "4/4", "diverged"):
        assert part in text


def test_cleaning_only_says_what_it_would_do_until_it_is_told(runs, capsys):
    older = runs / "plain" / "checkpoints" / "2"
    assert main(["runs", "clean", str(runs)]) == 0
    assert "give --yes to remove it" in capsys.readouterr().out
    assert older.exists()
    assert main(["runs", "clean", str(runs), "--yes"]) == 0
    assert not older.exists()
    assert (older.parent / "4").exists()
    assert main(["runs", "clean", str(runs), "--yes"]) == 0
    assert "nothing can be removed" in capsys.readouterr().out
    assert main(["runs", "clean", str(runs), "--whole", "--yes"]) == 2
    assert "not the folder of a run" in capsys.readouterr().err
    assert main(["runs", "clean", str(runs / "plain"), "--whole"]) == 0
    assert (runs / "plain").exists()
    assert main(["runs", "clean", str(runs / "plain"), "--whole", "--yes"]) == 0
    assert not (runs / "plain").exists()
    assert main(["runs", "clean", str(runs / "private"), "--whole", "--yes"]) == 2
    assert "give --with-ledger" in capsys.readouterr().err
