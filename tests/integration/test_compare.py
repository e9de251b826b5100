"""`fedlm compare` as a user runs it, with two models on a small store."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

WORDS = [sys.executable, "-m", "fedlm", "compare"]
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
    summaries = [json.loads(path.read_text()) for path in out.glob("cells/*/*/*/summary.json")]
    assert len(summaries) == 4
    by_rate = {}
    for summary in summaries:
        by_rate.setdefault(summary["experiment"]["client_learning_rate"], set()).add(summary["status"])
    assert by_rate == {0.5: {"finished"}, 1e30: {"diverged"}}
    assert f"report: {out / 'report.html'}" in result.stdout
    assert "round 12/12" in result.stderr or "left" in result.stderr


@pytest.mark.long
def test_the_results_are_a_table_and_a_page(compared):
    out, _ = compared
    with (out / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert {row["status"] for row in rows} == {"finished", "diverged"}
    page = (out / "report.html").read_text()
    assert "si_cifg_tiny" in page
    assert "NOT PRIVATE" in page


@pytest.mark.long
def test_going_on_runs_only_the_cells_that_are_left(compared, small_store, fedlm_here):
    out, _ = compared
    kept = next(out.glob("cells/cifg_tiny/client-0.5*/seed-1/summary.json"))
    gone = next(out.glob("cells/si_cifg_tiny/client-0.5*/seed-1/summary.json"))
    before, digest = kept.stat().st_mtime_ns, json.loads(gone.read_text())["parameters_sha256"]
    gone.unlink()
    assert fedlm_here("compare", *options(small_store, out)).returncode == 0
    assert kept.stat().st_mtime_ns == before
    assert json.loads(gone.read_text())["parameters_sha256"] == digest


@pytest.mark.long
def test_a_folder_of_another_comparison_is_refused(compared, small_store, fedlm_here):
    out, _ = compared
    result = fedlm_here("compare", *options(small_store, out, "--rounds", "4"))
    assert result.returncode == 2
    assert "rounds was 3 and is now 4" in result.stderr
    assert "Traceback" not in result.stderr


def workers_of(process):
    listed = subprocess.run(
        ["pgrep", "-P", str(process.pid), "-f", "spawn_main"], capture_output=True, text=True, check=False
    )
    return [int(number) for number in listed.stdout.split()]


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def start(store, out):
    words = options(store, out, "--client-learning-rates", "0.5", "--seeds", "0", "1", "--rounds", "40")
    return subprocess.Popen([*WORDS, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("pgrep") is None, reason="finds worker processes with pgrep")
def test_a_killed_worker_is_replaced_and_a_killed_comparison_leaves_none_behind(small_store, tmp_path):
    out = tmp_path / "out"
    first = start(small_store, out)
    wait_for(lambda: list(out.glob("cells/*/*/*/metrics.jsonl")))
    left_behind = workers_of(first)
    assert left_behind
    first.kill()
    first.wait()
    wait_for(lambda: not any(Path(f"/proc/{number}").exists() for number in left_behind), seconds=20)
    before = {path: path.stat().st_size for path in out.glob("cells/*/*/*/metrics.jsonl")}
    time.sleep(0.5)
    assert before == {path: path.stat().st_size for path in out.glob("cells/*/*/*/metrics.jsonl")}

    second = start(small_store, out)
    wait_for(lambda: workers_of(second))
    victim = workers_of(second)[0]
    time.sleep(1)
    os.kill(victim, signal.SIGKILL)
    _, errors = second.communicate(timeout=300)
    assert second.returncode == 0, errors
    summaries = [json.loads(path.read_text()) for path in out.glob("cells/*/*/*/summary.json")]
    assert [summary["status"] for summary in summaries] == ["finished"] * 4
    assert (out / "report.html").exists()


@pytest.mark.long
def test_sigterm_ends_a_comparison_with_all_its_processes(small_store, tmp_path):
    alone = "--models cifg_tiny --client-learning-rates 0.5 --seeds 0 --rounds 10000 --workers 1".split()
    words = [*WORDS, *options(small_store, tmp_path / "out", *alone)]
    comparison = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not any((tmp_path / "out").glob("cells/**/metrics.jsonl")):
        time.sleep(0.1)
        assert comparison.poll() is None
    children = {int(pid) for pid in Path(f"/proc/{comparison.pid}/task/{comparison.pid}/children").read_text().split()}
    assert children
    comparison.send_signal(signal.SIGTERM)
    try:
        _, errors = comparison.communicate(timeout=30)
    finally:
        comparison.kill()
    assert comparison.returncode == 143
    assert "ended by SIGTERM" in errors
    assert "leaked" not in errors
    assert "Traceback" not in errors
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
