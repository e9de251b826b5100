"""The life of a run whose steps add 1 to a number."""

import json
import shutil
from typing import NamedTuple

import numpy as np
import pytest

from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.runs.driver import Run, Step
from fedlm.fl_core.runs.files.metrics_log import read_rows
from fedlm.fl_core.runs.identity import RunIdentity
from fedlm.fl_core.runs.private_releases import PrivacyTerms
from fedlm.fl_core.runs.round_rows import Divergence
from fedlm.fl_core.runs.run_folder import RunFolder

STEPS, EVERY = 7, 3
TERMS = PrivacyTerms(PrivacyPlan("gaussian", STEPS, 1.0, BoundedParticipation(1, 1)), 1e-5)


class State(NamedTuple):
    params: np.ndarray


FRESH = State(np.zeros(2, np.float32))


class StopError(Exception):
    pass


class Counting:
    """A run, and what was observed of it."""

    def __init__(self, folder, privacy=None, kind="counting", bad=None):
        def diverged(rows):
            return Divergence(bad, "bad") if rows and rows[-1]["round"] == bad else None

        self.run = Run(
            folder, RunIdentity(kind, {}, {}), steps=STEPS, save_every=EVERY, find_divergence=diverged, privacy=privacy
        )
        self.state, self.seen = self.run.resume(FRESH), []

    def steps(self):
        for number in self.run.remaining:
            self.state = State(self.state.params + 1)
            yield Step(number + 1, {"round": number}, lambda: self.state, lambda: {"saved": True})

    def take(self, **others):
        self.run.take(self.steps(), lambda row: self.seen.append(row["round"]), **others)
        return self

    def finish(self):
        return self.run.finish(self.state.params, {"last": float(self.state.params[0])})


def begin_and_stop(out, at, **others):
    """Run until a step is observed, then end as a crash would."""
    with RunFolder(out) as folder:
        counting = Counting(folder, **others)

        def stop(row):
            counting.seen.append(row["round"])
            if row["round"] == at:
                raise StopError

        with pytest.raises(StopError):
            counting.run.take(counting.steps(), stop)
    return counting.seen


@pytest.mark.parametrize("privacy", [None, TERMS])
def test_a_run_goes_on_from_its_last_checkpoint(tmp_path, privacy):
    assert begin_and_stop(tmp_path, 4, privacy=privacy) == [0, 1, 2, 3, 4]
    with RunFolder(tmp_path) as folder:
        counting = Counting(folder, privacy)
        # With privacy a row is seen when its checkpoint is there.
        assert counting.run.remaining == (range(3, STEPS) if privacy is None else range(6, STEPS))
        summary = counting.take().finish()
    assert (summary["status"], summary["rounds"], summary["last"]) == ("finished", STEPS, STEPS)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["round"] for row in rows] == list(range(STEPS))
    assert [row["round"] for row in rows if row.get("saved")] == [2, 5, 6]


def test_what_is_private_is_shown_after_its_release(tmp_path):
    with RunFolder(tmp_path) as folder:
        counting, recorded = Counting(folder, TERMS), []

        def observe(row):
            ledger = PrivacyLedger(tmp_path / "privacy" / "ledger.jsonl")
            assert ledger.last_release.rounds > row["round"]
            recorded.append(row["round"])

        steps = counting.steps()
        counting.run.take((next(steps) for _ in range(2)), observe)
        assert not recorded
        assert not read_rows(tmp_path / "metrics.jsonl"), "rows of a model that is not released were recorded"
        counting.run.take(steps, observe)
    assert recorded == list(range(STEPS))


def test_a_run_that_is_asked_to_stop_loses_nothing(tmp_path):
    with RunFolder(tmp_path) as folder:
        seen = Counting(folder).take(stopping=lambda: len(read_rows(tmp_path / "metrics.jsonl")) == 1).seen
    assert seen == [0, 1]
    with RunFolder(tmp_path) as folder:
        assert Counting(folder).run.remaining == range(2, STEPS)


def test_a_run_that_diverged_is_over(tmp_path):
    for expected in ([0, 1], []):
        with RunFolder(tmp_path) as folder:
            counting = Counting(folder, bad=1).take()
            assert counting.seen == expected
            assert counting.finish()["status"] == "diverged"


def test_folders_of_other_runs_are_refused(tmp_path):
    begin_and_stop(tmp_path / "open", 4)
    begin_and_stop(tmp_path / "private", 4, privacy=TERMS)
    begin_and_stop(tmp_path / "no checkpoint", 1)
    for out, others, message in (
        ("private", {}, "holds a private run"),
        ("open", {"privacy": TERMS}, "there is no ledger"),
        ("no checkpoint", {"privacy": TERMS}, "holds a run that is not private"),
        ("open", {"kind": "other"}, "a run of another kind"),
        ("private", {"privacy": TERMS._replace(delta=1e-4)}, "another privacy plan"),
    ):
        with RunFolder(tmp_path / out) as folder, pytest.raises(CheckpointError, match=message):
            Counting(folder, **others)


def test_noise_is_not_drawn_again_where_a_ledger_lacks_what_metrics_tell_of(tmp_path):
    begin_and_stop(tmp_path, 4, privacy=TERMS)
    ledger = tmp_path / "privacy" / "ledger.jsonl"
    whole = ledger.read_text()
    ledger.write_text(whole.splitlines(keepends=True)[0])
    shutil.rmtree(tmp_path / "checkpoints")
    with (
        RunFolder(tmp_path) as folder,
        pytest.raises(CheckpointError, match=r"tells of 6 rounds, but .* of 0: it is"),
    ):
        Counting(folder, TERMS)


def test_a_run_that_has_released_knows_which_copy_goes_on(tmp_path):
    begin_and_stop(tmp_path, 4, privacy=TERMS)
    (tmp_path / "lineage.json").unlink()
    with RunFolder(tmp_path) as folder, pytest.raises(CheckpointError, match=r"lineage\.json: is missing"):
        Counting(folder, TERMS)
    # Before its first release nothing is lost.
    with RunFolder(tmp_path / "new") as folder:
        Counting(folder, TERMS)
    (tmp_path / "new" / "lineage.json").unlink()
    with RunFolder(tmp_path / "new") as folder:
        assert Counting(folder, TERMS).run.remaining == range(STEPS)


def test_noise_is_fresh_where_its_generation_begins_alone(tmp_path):
    with RunFolder(tmp_path) as folder:
        assert Counting(folder, TERMS).run.standing.fresh_noise
    begin_and_stop(tmp_path, 4, privacy=TERMS)
    with RunFolder(tmp_path) as folder:
        assert not Counting(folder, TERMS).run.standing.fresh_noise


def test_earlier_states_are_read_from_the_newest_on(tmp_path):
    with RunFolder(tmp_path) as folder:
        found = [(rounds, float(state.params[0])) for rounds, state in Counting(folder).take().run.earlier(FRESH)]
    assert len(found) > 1
    assert found == [(rounds, float(rounds)) for rounds in sorted((one for one, _ in found), reverse=True)]


def test_a_run_without_privacy_hides_nothing(tmp_path):
    tmp_path.chmod(0o755)
    with RunFolder(tmp_path):
        assert tmp_path.stat().st_mode & 0o777 == 0o755
