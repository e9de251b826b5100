"""The page of laws is well formed and has every part; commands name what is wrong."""

import json
import re

import pytest

from fedlm.commands.cli import main
from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.laws.figures import noise
from fedlm.simulations.laws.figures.figure import Evidence
from fedlm.simulations.laws.figures.registry import FIGURES
from fedlm.simulations.laws.laws_file import Laws, write_laws
from fedlm.simulations.laws.report.page import write_laws_report
from fedlm.simulations.laws.report.paper_findings import FINDINGS
from tests.simulations.reporting.html_page import Page
from tests.support.synthetic_laws import COEFFICIENTS, fitted_form, surface_of

_HELD_OUT = {
    "cells": {"points": 9, "points_out_of_reach": 1, "mean_relative_error": 0.0123, "max_relative_error": 0.05}
}


@pytest.fixture
def quick_fields(monkeypatch):
    """A field of noise as figure 4 draws, of a few points."""
    monkeypatch.setattr(noise, "_RANGES", {"examples": (24,), "epsilon": (2,), "batch_size": (16,)})


def written_page(evidence, tmp_path):
    """The source of the page of laws, which is well formed and needs no other file, and what is read on it."""
    source, task = {"measurements": "m.parquet"}, {"data": "<b>data</b>"}
    laws = Laws(evidence.search.surface, evidence.forms, _HELD_OUT, source, task)
    path = write_laws_report(laws, evidence, tmp_path / "out" / "report.html", "fedlm laws report laws.json")
    text = path.read_text()
    page = Page(text)
    identifiers = [value for name, value in page.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    assert not re.search(r'(src|href)="(?!#)', text)
    return page


@pytest.mark.long
def test_the_page_has_every_figure_and_finding(evidence, quick_fields, tmp_path):
    page = written_page(evidence, tmp_path)
    assert page.tags.count("svg") == len(FIGURES)
    assert all(figure.caption in page.text for figure in FIGURES.values())
    for words in ("NOT PRIVATE", "add-or-remove", "delta 1e-8", "1.23%", "made up", "<b>data</b>", "laws.json"):
        assert words in page.text
    assert "BertLarge (3.35e8)" in page.text
    assert page.text.count("not reached") + page.text.count("holds") + page.text.count("does not hold") >= len(FINDINGS)


@pytest.mark.long
def test_a_page_without_a_surface_says_what_is_left_out(quick_fields, tmp_path):
    laws = Laws(None, {"mckenna_l2": fitted_form("mckenna_l2", **COEFFICIENTS)})
    path = write_laws_report(laws, Evidence(forms=laws.forms), tmp_path / "report.html", "fedlm laws report")
    text = Page(path.read_text()).text
    assert "figure1 needs a file of laws with a surface of losses" in text
    assert "Findings" not in text
    with pytest.raises(ConfigurationError, match=r"ends in \.html"):
        write_laws_report(laws, Evidence(), tmp_path / "report.pdf", "fedlm laws report")


def test_a_figure_is_written_by_its_command(evidence, tmp_path, capsys):
    laws = tmp_path / "laws.json"
    write_laws(Laws(evidence.search.surface, evidence.forms), laws)
    out = tmp_path / "pictures" / "optima.png"
    assert main(["laws", "figures", str(laws), "--figure", "figure19", "--out", str(out), "--data", "json"]) == 0
    assert capsys.readouterr().out.split() == ["figure19:", str(out), "figure19:", str(out.with_suffix(".json"))]
    assert out.read_bytes().startswith(b"\x89PNG")
    assert set(json.loads(out.with_suffix(".json").read_text())[0]) >= {"compute", "parameters"}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["figures", "--figure", "figure2", "--out", "x.png"],
            "unknown figure 'figure2'; choose from figure1, figure3",
        ),
        (["figures", "--figure", "figure4", "--out", "x.pdf"], "must be a file name that ends in .png"),
        (["figures", "--figure", "figure1", "--out", "x.png"], "figure1 needs a file of laws with a surface of losses"),
        (["figures", "none.json", "--figure", "figure1", "--out", "x.png"], "none.json: cannot be read"),
        (["report", "none.json", "--out", "x.html"], "none.json: cannot be read"),
        (["table2", "none.json"], "none.json: cannot be read"),
        (["table2", "--examples", "7"], "the published table has none of these"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(words, error, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["laws", *words]) == 2
    told = capsys.readouterr().err
    assert error in told
    assert "Traceback" not in told
    assert not list(tmp_path.iterdir())


def test_table_2_of_laws_is_printed(tmp_path, capsys, evidence):
    laws = tmp_path / "laws.json"
    write_laws(Laws(surface_of(), {}), laws)
    assert main(["laws", "table2", str(laws), "--examples", "1e8", "--epsilons", "4", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["examples"], row["epsilon"]) == (1e8, 4.0)
    assert row["noise_batch_ratio"] == pytest.approx(row["noise_multiplier"] / round(row["batch_size"]))


def test_table_2_states_what_its_epsilons_are_of(capsys):
    assert main(["laws", "table2", "--examples", "1e5", "--epsilons", "64"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "at delta 1e-8" in words
    assert (
        "unit: one training example, in all steps; adjacency: add-or-remove; if each example is in each batch" in words
    )
