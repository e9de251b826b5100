"""The experiments of DPFormer: a training, the grid and its report, on a few made-up users."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks.recommendation import __main__ as command
from benchmarks.recommendation import claims, models, plots, training
from benchmarks.recommendation.claims import Evidence, Spread, above, together, verdicts
from benchmarks.recommendation.grid import Point, Results, Scale, best_rate, chosen_points, points_of, rate_points
from fedlm.fl_core.errors import CheckpointError
from tests.benchmarks.small_studies import InProcess
from tests.simulations.data.recommendation.item_stores import made_up_sequences, write_pairs

SCALE = Scale(
    item_interactions=1,
    user_interactions=4,
    length=8,
    epochs=2,
    batch_size=16,
    plain_batch_size=4,
    other_batch_sizes=(8,),
    evaluations=2,
    evaluated_users=10,
    microbatch_size=16,
    dropout=0.1,
    relevance_epsilon=1.0,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recommendation")
    write_pairs(folder / "pairs.txt", made_up_sequences(80, 12))
    return folder


@pytest.fixture(scope="module")
def store(folder):
    return training.prepare(folder / "pairs.txt", folder / "work", SCALE)


def scores(value):
    metrics = {name: {"value": value, "standard_error": 0.001} for name in ("hit@10", "ndcg@10")}
    return {"scores": metrics, "by_popularity": [{"scores": metrics} for _ in range(3)]}


def made_up(point, *others):
    """DPFormer is best, whatever the seed, and others lie within each other's reach."""
    value = 0.02 + 0.001 * point.seed + 0.02 * (point.variant == "dpformer") + 0.1 * point.rate
    curve = [
        [epoch, value * epoch, value * (epoch - 0.1 * (point.variant == "tied") * (epoch == 3))] for epoch in (1, 2, 3)
    ]
    return {
        "status": "finished",
        "heldout": scores(value),
        "test": scores(value),
        "curve": curve,
        "steps": 8,
        "noise_multiplier": None if point.epsilon is None else 1.5,
        "parameters": 10,
        "seconds": 0.1,
    }


@pytest.mark.long
def test_a_training_is_scored(store, tmp_path, monkeypatch, quick_compilation):
    monkeypatch.setitem(
        models.VARIANTS, "placebo", dataclasses.replace(models.VARIANTS["placebo"], model="dpformer_tiny")
    )
    point = Point("placebo", 8.0, 0.01, 16, 0)
    found = training.train(point, SCALE, store, tmp_path)
    assert found["status"] == "finished"
    assert found["steps"] == 8
    assert found["noise_multiplier"] > 0
    assert [row[0] for row in found["curve"]] == pytest.approx([1, 2], abs=0.1)
    for split in ("heldout", "test"):
        assert 0 < found[split]["scores"]["hit@10"]["value"] <= 1
        assert [part["group"] for part in found[split]["by_popularity"]] == ["head", "middle", "tail"]


@pytest.mark.long
def test_the_grid_goes_on_and_is_reported(folder, tmp_path, monkeypatch, capsys):
    trained = []
    monkeypatch.setattr(training, "train", lambda point, *others: trained.append(point) or made_up(point))
    monkeypatch.setattr(claims, "composed_above", lambda events, delta: 9.0)
    words = ["--data", str(folder / "pairs.txt"), "--work", str(folder / "work"), "--results", str(tmp_path)]
    assert command.main([*words, "--at-most", "5"], SCALE, InProcess()) == 0
    report = (tmp_path / "report.md").read_text()
    assert "trainings are not there yet" in report
    assert report.count(claims.MISSING) > 10
    assert command.main(words, SCALE, InProcess()) == 0
    assert len(set(trained)) == len(trained)
    table = json.loads((tmp_path / "amazon_games.json").read_text())
    assert len(table["cells"]) == len(trained)
    results = Results(tmp_path / "amazon_games.json", table["about"])
    assert set(trained) == {*rate_points(SCALE), *chosen_points(results, SCALE)}
    # Of equal models the fastest rate scored best.
    assert best_rate(results, SCALE, "placebo", private=True) == 0.03
    assert best_rate(results, SCALE, "tied", private=False) == 0.003
    assert [point.batch_size for point in points_of(results, SCALE, "tied", None)] == [4] * 3
    report = (tmp_path / "report.md").read_text()
    assert "All trainings have ended" in report
    assert report.count("![") == len(list(tmp_path.glob("*.png"))) == 6
    assert "9.0 in place of 8" in report
    trained.clear()
    monkeypatch.setattr(plots, "draw", lambda evidence: {})
    assert command.main(["report", "--results", str(tmp_path)]) == 0
    assert not trained
    assert (tmp_path / "report.md").read_text() == report
    capsys.readouterr()


def evidence_of(folder, change=lambda point, found: found):
    about = {"scale": command.scale_as_json(SCALE), "data": {"users": 60, "popularity": {"test": scores(0.01)}}}
    results = Results(folder / "table.json", about)
    for points in (rate_points, lambda scale: chosen_points(results, scale)):
        for point in points(SCALE):
            results.cells[point] = dataclasses.asdict(point) | change(point, made_up(point))
    return Evidence(results, SCALE)


def test_claims_are_judged_by_all_seeds(tmp_path):
    found = {one.claim: one.verdict for one in verdicts(evidence_of(tmp_path))}
    assert found["Re-attention helps the tied Transformer"] == claims.HOLDS
    assert found["DPFormer is the best of the five"] == claims.HOLDS
    assert found["The tied Transformer is better than a GRU"] == claims.UNDECIDED
    assert found["Re-attention helps without sharing, too"] == claims.UNDECIDED
    assert found["The relative gain grows as epsilon falls"] == claims.UNDECIDED
    assert found["Scores grow more evenly with re-attention"] == claims.UNDECIDED
    assert found["Re-attention is better at most rates and batch sizes"] == claims.HOLDS
    assert found["Private models are better than popularity"] == claims.HOLDS

    def without_a_seed(point, cell):
        return cell | {"test": None} if (point.variant, point.epsilon, point.seed) == ("dpformer", 5.0, 2) else cell

    found = {one.claim: one.verdict for one in verdicts(evidence_of(tmp_path, without_a_seed))}
    assert found["Re-attention helps the tied Transformer"] == f"{claims.MISSING} 1 of 3, {claims.HOLDS} 2 of 3"
    assert list(claims.pairs(evidence_of(tmp_path, without_a_seed))[0].gains) == [8.0, 10.0]


def test_variants_are_compared_seed_by_seed(tmp_path):
    first, *_, last = claims.pairs(evidence_of(tmp_path))
    assert (first.one, first.other) == ("dpformer", "tied")
    tied = [0.02 + 0.001 * seed for seed in SCALE.seeds]
    best = [value + 0.02 for value in tied]
    rate = 0.1 * max(SCALE.rates)
    expected = [(one + rate) / (other + rate) - 1 for one, other in zip(best, tied, strict=True)]
    for epsilon in SCALE.epsilons:
        np.testing.assert_allclose(first.gains[epsilon].values, expected)
        np.testing.assert_allclose(last.gains[epsilon].values, 0)


def test_spreads_that_overlap_decide_nothing():
    low, high, both = Spread((0.1, 0.2, 0.3)), Spread((0.4, 0.5, 0.6)), Spread((0.2, 0.4, 0.5))
    assert [above(high, low, 3), above(low, high, 3), above(both, low, 3)] == [
        claims.HOLDS,
        claims.FAILS,
        claims.UNDECIDED,
    ]
    assert above(high, None, 3) == above(high, Spread((0.1,)), 3) == claims.MISSING
    assert together([claims.HOLDS] * 3) == claims.HOLDS
    assert together([claims.HOLDS, claims.FAILS]) == "holds 1 of 2, does not hold 1 of 2"
    assert np.isclose(Spread((0.1, 0.3)).deviation, 0.1 * np.sqrt(2))


def test_another_scale_is_refused(tmp_path):
    evidence = evidence_of(tmp_path)
    evidence.results.add(*next((point, made_up(point)) for point in rate_points(SCALE)))
    with pytest.raises(CheckpointError, match="another scale"):
        Results(evidence.results.path, evidence.results.about | {"scale": {"epochs": 1}})
