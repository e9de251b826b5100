"""What a user waits for before the first round, and what memory a run of many rounds keeps.

Each run is the command `fedlm simulate` in a process of its own. With kept programs its folder of compiled programs is
full, else it is empty. The first round ends when `metrics.jsonl` has its first row.

    python -m benchmarks.simulation.whole_runs

Run it when nothing else runs.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from matplotlib.figure import Figure

from benchmarks.machine import describe_machine
from benchmarks.simulation.against_peers import RESULTS, ROOT
from benchmarks.simulation.comparing import spread
from fedlm.fl_core.atomic_files import write_atomically

SECONDS_BETWEEN_LOOKS = 0.01
SECONDS_BETWEEN_SAMPLES = 0.5
COLOUR = "#0072b2"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "runs/stdlib", help="what `fedlm data import` wrote")
    parser.add_argument(
        "--models",
        nargs="+",
        default=["cifg_tiny", "si_cifg_tiny", "transformer_tiny", "si_transformer_tiny", "cifg_1m", "transformer_1m"],
    )
    parser.add_argument("--passes", type=int, default=5, help="how often each first round is timed")
    parser.add_argument("--rounds", type=int, default=10_000, help="of the run whose memory is watched")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    arguments = parser.parse_args()
    results = {
        "machine": describe_machine(),
        "setting": "`fedlm simulate` on the standard library's text, 20 clients in the first round, 1 in the many",
        "first_round": time_first_rounds(arguments.models, arguments.data, arguments.passes),
        "memory": watch_memory(arguments.data, arguments.rounds),
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.results / "whole_runs.json", json.dumps(results, indent=2) + "\n")
    plot(results["memory"]).savefig(arguments.results / "whole_runs.png", dpi=120)
    print(
        json.dumps({**results, "memory": {**results["memory"], "samples": len(results["memory"]["samples"])}}, indent=2)
    )


def time_first_rounds(models: list[str], data: Path, passes: int) -> dict[str, dict[str, list[float]]]:
    """Time the models in turn, each with an empty folder of programs and then with what it kept there.

    Returns:
      For each model the least, median and greatest seconds, `empty` and `kept`.
    """
    seconds: dict[str, dict[str, list[float]]] = {name: {"empty": [], "kept": []} for name in models}
    for _ in range(passes):
        for name in models:
            with tempfile.TemporaryDirectory() as programs:
                for folder, times in seconds[name].items():
                    times.append(time_first_round(name, data, Path(programs)))
                    print(f"{name}, {folder} folder of programs: {times[-1]:.2f} s", file=sys.stderr)
    return {
        name: {key: [round(s, 2) for s in spread(times)] for key, times in of.items()} for name, of in seconds.items()
    }


def time_first_round(model: str, data: Path, programs: Path) -> float:
    """Seconds from the start of a process to the first row of its metrics."""
    began = time.perf_counter()
    # Two rounds, so that the first ends without scores of held-out clients.
    options = ["--model", model, "--rounds", "2", "--evaluate-every", "2", "--cohort-size", "20"]
    with run(options, data, programs) as (process, folder):
        metrics = folder / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(SECONDS_BETWEEN_LOOKS)
        seconds = time.perf_counter() - began
        if process.wait():
            raise SystemExit(f"fedlm simulate --model {model} ended with status {process.returncode}")
    return seconds


def watch_memory(data: Path, rounds: int) -> dict:
    """Sample the resident memory of a run of many rounds of a tiny model.

    Returns:
      `samples`: pairs of a round's number and MiB. `growth_mib`: of the last tenth's mean over the second's.
    """
    few = max(1, rounds // 10)
    options = ["--model", "cifg_tiny", "--rounds", str(rounds), "--cohort-size", "1", "--checkpoint-every", str(few)]
    # A single client a round takes the default rates for steps that are too long.
    options += ["--server-learning-rate", "0.001"]
    samples = []
    with (
        tempfile.TemporaryDirectory() as programs,
        run([*options, "--evaluate-every", str(few)], data, Path(programs)) as (
            process,
            folder,
        ),
    ):
        metrics, watched = folder / "metrics.jsonl", psutil.Process(process.pid)
        rows, read = 0, 0
        while process.poll() is None:
            if metrics.exists():
                with metrics.open("rb") as file:
                    file.seek(read)
                    new = file.read()
                rows, read = rows + new.count(b"\n"), read + len(new)
                with contextlib.suppress(psutil.Error):
                    samples.append([rows, round(watched.memory_info().rss / 2**20, 1)])
            time.sleep(SECONDS_BETWEEN_SAMPLES)
        if process.returncode:
            raise SystemExit(f"fedlm simulate ended with status {process.returncode}")
    tenth = max(1, len(samples) // 10)
    early, late = ([mib for _, mib in part] for part in (samples[tenth : 2 * tenth] or samples, samples[-tenth:]))
    return {
        "rounds": rounds,
        "growth_mib": round(sum(late) / len(late) - sum(early) / len(early), 1),
        "samples": samples[:: max(1, len(samples) // 500)],
    }


@contextlib.contextmanager
def run(options: list[str], data: Path, programs: Path) -> Iterator[tuple[subprocess.Popen, Path]]:
    """Start `fedlm simulate` in an empty folder; it does not outlive the block."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        command = [sys.executable, "-m", "fedlm", "simulate", "--data", str(data), "--out", str(folder), *options]
        environment = {**os.environ, "XDG_CACHE_HOME": str(programs), "JAX_PLATFORMS": "cpu"}
        environment = {name: value for name, value in environment.items() if not name.startswith("JAX_COMPILATION")}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            yield process, folder
        finally:
            process.kill()
            process.wait()


def plot(memory: dict) -> Figure:
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*memory["samples"], strict=True), color=COLOUR)
    axes.set_ylim(0, None)
    axes.set_xlabel("round")
    axes.set_ylabel("resident memory, MiB")
    axes.set_title(
        f"fedlm simulate, cifg_tiny: {memory['growth_mib']:+.1f} MiB from the second tenth to the last", fontsize=10
    )
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
