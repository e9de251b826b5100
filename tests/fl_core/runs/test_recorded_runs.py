"""Runs are read as their folders tell of them, and what is removed of them is nothing that going on needs."""

import dataclasses
import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.origins.ancestry import Phase
from fedlm.fl_core.privacy.origins.relevance_origin import RelevanceOrigin
from fedlm.fl_core.privacy.origins.vocabulary_origin import VocabularyOrigin
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.guarantee import gaussian_epsilon
from fedlm.fl_core.privacy.promise.plan import DOCUMENT_CLIENT, PrivacyPlan
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger, Release
from fedlm.fl_core.runs.cleaning import removable, remove, whole_runs
from fedlm.fl_core.runs.files.run_lock import run_lock
from fedlm.fl_core.runs.recorded_runs import find_runs, read_run

SETTINGS = {"model": "cifg_tiny", "rounds": 4, "data": "store", "noise_seed": "entropy"}
PLAN = PrivacyPlan("gaussian", 6, 4.0, BoundedParticipation(None, 1))
LIE = {"epsilon": 0.25, "delta": 1e-5, "unit": "client: all of it", "adjacency": "zero-out: one is"}
"""What somebody has written into the summary of a private run."""
TERMS = f"epsilon {rounded_up(gaussian_epsilon(4.0, 2.0, 1e-5))} at delta 1e-05; unit: client; adjacency: zero-out"


def make_run(
    folder: Path,
    rounds: int = 4,
    status: str | None = "finished",
    private: bool = False,
    about: dict[str, Any] = MappingProxyType({}),
    plan: PrivacyPlan = PLAN,
    **settings,
) -> Path:
    """Write what a run leaves: rows, checkpoints of every second round, a ledger, a summary unless it has none."""
    folder.mkdir(parents=True)
    rows = [{"round": number, "heldout_perplexity": 10.0 - number, "bytes_up": 1e6} for number in range(rounds)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    about = {"experiment": SETTINGS | settings, "vocabulary": "abc", **about}
    for done in range(2, rounds + 1, 2):
        place = folder / "checkpoints" / str(done) / "about"
        place.mkdir(parents=True)
        (place / "metadata").write_text(json.dumps(about))
    if private:
        (folder / "privacy").mkdir()
        ledger = PrivacyLedger(folder / "privacy" / "ledger.jsonl")
        ledger.begin(plan, 1e-5, "commitment", about)
        ledger.intend(Release(rounds, "digest"))
        (folder / "privacy" / "secret").write_text("x")
    if status is not None:
        summary = {"status": status, "rounds": rounds, "test_perplexity": 7.5, "experiment": SETTINGS | settings}
        summary |= {"privacy": "NOT PRIVATE"}
        if private:
            summary |= {"privacy": "(epsilon = 0.25 ...", "privacy_guarantee": LIE}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def paths_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_run_is_read_with_how_it_stands(tmp_path):
    make_run(tmp_path / "over")
    make_run(tmp_path / "stopped", rounds=2, status=None)
    make_run(tmp_path / "lost", status="diverged")
    found = {run.directory.name: run for run in find_runs(tmp_path)}
    assert {name: (run.state, run.done, run.asked) for name, run in found.items()} == {
        "over": ("finished", 4, 4),
        "stopped": ("interrupted", 2, 4),
        "lost": ("diverged", 4, 4),
    }
    assert (found["over"].kind, found["over"].model) == ("simulate", "cifg_tiny")
    assert (found["over"].score("test_perplexity"), found["stopped"].score("heldout_perplexity")) == (7.5, 9.0)
    with run_lock(tmp_path / "stopped"):
        assert read_run(tmp_path / "stopped").state == "running"
    assert read_run(tmp_path / "stopped").state == "interrupted"
    # A run that goes on past its summary is not finished.
    run = tmp_path / "over"
    (run / "checkpoints" / "4" / "about" / "metadata").write_text(json.dumps({"experiment": SETTINGS | {"rounds": 9}}))
    with (run / "metrics.jsonl").open("a") as rows:
        rows.write('{"round": 4, "heldout_perplexity": 3.0}\n')
    found = read_run(run)
    assert (found.state, found.done, found.asked) == ("interrupted", 5, 9)
    assert (found.score("test_perplexity"), found.score("heldout_perplexity")) == (None, 3.0), "older ones are no more"


def test_kinds_of_runs(tmp_path):
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "comparison.json").write_text("{}")
    assert read_run(make_run(tmp_path / "two" / "cells" / "m" / "rates" / "seed-0")).kind == "compare"
    assert read_run(make_run(tmp_path / "served", over_selection=1.3)).kind == "serve"
    central = make_run(tmp_path / "central", status=None, steps=9)
    (central / "metrics.jsonl").write_text('{"step": 2}\n')
    assert [getattr(read_run(central), name) for name in ("kind", "done", "asked")] == ["pretrain", 3, 9]
    (tmp_path / "bad" / "seed-1").mkdir(parents=True)
    (tmp_path / "bad" / "seed-1" / "error.txt").write_text("Traceback")
    assert read_run(tmp_path / "bad" / "seed-1").state == "failed"
    assert len(find_runs(tmp_path)) == 4


def test_privacy_is_stated_whole_or_not_at_all(tmp_path):
    for unit, short in (
        (DOCUMENT_CLIENT, "document"),
        ("example: one packed sequence of 8 tokens, in all steps", "packed sequence"),
        ("example: one example (training reads at most 8 tokens), in all steps", "example"),
    ):
        run = make_run(tmp_path / short, private=True, plan=dataclasses.replace(PLAN, unit=unit))
        assert f"; unit: {short}; adjacency: " in read_run(run).privacy
    assert read_run(make_run(tmp_path / "plain")).privacy == "NOT PRIVATE"
    private = read_run(make_run(tmp_path / "private", private=True))
    assert private.privacy == f"{TERMS}; VOCABULARY NOT COVERED"
    elsewhere = Phase("simulate", "/a", 3, "digest", None, "disjoint", "it was trained without privacy")
    about = {"vocabulary_origin": VocabularyOrigin("public").as_json(), "ancestry": [elsewhere._asdict()]}
    about |= {"relevance_origin": RelevanceOrigin("public", "count").as_json()}
    said = read_run(make_run(tmp_path / "said", private=True, about=about))
    assumed = ("first parameters of other people's text", "public vocabulary", "public relevances of tokens")
    assert said.privacy == "; ".join([TERMS, *(f"assumed: {one}" for one in assumed)])
    best = read_run(make_run(tmp_path / "best", private=True, about={"tuning": {"runs": 9}}))
    assert best.privacy.startswith(f"{TERMS}; one of 9 private runs compared: choosing is not accounted")
    unknown = {"ancestry": [elsewhere._replace(people="same")._asdict()]}
    assert read_run(make_run(tmp_path / "unknown", private=True, about=unknown)).privacy == "NOT PRIVATE"
    (private.directory / "privacy" / "ledger.jsonl").write_text("{}\n")
    assert read_run(private.directory).privacy == "NOT PRIVATE: its ledger is damaged"
    (private.directory / "privacy" / "ledger.jsonl").unlink()
    assert read_run(private.directory).privacy == "NOT PRIVATE"
    stopped = read_run(make_run(tmp_path / "stopped", rounds=2, status=None, private=True))
    assert stopped.privacy == "not over; `fedlm account ledger` states what is spent"
    repeatable = make_run(tmp_path / "repeatable", private=True, noise_seed="experiment")
    assert read_run(repeatable).privacy == "NOT PRIVATE"


def test_what_is_no_run_is_refused(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match=r"no run in it|no such folder"):
            find_runs(place)
    run = make_run(tmp_path / "run")
    (run / "summary.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        find_runs(tmp_path)


def test_cleaning_leaves_what_going_on_needs(tmp_path):
    folder = make_run(tmp_path / "run", rounds=6, status=None, private=True)
    before = paths_in(folder)
    (folder / "summary.json.partial").write_text("half")
    (folder / "checkpoints" / "8.orbax-checkpoint-tmp").mkdir()
    removals = removable(read_run(folder))
    assert [removal.path.name for removal in removals] == ["8.orbax-checkpoint-tmp", "summary.json.partial", "2", "4"]
    remove(removals)
    gone = {path for path in before if path.startswith(("checkpoints/2", "checkpoints/4"))}
    assert paths_in(folder) - {".lock"} == before - gone
    assert removable(read_run(folder)) == []


def test_nothing_of_a_running_run_is_removed(tmp_path):
    folder = make_run(tmp_path / "run", status=None)
    listed = removable(read_run(folder))
    with run_lock(folder):
        assert removable(read_run(folder)) == []
        with pytest.raises(ConfigurationError, match="is running; end it first"):
            whole_runs([read_run(folder)], [], with_ledger=True)
        with pytest.raises(ConfigurationError, match="another process is running there"):
            remove(listed)
    assert (folder / "checkpoints" / "2").exists()


def test_whole_runs_go_unless_something_rests_on_them(tmp_path):
    plain = read_run(make_run(tmp_path / "plain"))
    stopped = read_run(make_run(tmp_path / "stopped", status=None, private=True))
    over = read_run(make_run(tmp_path / "over", private=True))
    begun = read_run(make_run(tmp_path / "begun", status=None, init_from=str(tmp_path / "plain")))
    with pytest.raises(ConfigurationError, match="a private run that might go on"):
        whole_runs([stopped], [], with_ledger=True)
    with pytest.raises(ConfigurationError, match=r"its ledger is the record .* give with_ledger"):
        whole_runs([over], [], with_ledger=False)
    with pytest.raises(ConfigurationError, match=r"begun began with its parameters"):
        whole_runs([plain], [begun], with_ledger=False)
    remove(whole_runs([plain, begun], [], with_ledger=False) + whole_runs([over], [stopped], with_ledger=True))
    assert [path.name for path in tmp_path.iterdir()] == ["stopped"]
