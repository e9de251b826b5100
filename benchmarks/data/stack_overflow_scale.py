"""The token store at a tenth of Stack Overflow's size: import, open, draw cohorts, memory.

A made-up database in TensorFlow Federated's published form (see `synthetic_stack_overflow`) is imported with the
command that users type, then cohorts are drawn and batched from the store. Needs about 12 GB of disk; the database
and the store stay in the working folder for the next run. Run it when nothing else runs:

    python -m benchmarks.data.stack_overflow_scale
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
from matplotlib.figure import Figure

from benchmarks.data.synthetic_stack_overflow import write_database
from benchmarks.machine import describe_machine
from fedlm.fl_core.cohorts import UniformSampler
from fedlm.fl_core.local_sgd import LocalTraining
from fedlm.fl_core.round_loop import RoundPlan
from fedlm.models.base import parameter_count
from fedlm.models.registry import create_model
from fedlm.simulations.data.federated_data import StoredData
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.engine.lanes import LaneShape, lane_chunks

PUBLISHED_CLIENTS, PUBLISHED_SENTENCES = 342_477, 135_818_730
LENGTH, LANES, STEPS = 20, 64, 32
COHORTS = (10, 50, 100, 500, 2000)
GPU_BANDWIDTH = {"NVIDIA H100 SXM": 3.35e12, "NVIDIA H200": 4.8e12}  # bytes a second, from their data sheets
WEIGHT_PASSES = 5
"""A local step reads a lane's weights forward and backward, writes a gradient, reads it and the weights and writes
the weights: at batch 10 no kernel can do with much less, so this is a lower bound of a round's time."""
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=round(PUBLISHED_CLIENTS / 10), help="training users")
    parser.add_argument("--work", type=Path, default=Path("runs/benchmark"), help="working folder")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    database = arguments.work / f"stackoverflow-{arguments.clients}.sqlite"
    if not database.exists():
        write_database(database, arguments.clients)
    store = arguments.work / f"store-{arguments.clients}"
    imported = measure_import(database, store)
    cohorts = measure_cohorts(store)
    results = {"machine": describe_machine(), "import": imported, "store": measure_store(store), "cohorts": cohorts}
    results["whole_stack_overflow"] = extrapolate(results)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "stack_overflow_scale.json").write_text(json.dumps(results, indent=2) + "\n")
    plot(cohorts).savefig(arguments.results / "stack_overflow_scale.png", dpi=120)
    print(json.dumps(results, indent=2))


def measure_import(database: Path, store: Path) -> dict:
    for left in (store, store.with_name(f".{store.name}.import")):
        shutil.rmtree(left, ignore_errors=True)
    command = [sys.executable, "-m", "fedlm", "data", "import", "stackoverflow-tff", str(database)]
    started = time.perf_counter()
    process = subprocess.Popen([*command, "--out", str(store)], stdout=subprocess.DEVNULL)
    peaks = {"largest_process": 0, "all_processes": 0}
    watch = threading.Thread(target=_watch_memory, args=(process.pid, peaks))
    watch.start()
    if process.wait():
        raise SystemExit("the import failed")
    seconds = time.perf_counter() - started
    watch.join()
    sentences = sum(TokenStore.open(store).header.splits[split].examples for split in ("train", "heldout", "test"))
    return {
        "seconds": round(seconds, 1),
        "sentences": sentences,
        "sentences_per_second": round(sentences / seconds),
        "database_bytes": database.stat().st_size,
        "peak_memory_mib": {name: round(peak / 2**20) for name, peak in peaks.items()},
    }


def _watch_memory(pid: int, peaks: dict[str, int]) -> None:
    while psutil.pid_exists(pid):
        sizes = []
        try:
            parent = psutil.Process(pid)
            for process in (parent, *parent.children(recursive=True)):
                sizes.append(process.memory_full_info().uss)
        except psutil.Error:
            pass
        peaks["largest_process"] = max([peaks["largest_process"], *sizes])
        peaks["all_processes"] = max(peaks["all_processes"], sum(sizes))
        time.sleep(0.5)


def measure_store(path: Path) -> dict:
    store = TokenStore.open(path)
    train = store.header.splits["train"]
    times = []
    for _ in range(20):
        started = time.perf_counter()
        TokenStore.open(path).split("train").client(0)
        times.append(time.perf_counter() - started)
    size = sum(file.stat().st_size for file in path.iterdir())
    sentences = sum(split.examples for split in store.header.splits.values())
    return {
        "clients": train.clients,
        "sentences": train.examples,
        "tokens": train.tokens,
        "bytes": size,
        "bytes_per_sentence": round(size / sentences, 1),
        "open_and_read_a_client_ms": round(1e3 * statistics.median(times), 1),
    }


def measure_cohorts(path: Path) -> dict:
    """Draw and batch cohorts in this process, from a store that the operating system has forgotten, then again."""
    _forget(path)
    started = time.perf_counter()
    split = TokenStore.open(path).split("train")
    data = StoredData(split, LENGTH)
    seconds = {"open_and_count_examples_cold": time.perf_counter() - started}
    sizes = [size for size in COHORTS if size <= split.num_clients]
    default = 500 if 500 in sizes else sizes[-1]
    seconds[f"{default}_clients_cold"], _ = _draw(data, default, 0)
    warm = {}
    for size in sizes:
        draws = [_draw(data, size, round_number) for round_number in range(10)]
        _draw_again = [_draw(data, size, round_number) for round_number in range(10)]
        warm[size] = {
            "first_seconds": statistics.median(taken for taken, _ in draws),
            "seconds": statistics.median(taken for taken, _ in _draw_again),
            "local_steps": statistics.mean(steps for _, steps in draws),
        }
    memory = _memory()
    return {
        **{name: round(value, 4) for name, value in seconds.items()},
        "warm": warm,
        "memory_mib_after_all": memory,
        "share_of_a_gpu_round": _share_of_round(warm[default]),
    }


def _draw(data: StoredData, size: int, round_number: int) -> tuple[float, int]:
    training = LocalTraining()
    started = time.perf_counter()
    clients = UniformSampler(len(data.num_examples), size, seed=1).sample(round_number)
    plan = RoundPlan(round_number, clients, seed=1, learning_rate=0.5)
    for _ in lane_chunks(data, plan, training, LaneShape(1, LANES, STEPS, LENGTH)):
        pass
    taken = time.perf_counter() - started
    return taken, int(training.count_steps(data.num_examples[clients]).sum())


def _share_of_round(drawn: dict) -> dict:
    weights = 4 * parameter_count(create_model("cifg_19m"))
    shares = {}
    for name, bandwidth in GPU_BANDWIDTH.items():
        least = drawn["local_steps"] * WEIGHT_PASSES * weights / bandwidth
        shares[name] = {"least_round_seconds": round(least, 2), "share": round(drawn["seconds"] / least, 4)}
    return shares


def _forget(path: Path) -> None:
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _memory() -> dict[str, int]:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: round(int(lines[name].split()[0]) / 1024) for name in ("RssAnon", "RssFile")}


def extrapolate(results: dict) -> dict:
    store, imported = results["store"], results["import"]
    factor = PUBLISHED_SENTENCES / store["sentences"]
    return {
        "import_hours": round(factor * imported["seconds"] / 3600, 2),
        "store_gigabytes": round(factor * store["bytes"] / 1e9, 2),
        "note": "in proportion to sentences; the time to draw a cohort depends on the cohort, not on the store",
    }


def plot(cohorts: dict) -> Figure:
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    sizes = list(cohorts["warm"])
    seconds = np.array([cohorts["warm"][size]["seconds"] for size in sizes])
    axes.loglog(sizes, 1e3 * seconds, "o-", label="drawn and batched from the store, warm")
    steps = np.array([cohorts["warm"][size]["local_steps"] for size in sizes])
    for name, bandwidth in GPU_BANDWIDTH.items():
        least = steps * WEIGHT_PASSES * 4 * parameter_count(create_model("cifg_19m")) / bandwidth
        axes.loglog(sizes, 1e3 * least, "--", label=f"least time to train cifg_19m, {name} (memory bandwidth)")
    axes.set_xlabel("clients in the cohort")
    axes.set_ylabel("milliseconds")
    axes.set_title("Preparing a cohort takes a few per cent of training it")
    figure.legend(loc="outside lower center", frameon=False)
    axes.grid(alpha=0.3)
    return figure


if __name__ == "__main__":
    main()
