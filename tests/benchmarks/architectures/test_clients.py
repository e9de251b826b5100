"""Gaps where every client counts the same."""

import json
import math

import numpy as np
import pytest

from benchmarks.architectures import clients
from benchmarks.architectures.axes.points import Point, Run, Setting
from benchmarks.architectures.axes.records import Records
from benchmarks.architectures.clients import ClientRecords, Place, ScoredTraining, even_gap, verdict
from fedlm.fl_core.errors import CheckpointError
from tests.benchmarks.small_studies import InProcess, import_small_text

ABOUT = {"machine": {}, "protocol": {"seeds": [0, 1]}}
PAIR = ("si_cifg", "cifg")
PLACE = Place("here", Point("here", Setting(cohort=3), 5, (1.0,), (0.01,), (0, 1)), (PAIR,))


def losses(seeds, people):
    """Differences of each seed and each client, added up."""
    twin = np.random.default_rng(0).uniform(3, 6, (len(seeds), len(people)))
    return twin + np.add.outer(seeds, people), twin


def test_every_client_counts_the_same():
    gap = even_gap(*losses([0.0, 0.0, 0.0], [-0.1] * 9 + [0.8]))
    assert gap.mean == pytest.approx(math.expm1(-0.01))
    assert gap.better == 0.9


def test_the_two_intervals_are_of_seeds_and_of_clients():
    of_seeds = even_gap(*losses([-0.2, -0.1, 0.0], [0.0] * 50))
    assert of_seeds.over_clients == pytest.approx(0, abs=1e-12)
    # Student's quantile of two degrees of freedom, 4.3027, times the standard error.
    assert of_seeds.over_seeds == pytest.approx(math.exp(-0.1) * 4.3027 * 0.1 / math.sqrt(3), rel=1e-4)
    of_clients = even_gap(*losses([0.0] * 3, np.linspace(-0.2, 0.0, 50)))
    assert of_clients.over_seeds == pytest.approx(0, abs=1e-12)
    error = np.std(np.linspace(-0.2, 0.0, 50), ddof=1) / math.sqrt(50)
    assert of_clients.over_clients == pytest.approx(math.exp(-0.1) * 2.0096 * error, rel=1e-4)


@pytest.mark.parametrize(
    ("seeds", "people", "found"),
    [
        ([-0.1, -0.1, -0.1], [0.01, -0.01] * 20, "ahead"),
        ([0.1, 0.11, 0.09], [0.01, -0.01] * 20, "behind"),
        # Few clients that are alike in all seeds say little of others.
        ([-0.1, -0.1, -0.1], [0.9, -0.9] * 20, "not decided"),
        ([-0.3, -0.1, 0.1], [0.01, -0.01] * 20, "not decided"),
    ],
)
def test_a_model_is_ahead_where_all_intervals_are(seeds, people, found):
    one = even_gap(*losses(np.array(seeds), np.array(people)))
    assert verdict({"test": one, "heldout": one}) == found
    if found == "ahead":
        other = even_gap(*losses(np.array([0.1, 0.1, 0.1]), np.array(people)))
        assert verdict({"test": one, "heldout": other}) == "not decided"


def test_the_places_are_points_of_the_axes_whose_models_have_their_rates_selected():
    axes = Records(clients.RESULTS / "axes.json")
    for place in clients.PLACES:
        runs = clients.trainings(axes, place)
        models = {model for pair in place.pairs for model in pair}
        assert {(run.model, run.seed) for run in runs} == {(model, seed) for model in models for seed in (0, 1, 2)}
        assert all(axes.has(run, place.point.rounds) for run in runs)


def test_a_table_of_other_trainings_or_clients_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="train first"):
        ClientRecords(tmp_path / "clients.json")
    records = ClientRecords(tmp_path / "clients.json", ABOUT)

    def cell(name, examples):
        one = ScoredTraining(Run(Setting(), name, 1.0, 0.01, 0), 5, tmp_path / "text", tmp_path / name)
        one.directory.mkdir()
        scores = {split: {"examples": examples, "loss": [4.5] * len(examples)} for split in clients.SPLITS}
        (one.directory / "scores.json").write_text(json.dumps(scores))
        return one

    records.add(cell("cifg", [3, 2]))
    with pytest.raises(CheckpointError, match="text: has other clients than"):
        records.add(cell("si_cifg", [3, 2, 1]))
    again = ClientRecords(tmp_path / "clients.json", ABOUT)
    assert again.losses == {(Run(Setting(), "cifg", 1.0, 0.01, 0), 5): {key: [4.5, 4.5] for key in clients.SPLITS}}
    with pytest.raises(CheckpointError, match="another protocol"):
        ClientRecords(tmp_path / "clients.json", {"machine": {}, "protocol": {"seeds": [0]}})


@pytest.mark.long
def test_the_command_scores_every_client_and_goes_on(tmp_path, monkeypatch, capsys, quick_compilation):
    store = import_small_text(tmp_path / "text", clients=40)
    axes = Records(tmp_path / "axes.json", {**ABOUT, "data": {}})
    for model in PAIR:
        for seed in PLACE.point.seeds:
            row = [5, 4.0, 0.1]
            found = {"status": "finished", "rounds": 5, "heldout": [row], "test": [row], "steps": 1, "seconds": 1.0}
            axes.add(Run(PLACE.point.setting, model, 1.0, 0.01, seed), found)
    monkeypatch.setattr(clients, "PLACES", (PLACE,))
    monkeypatch.setattr(clients, "prepare_data", lambda name, work, dumps: store)
    words = ["--results", str(tmp_path), "--work", str(tmp_path / "work")]
    assert clients.main(words, InProcess()) == 0
    assert "here: 4 trainings left" in capsys.readouterr().out
    record = json.loads((tmp_path / "clients.json").read_text())
    counts = {split: sum(examples) for split, examples in record["examples"]["stackexchange"].items()}
    assert all(counts.values())
    assert len(record["runs"]) == 4
    for run in record["runs"]:
        assert {split: len(run["loss"][split]) for split in clients.SPLITS} == {
            split: len(record["examples"]["stackexchange"][split]) for split in clients.SPLITS
        }
        assert all(0 < loss < 10 for split in clients.SPLITS for loss in run["loss"][split])
    page = (tmp_path / "clients.md").read_text()
    assert "| here | SI-CIFG" in page
    assert "Not trained yet" not in page
    assert (tmp_path / "clients.png").stat().st_size > 10_000
    assert clients.main(words, InProcess()) == 0
    assert "here: 0 trainings left" in capsys.readouterr().out
