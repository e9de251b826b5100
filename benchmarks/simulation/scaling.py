"""How the engine's speed grows with CPU devices, and a round's time with the amount of work.

Each point is a process of its own; they run in turn. A device's products may use every core that they are given, so one
device is also timed on one core. Where there are more devices than cores, devices share them.

    python -m benchmarks.simulation.scaling

Run it when nothing else runs.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.machine import describe_machine
from benchmarks.simulation.against_peers import CORES, LOGS, RESULTS, ROOT, make_task
from benchmarks.simulation.comparing import spread
from benchmarks.simulation.contestants import Contestant
from benchmarks.simulation.peers.task import save_task
from fedlm.fl_core.atomic_files import write_atomically

ENGINE = "benchmarks.simulation.peers.fedlm_engine"
ON_ONE_CORE = ("taskset", "--cpu-list", "0")
COLOUR = "#0072b2"


class Point(NamedTuple):
    """What one process is asked to run."""

    name: str
    clients: int
    devices: int
    pinned: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cifg_1m")
    parser.add_argument("--passes", type=int, default=7, help="how often each point is timed")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 25, 50, 100, 200])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--timeout", type=float, default=300, help="seconds that an answer may take")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    arguments = parser.parse_args()
    middle = sorted(arguments.clients)[len(arguments.clients) // 2]
    by_devices = [Point("1 device, 1 core", middle, 1, pinned=True)]
    by_devices += [Point(f"{n} device{'s' * (n > 1)}, {CORES} cores", middle, n) for n in arguments.devices]
    by_clients = [Point(str(clients), clients, CORES) for clients in arguments.clients]
    results = {
        "machine": describe_machine(),
        "model": arguments.model,
        "devices": time_in_turn(by_devices, arguments),
        "clients": time_in_turn(by_clients, arguments),
    }
    results["line"] = fit_line(results["clients"])
    arguments.results.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.results / "scaling.json", json.dumps(results, indent=2) + "\n")
    plot(results).savefig(arguments.results / "scaling.png", dpi=120)
    print(json.dumps(results, indent=2))


def time_in_turn(points: list[Point], arguments: argparse.Namespace) -> list[dict]:
    """Time a round for each point, in one order and in the reverse order by turns."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        engines = [stack.enter_context(closing(launch(point, Path(folder), arguments))) for point in points]
        for engine in engines:
            engine.run_round("engine")
        answers: list[list[dict]] = [[] for _ in points]
        for number in range(arguments.passes):
            for index in list(range(len(points)))[:: -1 if number % 2 else 1]:
                answers[index].append(engines[index].run_round("engine"))
    return [summarise(point, of_point) for point, of_point in zip(points, answers, strict=True)]


def launch(point: Point, folder: Path, arguments: argparse.Namespace) -> Contestant:
    name = f"scaling-{point.clients}-{point.devices}{'-pinned' * point.pinned}"
    task = make_task(arguments.model, point.clients)
    path = folder / f"{name}.npz"
    save_task(path, task._replace(settings=dataclasses.replace(task.settings, cores=point.devices)))
    LOGS.mkdir(parents=True, exist_ok=True)
    command = [*(ON_ONE_CORE if point.pinned else ()), sys.executable, "-m", ENGINE, str(path)]
    return Contestant(
        command, LOGS / f"{name}.log", arguments.timeout, {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    )


def summarise(point: Point, answers: list[dict]) -> dict[str, Any]:
    seconds = [answer["seconds"] for answer in answers]
    steps = answers[0]["steps"]
    return {
        **point._asdict(),
        "steps": steps,
        "spread_of_seconds": [round(value, 4) for value in spread(seconds)],
        "steps_per_second": round(steps / statistics.median(seconds), 2),
    }


def fit_line(points: list[dict]) -> dict[str, float]:
    """Fit seconds = fixed + slope x steps to the medians, and say how far off the worst point is.

    Args:
      points: of `summarise`.

    Returns:
      The line, and the greatest distance of a median from it as a part of that median.
    """
    steps = np.array([point["steps"] for point in points], float)
    seconds = np.array([point["spread_of_seconds"][1] for point in points])
    # Each point counts by its relative error, so that the shortest rounds are not drowned by the longest.
    slope, fixed = np.polyfit(steps, seconds, 1, w=1 / seconds)
    off = np.abs(fixed + slope * steps - seconds) / seconds
    return {
        "fixed_seconds": round(float(fixed), 5),
        "seconds_per_step": round(float(slope), 6),
        "greatest_deviation": round(float(off.max()), 4),
    }


def plot(results: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_devices(left, results["devices"])
    _draw_clients(right, results["clients"], results["line"])
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"fedlm's engine, {results['model']}", fontsize=11)
    return figure


def _draw_devices(axes: Axes, points: list[dict]) -> None:
    bars = axes.bar(range(len(points)), [point["steps_per_second"] for point in points], color=COLOUR)
    axes.bar_label(bars, fmt="%.0f")
    axes.set_xticks(range(len(points)), [point["name"].replace(", ", "\n") for point in points])
    axes.set_ylabel("local SGD steps per second")
    axes.set_title("JAX CPU devices", fontsize=10)


def _draw_clients(axes: Axes, points: list[dict], line: dict[str, float]) -> None:
    steps = np.array([point["steps"] for point in points])
    low, median, high = np.array([point["spread_of_seconds"] for point in points]).T
    axes.errorbar(steps, median, [median - low, high - median], fmt="o", color=COLOUR, capsize=3)
    ends = np.array([0, steps.max()])
    axes.plot(ends, line["fixed_seconds"] + line["seconds_per_step"] * ends, color="#999999", zorder=0)
    for point, x, y in zip(points, steps, median, strict=True):
        axes.annotate(f"{point['clients']} clients", (x, y), (6, -10), textcoords="offset points", fontsize=8)
    axes.set_xlim(0, 1.2 * steps.max())
    axes.set_ylim(0, None)
    axes.set_xlabel("local SGD steps in the round")
    axes.set_ylabel("seconds (median, least, greatest)")
    each, off = 1e3 * line["seconds_per_step"], 100 * line["greatest_deviation"]
    axes.set_title(f"{each:.1f} ms a step; no median is more than {off:.0f} % off the line", fontsize=10)


if __name__ == "__main__":
    main()
