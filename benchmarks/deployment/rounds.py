"""A round of a deployment on loopback, against a plain copy of the same bytes over sockets.

Clients train nothing: they download the model and upload random, valid updates, from another process than the server.
fedlm's server checks, dequantizes, clips and adds them meanwhile; the copy looks at no byte. A round is over when all
clients are answered. The two run in turn, and ratios are of rounds in one pass. Memory is the server's resident set at
its peak, less what it was before the model was made.

    python -m benchmarks.deployment.rounds
    python -m benchmarks.deployment.rounds --tls

With TLS both speak it, each client with a certificate of its own. Run it when nothing else runs.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import psutil
from matplotlib.figure import Figure

from benchmarks.deployment import load, servers
from benchmarks.deployment.processes import Worker
from benchmarks.deployment.shapes import SHAPES, Shape, random_upload, sizes_of
from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.deployment.security.keys import Authority

RESULTS = Path(__file__).parent / "results"
COLOURS = {"fedlm": "#0072b2", "raw": "#999999"}
NAMES = {"fedlm": "fedlm", "raw": "plain copy over sockets"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=[shape.name for shape in SHAPES], help="all where not given")
    parser.add_argument("--passes", type=int, default=5, help="how often each is timed")
    parser.add_argument("--tls", action="store_true", help="both over mutual TLS")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    arguments = parser.parse_args()
    shapes = [shape for shape in SHAPES if arguments.shapes is None or shape.name in arguments.shapes]
    results: dict[str, Any] = {"machine": describe_machine(), "tls": arguments.tls, "rounds": []}
    name = "rounds_tls" if arguments.tls else "rounds"
    arguments.results.mkdir(parents=True, exist_ok=True)
    for shape in shapes:
        results["rounds"].append(measure(shape, arguments.passes, arguments.tls))
        write_atomically(arguments.results / f"{name}.json", json.dumps(results, indent=2) + "\n")
        print(json.dumps(results["rounds"][-1], indent=2), flush=True)
    plot(results).savefig(arguments.results / f"{name}.png", dpi=120)


def measure(shape: Shape, passes: int, tls: bool = False) -> dict[str, Any]:
    """Time rounds of a shape, in one order and in the reverse order by turns.

    Args:
      shape: of the rounds.
      passes: how many of each are timed; one more comes before.
      tls: whether both speak TLS, with a certificate for each client.

    Returns:
      A tree for JSON.
    """
    (down, up), upload = sizes_of(shape), random_upload(shape)
    with contextlib.ExitStack() as stack:
        keys = make_keys(Path(stack.enter_context(tempfile.TemporaryDirectory())), shape) if tls else None
        running = {
            "fedlm": _start(stack, (servers.fedlm, shape, 0.2, keys), (load.rounds, shape, upload, keys)),
            "raw": _start(stack, (servers.raw, down, up, keys), (load.raw_rounds, shape, down, up, keys)),
        }
        found: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "cpu_seconds": []} for name in running}
        for number in range(-1, passes):
            for name in list(running)[:: -1 if number % 2 else 1]:
                seconds, cpu_seconds = _time_round(*running[name])
                if number >= 0:
                    found[name]["seconds"].append(seconds)
                    found[name]["cpu_seconds"].append(cpu_seconds)
        memory = {name: server.peak_memory() - server.first["memory"] for name, (server, _) in running.items()}
    return {
        **shape._asdict(),
        "bytes_down": shape.selected * down,
        "bytes_up": shape.selected * up,
        "contestants": {name: _summary(found[name], memory[name], shape) for name in found},
        "over_raw": _ratios(found["fedlm"]["seconds"], found["raw"]["seconds"]),
    }


def make_keys(folder: Path, shape: Shape) -> Path:
    authority = Authority.create(folder / "keys")
    authority.make_server([servers.LOOPBACK])
    for number in range(shape.selected):
        authority.make_client(f"client{number}")
    return folder / "keys"


def _start(stack: contextlib.ExitStack, server: tuple, clients: tuple) -> tuple[Worker, Worker]:
    serving = stack.enter_context(contextlib.closing(Worker(*server)))
    function, *arguments = clients
    loading = Worker(function, serving.first["port"], *arguments)
    return serving, stack.enter_context(contextlib.closing(loading))


def _time_round(server: Worker, clients: Worker) -> tuple[float, float]:
    before = server.cpu_seconds()
    seconds = clients.ask("round")["seconds"]
    _settle(server)
    return seconds, server.cpu_seconds() - before


def _settle(server: Worker, seconds: float = 0.3) -> None:
    """Wait until a server does nothing more, as when it makes the next model ready."""
    process = psutil.Process(server.pid)
    process.cpu_percent()
    for _ in range(100):
        if process.cpu_percent(seconds) < 20:
            return


def _summary(found: dict[str, list[float]], memory: int, shape: Shape) -> dict[str, Any]:
    return {
        "seconds": [round(value, 4) for value in found["seconds"]],
        "median_seconds": round(statistics.median(found["seconds"]), 4),
        "server_cpu_seconds": round(statistics.median(found["cpu_seconds"]), 3),
        "peak_memory_mib": round(memory / 2**20, 1),
        "peak_memory_over_parameters": round(memory / (4 * shape.parameters), 2),
    }


def _ratios(ours: list[float], theirs: list[float]) -> dict[str, float]:
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return {
        "least": round(ratios[0], 3),
        "median": round(statistics.median(ratios), 3),
        "greatest": round(ratios[-1], 3),
    }


def plot(results: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[2, 1])
    rounds = results["rounds"]
    for place, name in enumerate(COLOURS):
        medians = [one["contestants"][name]["median_seconds"] for one in rounds]
        bars = left.bar(
            [number + 0.36 * (place - 0.5) for number in range(len(rounds))], medians, 0.34, color=COLOURS[name]
        )
        left.bar_label(bars, fmt="%.2g", fontsize=7)
        bars.set_label(NAMES[name])
    left.set_xticks(
        range(len(rounds)), [f"{one['name']}\n{one['selected']} of {one['goal']}" for one in rounds], fontsize=8
    )
    left.set_yscale("log")
    left.set_ylim(top=5 * left.get_ylim()[1])
    left.set_ylabel("seconds a round")
    left.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    large = [one for one in rounds if 4 * one["parameters"] > 2**20]
    memory = [one["contestants"]["fedlm"]["peak_memory_over_parameters"] for one in large]
    right.bar_label(right.bar(range(len(large)), memory, 0.6, color=COLOURS["fedlm"]), fmt="%.1f", fontsize=8)
    right.axhline(8, color="#999999", linewidth=1)
    right.set_xticks(range(len(large)), [one["name"].replace(", ", "\n") for one in large], fontsize=8)
    right.set_ylabel("server's peak memory,\nin models of float32")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    with_tls = " with TLS" if results["tls"] else ""
    figure.suptitle(f"A round on loopback{with_tls}: clients that download, and uploads waited for", fontsize=11)
    return figure


if __name__ == "__main__":
    main()
