"""The page of laws has every part, and commands name what is wrong."""

import json
import re
import warnings

import numpy as np
import pytest

from fedlm.commands.cli import main
from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.laws.figures import noise
from fedlm.simulations.laws.figures.figure import Evidence
from fedlm.simulations.laws.figures.registry import FIGURES
from fedlm.simulations.laws.figures.table import table_of
from fedlm.simulations.laws.figures.table2 import saturating_table
from fedlm.simulations.laws.laws_file import Laws, write_laws
from fedlm.simulations.laws.page import write_laws_report
from fedlm.simulations.laws.planning.central_planner import Budget
from tests.simulations.reporting.html_page import Page
from tests.support.synthetic_laws import COEFFICIENTS, WORLD, fitted_form, surface_of

_HELD_OUT = {
    "cells": {"points": 9, "points_out_of_reach": 1, "mean_relative_error": 0.0123, "max_relative_error": 0.05}
}


@pytest.fixture
def quick_fields(monkeypatch):
    """A field of noise as figure 4 draws, of a few points."""
    monkeypatch.setattr(noise, "_RANGES", {"examples": (24,), "epsilon": (2,), "batch_size": (16,)})


@pytest.mark.long
def test_the_page_has_every_figure(evidence, quick_fields, tmp_path):
    source, task = {"measurements": "m.parquet"}, {"data": "<b>data</b>"}
    laws = Laws(evidence.search.surface, evidence.forms, _HELD_OUT, source, task)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = write_laws_report(laws, evidence, tmp_path / "out" / "report.html", "fedlm laws report laws.json")
    page = Page(path.read_text())
    identifiers = [value for name, value in page.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    assert not re.search(r'(src|href)="(?!#)', path.read_text()), "it needs no other file"
    assert page.tags.count("svg") == len(FIGURES)
    assert all(figure.caption in page.text for figure in FIGURES.values())
    for words in ("NOT PRIVATE", "add-or-remove", "delta 1e-8", "1.23%", "made up", "<b>data</b>", "laws.json"):
        assert words in page.text
    assert "BertLarge (3.35e8)" in page.text


@pytest.mark.long
def test_a_page_without_a_surface_says_what_is_left_out(quick_fields, tmp_path):
    laws = Laws(None, {"mckenna_l2": fitted_form("mckenna_l2", **COEFFICIENTS)})
    path = write_laws_report(laws, Evidence(forms=laws.forms), tmp_path / "report.html", "fedlm laws report")
    text = Page(path.read_text()).text
    assert "figure1 needs a file of laws with a surface of losses" in text
    with pytest.raises(ConfigurationError, match=r"ends in \.html"):
        write_laws_report(laws, Evidence(), tmp_path / "report.pdf", "fedlm laws report")


def test_a_figure_is_written_by_its_command(evidence, tmp_path, capsys):
    laws = tmp_path / "laws.json"
    write_laws(Laws(evidence.search.surface, evidence.forms), laws)
    out = tmp_path / "pictures" / "advantage.png"
    assert main(["laws", "figures", str(laws), "--figure", "figure15", "--out", str(out), "--data", "json"]) == 0
    assert capsys.readouterr().out.split() == ["figure15:", str(out), "figure15:", str(out.with_suffix(".json"))]
    assert out.read_bytes().startswith(b"\x89PNG")
    assert set(json.loads(out.with_suffix(".json").read_text())[0]) >= {"compute", "membership_advantage"}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("figures --figure figure2 --out x.png", "unknown figure 'figure2'; choose from figure1, figure3"),
        ("figures --figure figure4 --out x.pdf", "must be a file name that ends in .png"),
        ("figures --figure figure1 --out x.png", "figure1 needs a file of laws with a surface of losses"),
        ("figures none.json --figure figure1 --out x.png", "none.json: cannot be read"),
        ("report none.json --out x.html", "none.json: cannot be read"),
        ("table2 none.json", "none.json: cannot be read"),
        ("table2 --examples 7", "the published table has none of these"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(words, error, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["laws", *words.split()]) == 2
    told = capsys.readouterr().err
    assert error in told
    assert "Traceback" not in told
    assert not list(tmp_path.iterdir())


def test_table_2_of_laws_is_printed_and_states_what_its_epsilons_are_of(tmp_path, capsys, evidence):
    laws = tmp_path / "laws.json"
    write_laws(Laws(surface_of(), {}), laws)
    assert main(["laws", "table2", str(laws), "--examples", "1e8", "--epsilons", "4", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["examples"], row["epsilon"]) == (1e8, 4.0)
    assert row["noise_batch_ratio"] == pytest.approx(row["noise_multiplier"] / round(row["batch_size"]))
    assert main(["laws", "table2", "--examples", "1e5", "--epsilons", "64"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "at delta 1e-8" in words
    assert "unit: one training example, in all steps; adjacency: add-or-remove; if each example is in each" in words


def test_a_saturating_row_is_the_first_compute_within_a_percent_of_the_best(evidence):
    search = evidence.search
    (row,) = saturating_table(search, (1e8,), (4.0,)).rows()
    budget = Budget(row["examples"], row["epsilon"], row["delta"], 0.0)
    losses = np.array([search.best(budget._replace(compute=compute))["loss"] for compute in search.computes])
    assert row["compute"] == search.computes[int(np.argmax(losses <= 1.01 * np.nanmin(losses)))]
    assert len(saturating_table(search, (100.0,), (1e-3,))) == 0


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
    assert "smallest model" in evidence.search.best(budgets._replace(compute=1e17))["limits"]
    nothing = evidence.search.best(budgets._replace(compute=1e30))
    assert nothing["limits"] == "outside the grid"
    assert np.isnan(nothing["loss"])


def test_unknown_numbers_are_empty_in_csv_and_null_in_json():
    table = table_of([{"name": "a", "loss": 1.5}, {"name": "b", "loss": float("nan")}])
    assert table.as_csv() == "name,loss\na,1.5\nb,\n"
    assert json.loads(table.as_json()) == [{"name": "a", "loss": 1.5}, {"name": "b", "loss": None}]
    assert table.where(name="b").values("name") == ["b"]
