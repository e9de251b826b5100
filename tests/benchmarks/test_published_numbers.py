"""Pages and reports say what was measured: they follow from the committed tables."""

import argparse
import importlib
import json
import re
import shutil
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.privacy import memorization
from benchmarks.security import poisoning
from fedlm.command_line.options import read_options
from fedlm.commands.compare import CompareCommand
from fedlm.simulations.experiments.presets import PRESETS

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


@pytest.mark.parametrize("name", ["preset", "production", "dp_ftrl"])
def test_settings_of_the_study_of_architectures_are_those_of_a_comparison(name):
    words = ["--config", str(BENCHMARKS / "architectures" / "settings" / f"{name}.toml"), "--data", "a", "--out", "b"]
    comparison = read_options(
        CompareCommand, words, "fedlm compare", presets=PRESETS, default_preset="small", essentials=()
    ).comparison
    assert comparison.models == ("cifg_tiny", "si_cifg_tiny")
    assert (comparison.training.length, comparison.training.client_batch_size) == (20, 10)


def test_the_page_on_attacks_has_the_table_of_liars_that_was_measured():
    assert poisoning.table(results_of("security/results/poisoning")["rows"]) in page("reference/attacks")


def test_committed_histories_found_every_known_fault_that_was_put_in_and_nothing_else():
    record = results_of("privacy/results/histories")
    assert sum(part["count"] for part in record["histories"]) > 0
    assert [part["wrong"] for part in record["histories"]] == [[]] * len(record["histories"])
    assert all(fault["found_after"] for fault in record["faults"].values())


def test_committed_banded_noise_is_ahead_where_it_can_be_computed():
    for found in results_of("privacy/results/amplified_banded")["errors"]:
        ratios = [one["banded"] / one["independent"] for one in found["at"]]
        assert sorted(ratios, reverse=True) == ratios
        assert ratios[-1] < 0.5 < ratios[0] < 1


def test_committed_private_vocabularies_cost_more_the_more_private_they_are():
    record = results_of("privacy/results/private_vocabulary")
    for data in record["data"].values():
        found = data["vocabularies"]
        assert not found["plain"]["origin"]["covered"]
        private = [found[f"{epsilon:g}"] for epsilon in record["settings"]["epsilons"]]
        guarantees = [one["origin"]["guarantee"] for one in private]
        assert [one["epsilon"] for one in guarantees] == record["settings"]["epsilons"]
        assert {one["delta"] for one in guarantees} == {record["settings"]["delta"]}
        costs = [one["bits_a_character"] for one in (*private, found["plain"])]
        assert sorted(costs, reverse=True) == costs


def test_both_sides_of_the_committed_generation_wrote_the_same_tokens():
    for measured in results_of("generation/results/against_transformers")["models"].values():
        for numbers in measured["batches"].values():
            assert numbers["same_tokens"] == 1
            assert numbers["distinct_tokens"] > 10


def test_the_twins_whose_memorization_is_compared_differ_in_privacy_alone(tmp_path):
    arguments = argparse.Namespace(
        model="cifg_tiny", steps=5, batch_size=4, epsilon=8.0, delta=1e-5, canaries=3, options=["learning-rate=0.1"]
    )
    one, other = (set(memorization.pretraining(arguments, name, tmp_path, tmp_path)) for name in memorization.COLOURS)
    assert one - other == {"--privacy=none"}
    assert other - one == {"--epsilon=8.0", "--delta=1e-05", "--clipping=bookkeeping"}
