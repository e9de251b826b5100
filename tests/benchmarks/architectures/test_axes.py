"""The axes: which trainings there are, how rates are selected, gaps and lines, and what the report says of parts."""

import dataclasses
import json
import math

import numpy as np
import pytest

from benchmarks.architectures.axes import __main__ as command
from benchmarks.architectures.axes import costs, overview, training
from benchmarks.architectures.axes.gaps import (
    AHEAD,
    BEHIND,
    MISSING,
    ONE_SEED,
    UNDECIDED,
    Gap,
    Spread,
    _is_edge,
    gap,
    gap_at_rates,
    gaps_along,
    line_through,
    mean_curve,
    score,
)
from benchmarks.architectures.axes.overview import draw_overview, gaps_at_equal_rates, places
from benchmarks.architectures.axes.points import (
    AXES,
    DATA,
    EVALUATE_EVERY,
    PAIRS,
    Axis,
    Point,
    Run,
    Setting,
    ends,
    published_gap,
    scored_rounds,
    window,
)
from benchmarks.architectures.axes.records import Records
from benchmarks.architectures.axes.report import _how, write_report
from benchmarks.architectures.axes.selection import next_tasks, select, selection_rounds
from fedlm.fl_core.errors import CheckpointError
from fedlm.models.registry import MODELS
from tests.benchmarks.small_studies import InProcess, import_small_text

ABOUT = {"machine": {}, "protocol": {"seeds": [0, 1, 2]}, "data": {"stackexchange": {"clients": 9, "entropy": None}}}
RATES = {"client_rates": (0.5, 1.0, 2.0), "server_rates": (0.003, 0.01, 0.03)}
COHORTS = Axis(
    "clients a round",
    tuple(Point(cohort, Setting(cohort=cohort), 30, **RATES) for cohort in (2, 4, 8)),
    ("cifg", "si_cifg"),
    500,
)


def loss_of(run, rounds):
    """Client rate 1 and server rate 0.01 are best in the end, 0.03 at first; SI-CIFG gains with the cohort."""
    distance = abs(math.log(run.client_rate)) + abs(math.log(run.server_rate / 0.01)) * rounds / 30
    early = -0.5 * (run.server_rate == 0.03) * (rounds < 10)
    gain = 0.01 * math.log2(run.setting.cohort / 4) if run.model == "si_cifg" else 0.0
    return 5.0 - 0.02 * rounds + 0.1 * distance + early - gain + 0.001 * run.seed


def made_up(run, rounds, change=lambda run, found: found):
    done = range(EVALUATE_EVERY, rounds + 1, EVALUATE_EVERY)
    rows = [[one, loss_of(run, one), 0.1 + 0.001 * one] for one in done]
    found = {"status": "finished", "rounds": rounds, "heldout": rows, "test": rows, "steps": 10, "seconds": 1.0}
    return change(run, found)


def records_of(folder, axis=COHORTS, change=lambda run, found: found, waves=10):
    records = Records(folder / "axes.json", ABOUT)
    for _ in range(waves):
        for run, rounds in next_tasks(records, axis):
            records.runs[run] = run.as_json() | made_up(run, rounds, change)
    return records


def test_the_axes_are_of_models_and_texts_that_there_are():
    for axis in AXES.values():
        for point in axis.points:
            assert point.setting.data in DATA
            assert point.rounds % EVALUATE_EVERY == 0
            assert [rounds for rounds, _ in point.rungs()] == sorted({rounds for rounds, _ in point.rungs()})
            assert point.rungs()[-1][0] == point.rounds
            assert all(f"{model}_{point.setting.size}" in MODELS for model in axis.models)
    assert {model for pair in PAIRS for model in pair} <= {model for axis in AXES.values() for model in axis.models}
    # One thing at a time: an axis' first point of numbers is the preset, or shares the name of another's.
    names = {Run(point.setting, "cifg", 1.0, 0.01, 0).name for axis in AXES.values() for point in axis.points}
    settings = {point.setting for axis in AXES.values() for point in axis.points}
    assert len(names) == len(settings)


def test_scores_are_averaged_over_the_last_hundred_rounds_where_there_are_six_times_as_many():
    assert [window(rounds) for rounds in (20, 60, 180, 600, 3000)] == [5, 10, 30, 100, 100]
    assert ends(AXES, Setting()) == [60, 180, 420, 1000]
    tested = scored_rounds(AXES, Setting())
    for end in ends(AXES, Setting()):
        assert 2 <= sum(end - window(end) < one <= end for one in tested) <= 10
        assert end in tested


def test_rates_are_selected_by_halving_from_checkpoints(tmp_path):
    records, point = Records(tmp_path / "axes.json", ABOUT), COHORTS.points[0]
    seen = []
    while tasks := [task for task in next_tasks(records, COHORTS) if task[0].setting == point.setting]:
        seen.append(sorted((run.server_rate, rounds) for run, rounds in tasks if run.model == "cifg"))
        for run, rounds in tasks:
            before = records.runs.get(run, {"rounds": 0})["rounds"]
            assert rounds > before
            records.runs[run] = run.as_json() | made_up(run, rounds)
    # Three and one client rate for each of three server rates, and then the other seeds.
    assert [len(wave) for wave in seen] == [9, 3, 2]
    assert [wave[0][1] for wave in seen] == [10, 30, 30]
    assert select(records, point, "cifg").chosen == (1.0, 0.01)
    assert selection_rounds(point) == (9 * 10 + 3 * 20, 9 * 30)


def test_a_server_rate_that_is_behind_until_the_end_is_not_dropped(tmp_path):
    """A server rate of 0.01 is the best in the end, and the worst of the three in each round before."""

    def late(run, found):
        rows = [[done, loss + (run.server_rate == 0.01) * (done < 25), more] for done, loss, more in found["heldout"]]
        return found | {"heldout": rows}

    records, point = records_of(tmp_path, change=late), COHORTS.points[0]
    early = {rate: records.heldout_loss(Run(point.setting, "cifg", 1.0, rate, 0), 10) for rate in point.server_rates}
    assert max(early, key=early.get) == 0.01
    assert select(records, point, "cifg").chosen == (1.0, 0.01)


def test_a_pair_that_came_to_the_end_for_another_axis_counts(tmp_path):
    records, point = records_of(tmp_path), COHORTS.points[0]
    run = Run(point.setting, "cifg", 2.0, 0.003, 0)
    assert not records.has(run, point.rounds)
    better = made_up(run, point.rounds)
    better["heldout"] = [[done, loss - (done > 20), more] for done, loss, more in better["heldout"]]
    records.runs[run] = run.as_json() | better
    assert select(records, point, "cifg").chosen == (2.0, 0.003)
    # What is best so far is known before all is selected.
    del records.runs[Run(point.setting, "cifg", 1.0, 0.03, 0)]
    assert select(records, point, "cifg").chosen == (2.0, 0.003)
    assert not select(records, point, "cifg").decided


def test_client_rates_are_selected_after_a_third_where_there_are_several():
    assert Point("", client_rates=(1.0, 2.0)).rungs() == [(20, 2), (60, 1)]
    assert Point("", client_rates=(1.0,)).rungs() == [(60, 1)]
    assert Point("", Setting(privacy=3.0), client_rates=(1.0, 2.0)).rungs() == [(60, 2)]


def test_a_training_that_diverged_comes_no_further(tmp_path):
    def lost(run, found):
        diverges = run.client_rate == 1.0
        return found | {"status": "diverged" if diverges else "finished", "rounds": min(found["rounds"], 5)}

    records = Records(tmp_path / "axes.json", ABOUT)
    run = Run(COHORTS.points[0].setting, "cifg", 1.0, 0.01, 0)
    records.runs[run] = run.as_json() | made_up(run, 5, lost)
    assert records.has(run, 30)
    assert records.heldout_loss(run, 30) == math.inf
    assert records.heldout_loss(run, 5) < math.inf


def test_gaps_are_of_seeds_and_lines_go_through_their_logarithm(tmp_path):
    records = records_of(tmp_path)
    gaps = [gap(records, point, "si_cifg", "cifg") for point in COHORTS.points]
    for cohort, found in zip((2, 4, 8), gaps, strict=True):
        np.testing.assert_allclose(found.test.values, [math.expm1(-0.01 * math.log2(cohort / 4))] * 3)
    along = gaps_along(records, COHORTS, "si_cifg", "cifg")
    assert along == [(point.value, found.test.mean) for point, found in zip(COHORTS.points, gaps, strict=True)]
    line = line_through(along, 512)
    assert line.slope == pytest.approx(-0.01, rel=0.02)
    assert line.value == pytest.approx(-0.07, rel=0.03)
    assert line.verdict == AHEAD
    assert line_through(along[:2], 512) is None
    found = score(records, COHORTS.points[0], "cifg")
    assert (found.rates, found.at_edge, found.diverged) == ((1.0, 0.01), False, 0)
    rounds, losses = mean_curve(records, COHORTS.points[0], "cifg")
    assert rounds == [20, 25, 30]
    assert losses[-1] == pytest.approx(5.001 - 0.02 * (15 + 20 + 25 + 30) / 4)


def test_the_line_is_that_of_least_squares_with_its_interval():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        noise = rng.normal(scale=0.02, size=4)
        gaps = [
            (value, 0.05 - 0.01 * math.log2(value) + noise[place]) for place, value in enumerate((20, 50, 100, 200))
        ]
        line = line_through(gaps, 500)
        inside += abs(line.value - (0.05 - 0.01 * math.log2(500))) < line.half_width
    # 95 of 100; one in a hundred thousand is outside of this.
    assert 360 < inside < 398


def test_along_an_axis_the_seeds_that_all_points_have_are_compared(tmp_path):
    def apart(run, found):
        rows = [[done, loss + 0.1 * run.seed * (run.model == "cifg"), more] for done, loss, more in found["test"]]
        return found | {"test": rows}

    once = dataclasses.replace(COHORTS.points[1], seeds=(0,))
    axis = dataclasses.replace(COHORTS, points=(COHORTS.points[0], once, COHORTS.points[2]))
    records = records_of(tmp_path, axis, apart)
    whole = gap(records, axis.points[0], "si_cifg", "cifg").test
    assert len(whole.values) == 3
    assert whole.mean < whole.values[0] - 0.05
    along = gaps_along(records, axis, "si_cifg", "cifg")
    assert [gap for _, gap in along] == pytest.approx([math.expm1(-0.01 * step) for step in (-1, 0, 1)])


@pytest.mark.long
def test_an_axis_is_reported_from_two_points_on_or_with_a_model_of_its_own(tmp_path):
    axes = {
        "cohort": dataclasses.replace(COHORTS, models=("cifg",)),
        "rounds": Axis("rounds", (COHORTS.points[0], dataclasses.replace(COHORTS.points[0], rounds=60)), ("cifg",)),
        "norms": Axis("norms", COHORTS.points, ("cifg", "cifg_layer_norm")),
    }

    def reported(points, models):
        folder = tmp_path / f"{points} points of {models} models"
        trained = Axis("trained", COHORTS.points[:points], ("cifg", "cifg_layer_norm")[:models])
        write_report(records_of(tmp_path, trained), axes, folder)
        return [name for name in axes if (folder / f"axes_{name}.png").exists()]

    assert reported(points=1, models=1) == []
    assert reported(points=2, models=1) == ["cohort", "norms"]
    assert reported(points=1, models=2) == ["norms"]


@pytest.mark.parametrize(
    ("test", "heldout", "verdict"),
    [
        ((-0.05, -0.06, -0.055), (-0.01, -0.011, -0.012), AHEAD),
        ((0.05, 0.06, 0.055), (0.01, 0.011, 0.012), BEHIND),
        ((-0.05, 0.06, 0.0), (-0.05, 0.06, 0.0), UNDECIDED),
        ((-0.05, -0.06, -0.055), (-0.05, 0.06, 0.0), UNDECIDED),
        ((-0.05, 0.06, 0.0), (-0.05, -0.06, -0.055), UNDECIDED),
        ((-0.05, -0.06, -0.055), (0.05, 0.06, 0.055), UNDECIDED),
        ((-0.05, -0.06), (-0.05, -0.06), MISSING),
        ((-0.05,), (-0.05,), ONE_SEED),
    ],
)
def test_a_model_is_ahead_where_the_intervals_of_both_kinds_of_clients_are(test, heldout, verdict):
    assert Gap(Spread(test), Spread(heldout)).verdict == verdict


def test_gaps_on_heldout_clients_are_of_their_own_scores(tmp_path):
    def apart(run, found):
        rows = [[done, loss + 0.1 * (run.model == "cifg"), more] for done, loss, more in found["heldout"]]
        return found | {"heldout": rows}

    point = COHORTS.points[0]
    plain, changed = (
        gap(records_of(tmp_path / name, change=change), point, "si_cifg", "cifg")
        for name, change in (("plain", lambda run, found: found), ("changed", apart))
    )
    assert changed.test == plain.test
    expected = [math.expm1(math.log1p(value) - 0.1) for value in plain.heldout.values]
    assert changed.heldout.values == pytest.approx(expected)


def test_at_the_same_rates_gaps_are_of_the_seeds_that_both_models_were_trained_with(tmp_path):
    records, point = records_of(tmp_path), COHORTS.points[0]
    selected = gap(records, point, "si_cifg", "cifg")
    assert gap_at_rates(records, point, "si_cifg", "cifg", (1.0, 0.01)) == selected
    assert gap_at_rates(records, point, "si_cifg", "cifg", (2.0, 0.01)) is None
    selecting = gap_at_rates(records, point, "si_cifg", "cifg", (1.0, 0.03))
    assert (len(selected.test.values), len(selecting.test.values)) == (3, 1)
    lost = Run(point.setting, "cifg", 1.0, 0.03, 0)
    records.runs[lost] |= {"status": "diverged", "rounds": 20}
    assert gap_at_rates(records, point, "si_cifg", "cifg", (1.0, 0.03)) is None


def test_the_overview_has_each_place_once(tmp_path, monkeypatch):
    records = records_of(tmp_path)
    axes = {"cohort": COHORTS, "again": dataclasses.replace(COHORTS, title="again")}
    found = places(records, axes, ("si_cifg", "cifg"))
    assert [place.words for place in found] == [f"clients a round: {cohort}" for cohort in (2, 4, 8)]
    assert places(records, axes, ("si_transformer", "transformer")) == []
    # The published one, and one in grey for the legend, are the only dotted lines.
    panel = draw_overview(records, axes).axes[0]
    assert sum(line.get_linestyle() == ":" for line in panel.lines) == 2
    assert draw_overview(Records(tmp_path / "none.json", ABOUT), axes) is None
    assert list(gaps_at_equal_rates(records, axes)) == []
    monkeypatch.setattr(overview, "AT_RATES", ((1.0, 0.01), (1.0, 0.03)))
    assert [(place.words, rates) for place, rates, _ in gaps_at_equal_rates(records, axes)] == [
        (place.words, (1.0, 0.01)) for place in found
    ]


def test_a_rate_is_at_the_edge_of_two_and_never_of_one():
    found = {rates: _is_edge(1.0, rates) for rates in ((1.0,), (1.0, 2.0), (0.5, 1.0, 2.0), (1.0, 2.0, 4.0))}
    assert list(found.values()) == [False, True, False, True]


def test_published_gaps_are_of_published_pairs():
    assert published_gap("si_cifg_published", "cifg") == published_gap("si_cifg", "cifg") == 33.6 / 35.5 - 1
    assert published_gap("si_transformer", "transformer") == 33.7 / 34.6 - 1
    for pair in (("si_cifg", "cifg_layer_norm"), ("cifg_layer_norm", "cifg"), ("si_cifg", "cifg_rms_norm")):
        assert published_gap(*pair) is None


@pytest.mark.long
def test_the_command_goes_on_and_reports_parts(tmp_path, monkeypatch, capsys):
    trained = []

    def train(settings, rounds, store, directory, tested):
        rates = settings["client_learning_rate"], settings["server_learning_rate"]
        model = settings["model"].removesuffix("_tiny")
        run = Run(Setting(cohort=settings["cohort_size"]), model, *rates, settings["seed"])
        trained.append((run, rounds))
        (directory / "run").mkdir(exist_ok=True)
        return made_up(run, rounds)

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(command, "prepare_data", lambda name, work, dumps: tmp_path / name)
    monkeypatch.setattr(command, "describe_data", lambda store: ABOUT["data"]["stackexchange"])
    monkeypatch.setattr(costs, "mean_steps", lambda store, setting: 12.0)
    monkeypatch.setattr(costs, "_time_step", lambda name, store: 0.003)
    study = command.STUDY._replace(axes={"cohort": COHORTS, "later": Axis("later", (Point("here"),), ("cifg",))})
    words = ["--work", str(tmp_path / "work"), "--results", str(tmp_path / "results"), "--workers", "2"]
    assert command.main(["estimate", *words], study, InProcess()) == 0
    assert not trained
    assert "cohort: at most" in capsys.readouterr().out
    assert command.main(["--axis", "cohort", "--models", "si_cifg", "--at-most", "5", *words], study, InProcess()) == 0
    assert [run.model for run, _ in trained] == ["si_cifg"] * 5
    assert command.main(["--axis", "cohort", "--at-most", "16", *words], study, InProcess()) == 0
    assert len(trained) == 21
    # All nine pairs of both models, of which three went on.
    assert len(list((tmp_path / "work").glob("cells/cohort-2/*/run"))) == 2 * 9
    page = (tmp_path / "results" / "axes.md").read_text()
    assert "Nothing is there yet of: cohort, later" in page
    assert command.main(["--axis", "cohort", *words], study, InProcess()) == 0
    assert len(set(trained)) == len(trained) == 3 * 2 * (9 + 3 + 2)
    page = (tmp_path / "results" / "axes.md").read_text()
    assert "Nothing is there yet of: later" in page
    assert "ahead; extrapolated ahead" in page
    assert "(edge)" not in page
    assert (tmp_path / "results" / "axes_cohort.png").stat().st_size > 10_000
    assert len(json.loads((tmp_path / "results" / "axes.json").read_text())["runs"]) == 3 * 2 * (9 + 2)
    assert not list((tmp_path / "work").glob("cells/*/*/run"))
    number = len(trained)
    assert command.main(["report", "--results", str(tmp_path / "results")], study) == 0
    assert (tmp_path / "results" / "axes.md").read_text() == page
    assert len(trained) == number
    monkeypatch.setattr(command, "protocol", lambda: {"seeds": [7]})
    assert command.main(words, study, InProcess()) == 1
    assert "another protocol" in capsys.readouterr().err


def test_records_of_other_data_are_refused(tmp_path):
    records = Records(tmp_path / "axes.json", ABOUT)
    run = Run(Setting(), "cifg", 1.0, 0.01, 0)
    records.add(run, made_up(run, 5))
    more = ABOUT | {"data": {"stdlib": {"clients": 3}}}
    assert set(Records(tmp_path / "axes.json", more).about["data"]) == {"stackexchange", "stdlib"}
    with pytest.raises(CheckpointError, match="another data"):
        Records(tmp_path / "axes.json", ABOUT | {"data": {"stackexchange": {"clients": 10}}})
    with pytest.raises(CheckpointError, match="train first"):
        Records(tmp_path / "nothing.json")
    for damaged in ('{"about"', "[]", '{"a": 1}', '{"about": {"protocol": {}, "data": {}}, "runs": [{}]}'):
        (tmp_path / "damaged.json").write_text(damaged)
        with pytest.raises(CheckpointError, match=r"damaged.json: is no record of trainings.*--results"):
            Records(tmp_path / "damaged.json")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return import_small_text(tmp_path_factory.mktemp("axes") / "text", clients=30)


@pytest.mark.long
def test_a_training_that_goes_on_is_the_one_that_was_not_interrupted(store, tmp_path, monkeypatch, quick_compilation):
    monkeypatch.setattr(training, "HELDOUT_EXAMPLES", 20)
    monkeypatch.setattr(training, "TEST_EXAMPLES", 20)
    run, tested = Run(Setting(cohort=3), "cifg", 1.0, 0.01, 1), frozenset((5, 10))
    settings = training.settings_of(run)
    short = training.train(settings, 5, store, tmp_path / "parts", tested)
    assert short["rounds"] == 5
    in_parts = training.train(settings, 10, store, tmp_path / "parts", tested)
    at_once = training.train(settings, 10, store, tmp_path / "whole", tested)
    for found in (in_parts, at_once):
        assert found["seconds"] > 0
        assert [row[0] for row in found["test"]] == [row[0] for row in found["heldout"]] == [5, 10]
    differ = {name for name in at_once if at_once[name] != in_parts[name]}
    assert differ <= {"seconds"}
    assert training.mean_steps(store, Setting()) == 2.0
    assert training.mean_steps(store, Setting(epochs=4)) == 8.0
    assert training.mean_steps(store, Setting(max_batches=1)) == 1.0


def test_what_is_beyond_the_points_that_have_gaps_is_extrapolated():
    along = [(1.0, -0.03), (4.2, -0.07), (13.1, -0.1)]
    assert [_how(line_through(along, at), along) for at in (13.1, 28.0)] == ["on the line", "extrapolated"]
