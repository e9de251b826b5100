"""What counts as divergence and as a spike, and the report of production trainings."""

import math
from pathlib import Path

import pytest

from benchmarks.architectures import production
from benchmarks.architectures.axes import training
from benchmarks.architectures.axes.points import Point, Run, Setting
from benchmarks.architectures.axes.records import Records
from benchmarks.architectures.axes.selection import next_tasks
from fedlm.fl_core.composed_settings import compose
from fedlm.simulations.experiments.configuration import Experiment

ABOUT = {"machine": {}, "protocol": {}, "data": {}}


def curve(*changes, rounds=600):
    """From a perplexity of 1,000 down to 100, but for (from, until, perplexity)."""
    rows = [[done, math.log(100 + 900 * math.exp(-done / 50)), 0.1] for done in range(5, rounds + 1, 5)]
    for begin, end, perplexity in changes:
        for row in rows:
            if begin <= row[0] < end:
                row[1] = None if perplexity is None else math.log(perplexity)
    return {"status": "finished", "heldout": rows, "test": rows, "rounds": rounds, "steps": 9, "seconds": 1.0}


@pytest.mark.parametrize(
    ("changes", "lost", "spikes"),
    [
        ([], None, 0),
        ([(300, 320, 400)], None, 1),
        # Those in a row are one, and what comes before round 100 is none.
        ([(50, 60, 5000), (300, 320, 400), (400, 405, 160)], None, 2),
        ([(300, 320, 140)], None, 0),
        # It is back for a moment between a spike and its end.
        ([(300, 320, 400), (500, 601, 350)], 495, 2),
        ([(300, 601, None)], 295, 1),
        ([(300, 305, None)], 600, 1),
    ],
)
def test_divergence_and_spikes(changes, lost, spikes):
    found = curve(*changes)
    assert production.diverged(found) == (lost is not None)
    assert (production.lost_after(found), production.spikes(found)) == (lost, spikes)


def test_a_run_that_diverged_by_itself_did_and_had_not_before():
    assert production.diverged(curve() | {"status": "diverged"})
    assert production.diverged(production.until(600, curve() | {"status": "diverged"}))
    assert not production.diverged(production.until(500, curve((500, 601, 350)) | {"status": "diverged"}))


def test_a_loss_whose_perplexity_is_no_number_has_diverged():
    found = curve()
    for row in found["heldout"][-30:]:
        row[1] = 800.0
    assert production.diverged(found)
    assert production.spikes(found) == 1


def test_curves_are_means_of_a_hundred_rounds():
    rows = [[5 * number, math.log(50) + (number == 60), 0.0] for number in range(1, 121)]
    rounds, perplexities = production.smoothed(rows)
    assert (rounds[0], rounds[-1], len(rounds)) == (100, 600, 101)
    assert perplexities[0] == pytest.approx(50)
    # A twentieth of the rounds was a nat higher.
    assert perplexities[rounds == 300] == pytest.approx(50 * math.exp(1 / 20))
    assert perplexities[rounds == 400] == pytest.approx(50)


@pytest.mark.long
def test_the_report_counts_seeds_and_says_what_is_missing(tmp_path):
    records = Records(tmp_path / "production.json", ABOUT)
    axes = {name: production.AXES[name] for name in ("stackexchange", "dp_ftrl")}
    while tasks := next_tasks(records, axes["stackexchange"]):
        for run, rounds in tasks:
            lost = run.model == "cifg" and run.seed in (1, 3)
            found = curve(*[(1500, 2001, 900)] * lost, rounds=rounds)
            if lost and rounds == 2000:
                found["heldout"][-1][1] = 800.0  # its perplexity is no number
            records.runs[run] = run.as_json() | found | {"privacy": "NOT PRIVATE"}
    assert {run.seed for run in records.runs} == set(production.SEEDS)
    page = production.write_report(records, axes, tmp_path).read_text()
    assert "| stackexchange, 500 rounds | CIFG | 0 of 7 (0 to 41 %) | 0 | 100.1 ± 0.0 |" in page
    assert "| stackexchange, 2,000 rounds | CIFG | 2 of 7 (4 to 71 %) | 2 | 100.0 ± 0.0 |" in page
    assert (
        "| stackexchange, 2,000 rounds | SI-CIFG (RMSNorm with gain) | 0 of 7 (0 to 41 %) | 0 | 100.0 ± 0.0 |  |"
        in page
    )
    # Before any was lost there is a gap.
    assert (
        "| stackexchange, 500 rounds | SI-CIFG (RMSNorm with gain) | 0 of 7 (0 to 41 %) | 0 | 100.1 ± 0.0 "
        "| +0.0 ± 0.0 (held-out +0.0 ± 0.0): not decided |" in page
    )
    assert (
        "| CIFG | 2,000, 2,000 (lost after 1,495), 2,000, 2,000 (lost after 1,495), 2,000, 2,000, 2,000 | 2 in 12,990 |"
        in page
    )
    assert "Trainings are missing of: dp_ftrl" in page
    assert "Nothing has been trained yet." in page
    assert (tmp_path / "production.png").exists()
    point = axes["dp_ftrl"].points[0]
    while tasks := [task for task in next_tasks(records, axes["dp_ftrl"]) if task[0].setting == point.setting]:
        # Private trainings cannot go on: all pairs have all rounds at once.
        assert {rounds for _, rounds in tasks} == {point.rounds}
        for run, rounds in tasks:
            records.runs[run] = run.as_json() | curve(rounds=rounds) | {"privacy": "(30, 1e-5)-DP"}
    page = production.write_report(records, axes, tmp_path).read_text()
    assert "| 30 | CIFG |" in page
    assert "(30, 1e-5)-DP" in page


def test_models_share_all_that_epsilon_depends_on():
    (first, *_), settings = production.AXES["dp_ftrl"].points, []
    for model in production.MODELS:
        run = Run(first.setting, model, 0.5, 0.25, 0)
        found = training.settings_of(run)
        experiment = compose(Experiment, data=Path("."), rounds=first.rounds, **found)
        assert experiment.privacy.is_private
        assert experiment.privacy.target_epsilon == first.value == 30
        settings.append({name: value for name, value in found.items() if name != "model"})
    assert all(one == settings[0] for one in settings)
    plain = training.settings_of(Run(Setting(clip=None), "cifg", 0.7, 0.02, 0))
    experiment = compose(Experiment, data=Path("."), rounds=production.ROUNDS[-1], **plain)
    assert experiment.training.upload_bits == 8
    assert experiment.training.client_gradient_clip is None
    assert Point("", Setting(clip=None), 2000, (0.7,), (0.02,)).rungs() == [(2000, 1)]
