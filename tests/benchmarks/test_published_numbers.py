"""Pages and reports say what was measured: they follow from the committed tables."""

import importlib
import json
import re
import shutil
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.security import poisoning

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
REPORTS = {
    "accelerator.__main__": ("--report", "accelerator/results/summary"),
}


def results_of(name: str) -> dict:
    return json.loads((BENCHMARKS / f"{name}.json").read_text(encoding="utf-8"))


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("module", REPORTS)
def test_a_committed_report_is_what_its_command_makes_of_the_committed_table(module, tmp_path, monkeypatch):
    """Which rates are selected, gaps, intervals, lines, verdicts and goals."""
    step, name = REPORTS[module]
    committed = BENCHMARKS / f"{name}.md"
    for table in committed.parent.glob("*.json*"):
        shutil.copy(table, tmp_path)
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: Path(path).touch())
    command = importlib.import_module(f"benchmarks.{module}")
    study = {"study": command.STUDY} if hasattr(command, "STUDY") else {}
    assert command.main([step, "--results", str(tmp_path)], **study) == 0
    assert (tmp_path / committed.name).read_text() == committed.read_text()


@pytest.mark.parametrize(
    ("number", "at_least"), [(r"(?<![\d.])[+-]\d+\.\d ± \d+\.\d", 21), (r"(?<![\d.+-])\d+\.\d ± \d+\.\d", 6)]
)
def test_every_gap_and_perplexity_of_the_page_on_architectures_is_in_a_table(number, at_least):
    tables = "".join(
        (BENCHMARKS / "architectures" / "results" / f"{name}.md").read_text()
        for name in ("axes", "production", "clients")
    )
    stated = set(re.findall(number, page("architectures")))
    assert len(stated) >= at_least
    assert [one for one in sorted(stated) if one not in tables] == []


def test_the_page_on_attacks_has_the_table_of_liars_that_was_measured():
    assert poisoning.table(results_of("security/results/poisoning")["rows"]) in page("reference/attacks")


def test_the_committed_histories_are_those_of_the_page_and_found_every_known_fault_and_nothing_else():
    record = results_of("privacy/results/histories")
    (histories,) = record["histories"]
    assert (histories["count"], histories["wrong"]) == (10_000, [])
    assert f"none of {histories['did']['epsilons compared']:,} epsilons was too small" in page("design/privacy")
    assert all(fault["found_after"] for fault in record["faults"].values())
