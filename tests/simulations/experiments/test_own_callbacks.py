"""Callbacks of a program's own experiment: what they are told, may do and may not."""

import json

import numpy as np
import pytest

import fedlm
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.runs.files.checkpoints import parameters_digest
from tests.simulations.experiments.own_experiments import PRIVATE, SETTINGS, TINY, StopAt, Watch

pytestmark = pytest.mark.usefixtures("plain_cohorts")


def test_callbacks_see_every_round_and_what_they_do_to_what_they_are_told_changes_nothing(data, tmp_path):
    class Vandal(fedlm.Callback):
        def on_begin(self, settings):
            settings["rounds"] = 9

        def on_round(self, finished):
            finished.params.clear()
            finished.row["train_loss"] = 9.0

        def on_end(self, summary):
            summary["privacy"] = "perfect"
            summary["experiment"].clear()

    watch, alone = Watch(), Watch()
    run = fedlm.simulate(data=data, callbacks=[Vandal(), watch], out=tmp_path, **SETTINGS)
    honest = fedlm.simulate(data=data, callbacks=[alone], **SETTINGS)
    for told in ("parameters_sha256", "privacy", "experiment"):
        assert run.summary[told] == honest.summary[told]
    assert [row["train_loss"] for row in run.rows] == [row["train_loss"] for row in honest.rows]
    assert [dict(finished.row) for finished in watch.rounds] == run.rows
    assert [finished.row["round"] for finished in watch.rounds] == [0, 1, 2, 3]
    digests = [parameters_digest(finished.params) for finished in alone.rounds]
    assert len(set(digests)) == 4
    assert digests[-1] == run.summary["parameters_sha256"] == parameters_digest(run.params)
    assert (watch.settings["rounds"], watch.settings["model"], watch.ended) == (4, "own()", ["finished"])
    assert json.loads((tmp_path / "summary.json").read_text()) == run.summary


def test_with_privacy_only_released_models_are_seen(data, tmp_path):
    released = []

    class Check(Watch):
        def on_round(self, finished):
            super().on_round(finished)
            ledger = [json.loads(line) for line in (tmp_path / "privacy" / "ledger.jsonl").read_text().splitlines()]
            released.append(max(int(path.name) for path in (tmp_path / "checkpoints").iterdir()))
            assert ledger[-1]["kind"] == "release"

    watch = Check()
    run = fedlm.simulate(data=data, out=tmp_path, callbacks=[watch], **SETTINGS | PRIVATE | {"checkpoint_every": 3})
    assert [finished.row["round"] for finished in watch.rounds] == [0, 1, 2, 3]
    assert [finished.params is not None for finished in watch.rounds] == [False, False, True, True]
    assert released == [3, 3, 3, 4]
    assert parameters_digest(watch.rounds[-1].params) == run.summary["parameters_sha256"]
    assert run.privacy.startswith("(epsilon = ")


def test_what_a_callback_raises_does_not_end_a_private_run(data, tmp_path):
    class PrunedError(Exception):
        pass

    class Prunes(Watch):
        def on_round(self, finished):
            super().on_round(finished)
            raise PrunedError(f"after round {finished.row['round']}")

    watch = Prunes()
    with pytest.raises(PrunedError, match="after round 0") as caught:
        fedlm.simulate(data=data, out=tmp_path / "private", callbacks=[watch], **SETTINGS | PRIVATE)
    assert "the private run went on to its end" in caught.value.__notes__[0]
    assert len(watch.rounds) == 1
    assert json.loads((tmp_path / "private" / "summary.json").read_text())["rounds"] == 4
    with pytest.raises(PrunedError):
        fedlm.simulate(data=data, out=tmp_path / "plain", callbacks=[Prunes()], **SETTINGS)
    assert not (tmp_path / "plain" / "summary.json").exists()


def test_a_run_that_a_callback_stops_has_ended(data, tmp_path):
    settings = SETTINGS | {"model": fedlm.named("tiny", TINY)}
    run = fedlm.simulate(data=data, out=tmp_path, callbacks=[StopAt(0)], **settings)
    assert (len(run.rows), run.summary["rounds"], run.summary["stopped_by_callback"]) == (1, 1, True)
    again = fedlm.simulate(data=data, out=tmp_path, **settings)
    assert parameters_digest(again.params) == run.summary["parameters_sha256"] == again.summary["parameters_sha256"]
    longer = fedlm.simulate(data=data, out=tmp_path, **settings | {"rounds": 3})
    assert len(longer.rows) == 3


@pytest.mark.parametrize(
    ("answer", "told"),
    [(True, "only a callback with may_stop"), (np.zeros(2), r"Thoughtless\.on_round gave a ndarray")],
    ids=["stops", "array"],
)
def test_a_callback_that_answers_what_it_may_not_is_named(data, answer, told):
    class Thoughtless(Watch):
        def on_round(self, finished):
            return answer

    thoughtless = Thoughtless()
    with pytest.raises(ConfigurationError, match=told):
        fedlm.simulate(data=data, callbacks=[thoughtless], **SETTINGS)
    assert len(thoughtless.failed) == 1
    assert not thoughtless.ended


def test_a_failing_callback_hides_no_error_and_no_other_callback(data):
    class FailsTwice(fedlm.Callback):
        def on_failure(self, error):
            raise ValueError("after the fact")

    class FailsToBegin(Watch):
        def on_begin(self, settings):
            raise RuntimeError("no connection")

    begun, fails_to_begin, not_begun = Watch(), FailsToBegin(), Watch()
    with pytest.raises(RuntimeError, match="no connection") as raised:
        fedlm.simulate(data=data, callbacks=[FailsTwice(), begun, fails_to_begin, not_begun], **SETTINGS)
    assert raised.value.__notes__ == ["FailsTwice.on_failure failed too: ValueError: after the fact"]
    assert begun.failed == ["no connection"]
    assert not fails_to_begin.failed
    assert not not_begun.failed
