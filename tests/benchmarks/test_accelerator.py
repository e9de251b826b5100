"""The measurement of accelerators: whatever a cell does is recorded, and what is measured can be lowered for a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.accelerator import __main__ as runner
from benchmarks.accelerator import cells, records
from benchmarks.accelerator.cells import Cell
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.models.registry import MODELS

ROOT = Path(__file__).parents[2]
MODULE = "tests.benchmarks.cells_that_fail"


def cell(function, limit=60.0, least=0.0, **arguments):
    return Cell("peaks", function.replace("_", " "), f"{MODULE}:{function}", arguments, limit, least)


def statuses(folder):
    return {name: one["status"] for (_, name), one in records.read(folder).cells.items()}


@pytest.mark.long
def test_whatever_a_cell_does_is_recorded_and_the_others_go_on_then_and_later(tmp_path, capfd):
    """An injected lack of memory, a missing package, an exception, a crash and a cell without end."""
    wanted = [
        cell("works"),
        cell("has_too_little_memory"),
        cell("lacks_a_package"),
        cell("breaks"),
        cell("is_killed"),
        cell("takes_long", limit=1.0),
        cell("lacks_a_module_of_ours"),
        cell("gives_what_json_cannot_hold"),
        cell("works", number=2)._replace(name="works again"),
        cell("works", least=10_000.0)._replace(name="no time left"),
    ]
    assert runner.run(wanted, tmp_path, rehearsed_devices=1) == 1
    found = {name: one for (_, name), one in records.read(tmp_path).cells.items()}
    assert statuses(tmp_path) == {
        "works": "measured",
        "has too little memory": "out_of_memory",
        "lacks a package": "skipped",
        "breaks": "failed",
        "is killed": "crashed",
        "takes long": "timed_out",
        "lacks a module of ours": "failed",
        "gives what json cannot hold": "failed",
        "works again": "measured",
        "no time left": "skipped",
    }
    assert found["works again"]["result"]["number"] == 2
    assert found["lacks a package"]["reason"] == "the package a_package_that_nobody_has is missing"
    assert found["breaks"]["reason"] == "ValueError: this cell is broken"
    summary = (tmp_path / "summary.md").read_text()
    assert "REHEARSAL" in summary
    assert all(one["reason"] in summary for one in found.values() if "reason" in one)
    assert "Traceback" not in capfd.readouterr().out
    again = [cell("works", number=5), cell("breaks")._replace(measure=f"{MODULE}:works")]
    assert runner.run(again, tmp_path, rehearsed_devices=1, go_on=True) == 0
    assert statuses(tmp_path)["breaks"] == "measured"
    assert records.read(tmp_path).measured("peaks")["works"]["number"] == 1


def test_cells_name_what_there_is_once_and_a_rehearsal_calls_all_functions_with_all_arguments():
    def calls(wanted):
        return {(cell.measure, cell.arguments.get("kind"), *sorted(cell.arguments)) for cell in wanted}

    assert set(cells.MECHANISMS) == {"plain draw", *(name for name, one in MECHANISMS.items() if not one.distributed)}
    listed = {*cells.LARGER_MODELS, *cells.SMALLEST_MODELS}
    assert {name for name in listed if "+" not in name} == set(MODELS)
    for wanted in (cells.full(), cells.tiny()):
        assert len({(cell.group, cell.name) for cell in wanted}) == len(wanted)
        assert {cell.group for cell in wanted} == set(cells.GROUPS)
    assert calls(cells.tiny()) == calls(cells.full())


@pytest.mark.thorough
def test_the_whole_command_is_rehearsed(tmp_path):
    """Every cell with tiny sizes, on two CPU devices; and once more with nothing left to do."""
    words = [sys.executable, "-m", "benchmarks.accelerator", "--rehearse", "2", "--minutes", "9"]
    words += ["--results", str(tmp_path)]
    environment = {key: value for key, value in os.environ.items() if key != "JAX_NUM_CPU_DEVICES"}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    results = records.read(tmp_path)
    assert {one["status"] for one in results.cells.values()} == {"measured"}, done.stdout
    assert all(all(one["within"].values()) for one in results.measured("parity").values())
    for name in ("rounds.png", "private_steps.png", "noise_and_recurrence.png"):
        assert (tmp_path / name).stat().st_size > 0
    json.dumps(results.run)
    again = subprocess.run([*words, "--continue"], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert (again.returncode, "nothing to do" in again.stdout) == (0, True)
