"""Every picture is drawn from a world whose losses are known, without warnings, and its numbers are that world's."""

import csv
import io
import json
import warnings

import numpy as np
import pytest

from fedlm.simulations.laws.figures.figure import write_law_figure
from fedlm.simulations.laws.figures.registry import FIGURES
from fedlm.simulations.laws.figures.table import table_of
from fedlm.simulations.laws.planning.central_planner import Budget
from fedlm.simulations.laws.planning.configurations import saturates_at
from tests.support.synthetic_laws import WORLD


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in FIGURES if name != "figure4"])
def test_each_figure_is_drawn_without_warnings_and_its_numbers_lie_beside_it(name, evidence, tmp_path):
    figure = FIGURES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = figure.table(evidence)
        written = write_law_figure(figure, table, tmp_path / f"{name}.png", "csv")
    assert [path.name for path in written] == [f"{name}.png", f"{name}.csv"]
    assert written[0].read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(io.StringIO(written[1].read_text())))
    assert len(rows) == len(table) > 3
    assert list(rows[0]) == list(table.columns)
    drawn = figure.draw(table)
    assert any(axes.lines or axes.collections for axes in drawn.axes)


def test_the_best_training_is_the_least_of_all_that_cost_as_much(evidence):
    budgets = Budget(1e8, 4.0, 1e-8, 1e21)
    best = evidence.search.best(budgets)
    assert best["limits"] == ""
    assert 6 * best["parameters"] * best["batch_size"] * best["steps"] * 512 == pytest.approx(1e21)
    found = evidence.search.candidates(budgets)
    known = np.isfinite(found.loss)
    assert best["loss"] == found.loss[known].min()
    truth = WORLD.loss(found.parameters, found.steps, found.noise_batch_ratio)[known]
    assert best["loss"] == pytest.approx(truth.min(), rel=0.02)
    good = found.batch_size[known][found.loss[known] <= 1.01 * best["loss"]]
    assert (best["batch_size_low"], best["batch_size_high"]) == (good.min(), good.max())
    assert best["loss_low"] < best["loss"] < best["loss_high"]


def test_a_best_training_at_an_end_of_the_grid_says_so(evidence):
    assert "smallest model" in evidence.search.best(Budget(1e8, 4.0, 1e-8, 1e17))["limits"]
    nothing = evidence.search.best(Budget(1e8, 4.0, 1e-8, 1e30))
    assert nothing["limits"] == "outside the grid"
    assert np.isnan(nothing["loss"])


def test_saturation_is_the_first_loss_within_a_percent_of_the_least():
    assert saturates_at(np.array([np.nan, 3.0, 2.02, 2.01, 2.0, 2.005])) == 2
    assert saturates_at(np.array([np.nan, np.nan])) is None


def test_unknown_numbers_are_empty_in_csv_and_null_in_json():
    table = table_of([{"name": "a", "loss": 1.5}, {"name": "b", "loss": float("nan")}])
    assert table.as_csv() == "name,loss\na,1.5\nb,\n"
    assert json.loads(table.as_json()) == [{"name": "a", "loss": 1.5}, {"name": "b", "loss": None}]
    assert table.where(name="b").values("name") == ["b"]
