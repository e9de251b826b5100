import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.accelerator import __main__ as runner
from benchmarks.accelerator import records
from benchmarks.accelerator.cells import Cell
from benchmarks.accelerator.workers import Worker

ROOT = Path(__file__).parents[3]
MODULE = "tests.benchmarks.accelerator.cells_that_fail"


def cell(function, limit=60.0, least=0.0, **arguments):
    return Cell("peaks", function.replace("_", " "), f"{MODULE}:{function}", arguments, limit, least)


def statuses(folder):
    return {name: one["status"] for (_, name), one in records.read(folder).cells.items()}


@pytest.mark.long
def test_whatever_a_cell_does_is_recorded_and_the_others_go_on(tmp_path, capfd):
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
    cells = {name: one for (_, name), one in records.read(tmp_path).cells.items()}
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
    assert cells["works again"]["result"]["number"] == 2
    assert "1099511627776" in cells["has too little memory"]["reason"]
    assert cells["lacks a package"]["reason"] == "the package a_package_that_nobody_has is missing"
    assert cells["breaks"]["reason"] == "ValueError: this cell is broken"
    assert "SIGSEGV" in cells["is killed"]["reason"]
    assert "it may need 10000" in cells["no time left"]["reason"]
    summary = (tmp_path / "summary.md").read_text()
    assert "REHEARSAL" in summary
    assert all(one["reason"] in summary for one in cells.values() if "reason" in one)
    assert "Traceback" not in capfd.readouterr().out


@pytest.mark.long
def test_too_little_memory_keeps_the_process_and_a_broken_cell_costs_a_new_one(tmp_path):
    wanted = [cell("works"), cell("has_too_little_memory"), cell("works")._replace(name="after memory")]
    wanted += [cell("breaks"), cell("works")._replace(name="after a failure")]
    wanted += [cell("works")._replace(name="alone", alone=True)]
    runner.run(wanted, tmp_path, rehearsed_devices=1)
    process = {name: one["process"] for name, one in records.read(tmp_path).measured("peaks").items()}
    assert process["works"] == process["after memory"]
    assert len({process["works"], process["after a failure"], process["alone"]}) == 3


@pytest.mark.long
def test_a_run_goes_on_with_what_is_missing(tmp_path, capfd):
    assert runner.run([cell("works"), cell("breaks")], tmp_path, rehearsed_devices=1) == 1
    again = [cell("works", number=5), cell("breaks")._replace(measure=f"{MODULE}:works")]
    assert runner.run(again, tmp_path, rehearsed_devices=1, go_on=True) == 0
    assert "1 cells, 1 measured before" in capfd.readouterr().out
    results = records.read(tmp_path)
    assert statuses(tmp_path) == {"works": "measured", "breaks": "measured"}
    assert results.measured("peaks")["works"]["number"] == 1
    assert len(results.runs) == 2


KILLED = f"""
import sys
from pathlib import Path
from benchmarks.accelerator import __main__ as runner
from benchmarks.accelerator.cells import Cell
cells = [Cell("peaks", name, "{MODULE}:" + name, {{}}, 600, 0) for name in ("works", "takes_long")]
sys.exit(runner.run(cells, Path(sys.argv[1]), rehearsed_devices=1))
"""


@pytest.mark.long
def test_a_result_that_cannot_be_told_ends_nothing(tmp_path, capfd):
    wanted = [cell("works")._replace(group=group) for group in ("rounds", "shares", "parity", "peaks")]
    assert runner.run(wanted, tmp_path, rehearsed_devices=1) == 0
    assert [one["status"] for one in records.read(tmp_path).cells.values()] == ["measured"] * 4
    assert "KeyError" in capfd.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_run_that_is_killed_keeps_its_results_and_ends_its_worker(tmp_path, number):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        while (results := records.read(tmp_path)) is None or not results.cells:
            assert process.poll() is None
            time.sleep(0.05)
        worker = results.measured("peaks")["works"]["process"]
        process.send_signal(number)
        assert process.wait(20) == (-signal.SIGKILL if number == signal.SIGKILL else 128 + signal.SIGTERM)
    finally:
        process.kill()
    for _ in range(200):
        if not _alive(worker):
            break
        time.sleep(0.05)
    assert not _alive(worker)
    (tmp_path / "summary.md").unlink(missing_ok=True)
    assert runner.main(["--report", "--results", str(tmp_path)]) == 0
    assert "REHEARSAL" in (tmp_path / "summary.md").read_text()
    assert statuses(tmp_path) == {"works": "measured"}


def _alive(process):
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False


@pytest.mark.long
def test_without_an_accelerator_there_is_one_line_and_a_status(tmp_path):
    words = [sys.executable, "-m", "benchmarks.accelerator", "--results", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "no accelerator" in done.stderr
    assert not (tmp_path / records.FILE).exists()


def test_a_report_of_nothing_says_so(tmp_path, capsys):
    assert runner.main(["--report", "--results", str(tmp_path)]) == 1
    assert "has no results" in capsys.readouterr().out


@pytest.mark.parametrize("platforms", ["cuda", "cuda,cpu", ""])
def test_jax_sees_the_cpu_beside_the_accelerator(monkeypatch, platforms):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert runner.environment(None, "there").get("JAX_PLATFORMS", platforms) == ("cuda,cpu" if platforms else "")


WITHOUT = "alembic cryptography dp_accounting grain isal jax_privacy py7zr rapidfuzz sqlalchemy tensorboardX tyro"
BLOCKER = f"""
import sys
from importlib.abc import MetaPathFinder
class Blocker(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {WITHOUT.split()!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""


@pytest.mark.long
def test_a_missing_package_skips_what_needs_it_and_nothing_else(tmp_path, monkeypatch):
    """As on a machine that has JAX and little else: what is blocked here is what such a one lacked."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = Worker(tmp_path / "log.txt", runner.environment(1, str(tmp_path / "compiled")))
    package = "benchmarks.accelerator"
    step = {"model": "cifg_tiny", "precision": "float32", "examples": 2, "length": 3, "vocabulary": 20}
    step |= {"microbatches": 1, "patience": 0.0, "enough": 0.0}
    try:
        for module in ("rounds", "shares", "parity", "recurrence", "private_steps", "peaks"):
            answer = worker.ask(f"{package}.{module}:measure", {}, 60)
            # Imported, and then called without its arguments.
            assert "TypeError" in answer["reason"] or "AttributeError" in answer["reason"], answer
        answer = worker.ask(f"{package}.private_steps:measure", step | {"kind": "jax_privacy"}, 60)
        assert answer["reason"] == "the package jax_privacy is missing"
        noise = {"parameters": 1000, "block": 2, "passes": 1}
        answer = worker.ask(f"{package}.noise:measure", {"mechanism": "blt"} | noise, 60)
        assert answer["status"] == "measured"
        answer = worker.ask(f"{package}.comparison:measure", {"changes": {}, "modules": 2}, 60)
        assert answer["status"] == "skipped"
        assert "missing" in answer["reason"]
    finally:
        worker.close()


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
