"""`fedlm compare` as a user runs it, with two models on a small store."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

OPTIONS = (
    "--models cifg_tiny si_cifg_tiny --rounds 3 --cohort-size 4 --length 8 --evaluate-every 1 --checkpoint-every 2 "
    "--client-learning-rates 0.5 1e30 --seeds 1 --heldout-examples 50"
).split()


def options(store, out, *more):
    return ["--data", str(store), "--out", str(out), *OPTIONS, *more]


@pytest.fixture(scope="module")
def compared(small_store, tmp_path_factory, fedlm_here, cells_here):
    out = tmp_path_factory.mktemp("compare") / "out"
    result = fedlm_here("compare", *options(small_store, out))
    assert result.returncode == 0, result.stderr
    return out, result


@pytest.mark.long
def test_every_cell_is_run_and_diverged_ones_do_not_end_the_rest(compared):
    out, result = compared
    by_rate = {}
    for summary in summaries_in(out):
        by_rate.setdefault(summary["experiment"]["client_learning_rate"], []).append(summary["status"])
    assert by_rate == {0.5: ["finished"] * 2, 1e30: ["diverged"] * 2}
    assert f"report: {out / 'report.html'}" in result.stdout
    assert "round 12/12" in result.stderr or "left" in result.stderr
    with (out / "results.csv").open() as file:
        assert sorted(row["status"] for row in csv.DictReader(file)) == ["diverged"] * 2 + ["finished"] * 2
    page = (out / "report.html").read_text()
    assert "si_cifg_tiny" in page
    assert "NOT PRIVATE" in page


@pytest.mark.long
def test_going_on_runs_only_the_cells_that_are_left_of_the_same_comparison(compared, small_store, fedlm_here):
    out, _ = compared
    kept = next(out.glob("cells/cifg_tiny/client-0.5*/seed-1/summary.json"))
    gone = next(out.glob("cells/si_cifg_tiny/client-0.5*/seed-1/summary.json"))
    before, digest = kept.stat().st_mtime_ns, json.loads(gone.read_text())["parameters_sha256"]
    gone.unlink()
    assert fedlm_here("compare", *options(small_store, out)).returncode == 0
    assert kept.stat().st_mtime_ns == before
    assert json.loads(gone.read_text())["parameters_sha256"] == digest
    refused = fedlm_here("compare", *options(small_store, out, "--rounds", "4"))
    assert (refused.returncode, "rounds was 3 and is now 4" in refused.stderr) == (2, True)


def summaries_in(out):
    return [json.loads(path.read_text()) for path in out.glob("cells/*/*/*/summary.json")]


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def metrics_in(out):
    return {path: path.stat().st_size for path in out.glob("cells/*/*/*/metrics.jsonl")}


@pytest.fixture
def start(small_store, tmp_path):
    """Start the comparison of this test, of two cells, in a process of its own; or go on with it."""
    few = "--models cifg_tiny --client-learning-rates 0.5 --seeds 0 1 --rounds 30 --workers 2".split()
    words = [sys.executable, "-m", "fedlm", "compare", *options(small_store, tmp_path / "out", *few)]
    begun = []

    def start():
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        begun.append(subprocess.Popen(words, env=os.environ, **pipes))
        return psutil.Process(begun[-1].pid), begun[-1]

    yield start
    for process in begun:
        process.kill()


@pytest.mark.long
def test_a_comparison_that_is_ended_leaves_no_process_and_one_whose_worker_is_killed_goes_on(start, tmp_path):
    out = tmp_path / "out"
    found, process = start()
    wait_for(lambda: metrics_in(out))
    children = found.children(recursive=True)
    assert children
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert psutil.wait_procs(children, timeout=120)[1] == []
    assert (process.returncode, "ended by SIGTERM" in errors) == (143, True)
    assert "leaked" not in errors
    assert "Traceback" not in errors
    seen, (found, process) = metrics_in(out), start()
    wait_for(lambda: metrics_in(out) != seen)
    workers = [child for child in found.children() if "spawn_main" in " ".join(child.cmdline())]
    workers[0].kill()
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert [summary["status"] for summary in summaries_in(out)] == ["finished"] * 2
    assert (out / "report.html").exists()
