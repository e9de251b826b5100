"""The table of accountants: who is asked, who is judged how, and what the page says of it."""

import json
import math
import sys
from pathlib import Path

import pytest

from benchmarks.privacy import accountants
from fedlm.fl_core.privacy.accounting.composition import epsilon_bounds
from fedlm.fl_core.privacy.accounting.release_events import GaussianEvent

PAGE = Path(__file__).parents[3] / "docs" / "design" / "accounting.md"


def committed():
    return json.loads(accountants.RESULTS.read_text(encoding="utf-8"))


def test_who_is_beyond_our_bounds_is_judged_by_balls():
    point = (1.0, 0.1, 2, 1e-6)
    upper, lower = epsilon_bounds([GaussianEvent(1.0, 2, 0.1)], 1e-6)
    answers = {
        "fedlm": {"epsilon": [lower, upper]},
        "Opacus, PRV": {"epsilon": lower * 0.98},
        "Opacus, Renyi": {"epsilon": upper * 1.5},
        "dp-accounting, optimistic": {"epsilon": upper * 1.02},
        "prv-accountant": {"epsilon": [lower * 0.9, upper * 1.1]},
        "dp-accounting, pessimistic": {"none": "MemoryError"},
    }
    assert accountants.contradictions(point, answers) == {
        "Opacus, PRV": "proven too low",
        "dp-accounting, optimistic": "proven too high",
    }


@pytest.mark.long
def test_the_command_asks_and_writes(tmp_path, monkeypatch, capsys):
    """Of one library, which the tests' environment has."""
    monkeypatch.setattr(accountants, "POINTS", [(1.0, 0.01, 10, 1e-6)])
    monkeypatch.setattr(accountants, "ELSEWHERE", [])
    path = tmp_path / "accountants.json"
    monkeypatch.setattr(sys, "argv", ["accountants", "--others", sys.executable, "--results", str(path)])
    accountants.main()
    record = json.loads(path.read_text())
    ((_, answers, contradicted),) = (row.values() for row in record["points"])
    least, most = answers["fedlm"]["epsilon"]
    assert answers["dp-accounting, optimistic"]["epsilon"] <= most
    assert least <= answers["dp-accounting, pessimistic"]["epsilon"] <= answers["dp-accounting, Renyi"]["epsilon"]
    assert contradicted == {}
    assert capsys.readouterr().out == accountants.table(record)


def test_the_page_has_the_committed_table():
    assert accountants.table(committed()) in PAGE.read_text(encoding="utf-8")


@pytest.mark.long
def test_our_committed_bounds_are_those_of_today():
    rows = committed()["points"]
    assert [tuple(row["point"]) for row in rows] == accountants.POINTS
    for row in rows:
        lower, upper = row["answers"]["fedlm"]["epsilon"]
        assert accountants.ours(*row["point"])["epsilon"] == pytest.approx([lower, upper], rel=1e-6)
        assert upper < math.inf
