"""Runs of any kind beside each other, on a page and in a list, and what is said of those that cannot be compared."""

import csv
import json

import pytest

from fedlm.commands.cli import main
from fedlm.fl_core.runs.recorded_runs import find_runs
from fedlm.simulations.reporting.runs_page import different_settings, name_runs, points, warnings
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


def test_names_are_as_short_as_they_can_be(tmp_path):
    for model in ("a", "b"):
        make_run(tmp_path / "cells" / model / "rates" / "seed-0")
    make_run(tmp_path / "plain")
    assert [name for name, _ in name_runs(find_runs(tmp_path))] == ["a", "b", "plain"]
    make_run(tmp_path / "cells" / "b" / "rates" / "seed-1")
    assert len({name for name, _ in name_runs(find_runs(tmp_path))}) == 4


def test_points_count_what_was_spent_until_then(runs):
    plain = next(run for run in find_runs(runs) if run.directory.name == "plain")
    assert points(plain, "perplexity")[1][:3] == (2, 9.0, 2e6)
    assert points(plain, "accuracy") == []


def test_what_keeps_runs_from_being_compared_is_said(runs):
    said = " ".join(warnings(find_runs(runs)))
    assert "different data sets" in said
    assert "Not all of these runs are over." in said
    assert "vocabular" not in said
    assert warnings([run for run in find_runs(runs) if run.directory.name in ("plain", "private")]) == []


def test_settings_that_differ_are_listed(runs):
    found = dict(different_settings(name_runs(find_runs(runs))))
    assert found["client_learning_rate"] == ["–", "–", "–", "–", "2.0"]  # noqa: RUF001
    assert "model" not in found


@pytest.mark.long
def test_the_page_shows_every_run_and_escapes_their_names(runs, tmp_path, capsys):
    out = tmp_path / "overlay"
    assert main(["runs", "compare", str(runs), "--out", str(out)]) == 0
    assert f"report: {out / 'report.html'}" in "".join(capsys.readouterr().out.splitlines())
    text = (out / "report.html").read_text()
    assert "stopped &lt;b&gt;" in text
    assert "<b>" not in text.split("<main>")[1]
    assert TERMS in text
    names = ["central", "lost", "plain", "private", "stopped <b>"]
    assert [row["run"] for row in csv.DictReader((out / "runs.csv").open())] == names
    assert sorted(path.name for path in (out / "plots").iterdir()) == [
        *("accuracy.png", "perplexity.png", "time.png", "upload.png")
    ]
    assert main(["runs", "compare", str(runs), "--out", str(out)]) == 0, "it may be written again"
    assert main(["runs", "compare", str(runs), "--out", str(runs / "plain")]) == 2
    assert "holds a run, but a report would be written there" in capsys.readouterr().err


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
