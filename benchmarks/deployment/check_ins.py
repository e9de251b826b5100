"""Check-ins of a deployment's clients on loopback: how many a second, and how long one takes beside a round.

The server has one core to itself where there are two; load comes from other processes. Measured are: as many check-ins
as go over some connections; 5,000 clients with a connection each, which check in now and then; and check-ins while
clients of a round download and upload as fast as they can, which share the machine with them.

    python -m benchmarks.deployment.check_ins

Run it when nothing else runs.
"""

import argparse
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.deployment import load, servers
from benchmarks.deployment.processes import Worker
from benchmarks.deployment.shapes import SHAPES, Shape, random_upload
from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically

RESULTS = Path(__file__).parent / "results"
QUIET = Shape("a round that waits", 1_000, 1, 1)
_COLOURS = {"as_many_as_go": "#0072b2", "idle_clients": "#009e73", "during_a_round": "#d55e00"}
_COME_BACK = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each is measured")
    parser.add_argument("--connections", type=int, default=64, help="of as many check-ins as go")
    parser.add_argument("--clients", type=int, default=5000, help="that check in now and then")
    parser.add_argument("--rate", type=float, default=500.0, help="at which they do, all together, a second")
    parser.add_argument("--shape", default="20 MB + 5 MB", choices=[shape.name for shape in SHAPES])
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    arguments = parser.parse_args()
    (shape,) = (shape for shape in SHAPES if shape.name == arguments.shape)
    found = {
        "as_many_as_go": measure_rate(arguments.seconds, arguments.connections, arguments.clients),
        "idle_clients": measure_idle(arguments.seconds, arguments.clients, arguments.rate),
        "during_a_round": measure_during_round(shape, arguments.rate / 5),
    }
    distributions = {name: one.pop("distribution") for name, one in found.items()}
    results = {"machine": describe_machine(), **found}
    arguments.results.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.results / "check_ins.json", json.dumps(results, indent=2) + "\n")
    plot(distributions).savefig(arguments.results / "check_ins.png", dpi=120)
    print(json.dumps(results, indent=2))


def measure_rate(seconds: float, connections: int, identities: int) -> dict[str, Any]:
    """Check in as often as it goes, with a call under way on each connection."""
    with _server(QUIET) as server, _probe(server, connections, identities) as probe:
        probe.ask(min(seconds, 2.0), None)
        before = server.cpu_seconds()
        answer = probe.ask(seconds, None)
        busy = (server.cpu_seconds() - before) / answer["seconds"]
        return _summary(answer) | {"connections": connections, "identities": identities, "server_cores": round(busy, 3)}


def measure_idle(seconds: float, clients: int, rate: float) -> dict[str, Any]:
    """Let clients, each with a connection, check in at a rate."""
    with _server(QUIET) as server:
        without = server.memory()
        with _probe(server, clients, clients) as probe:
            before = server.cpu_seconds()
            answer = probe.ask(seconds, rate)
            busy = (server.cpu_seconds() - before) / answer["seconds"]
            memory = (server.memory() - without) / clients / 1024
        return _summary(answer) | {
            "clients": clients,
            "asked_rate": rate,
            "server_cores": round(busy, 3),
            "kib_a_client": round(memory, 1),
        }


def measure_during_round(shape: Shape, rate: float) -> dict[str, Any]:
    """Check in at a rate while a round is collected, once its clients are selected."""
    upload = random_upload(shape)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_server(shape, pinned=False))
        clients = stack.enter_context(contextlib.closing(Worker(load.rounds, server.first["port"], shape, upload)))
        probe = stack.enter_context(_probe(server, 20, 200))
        alone = clients.ask("round")["seconds"]
        time.sleep(1.0)
        clients.send("round")
        time.sleep(0.2 * alone)
        answer = probe.ask(0.5 * alone, rate)
        beside = clients.wait()["seconds"]
    return _summary(answer) | {
        "round": shape.name,
        "asked_rate": rate,
        "round_seconds_without": round(alone, 3),
        "round_seconds": round(beside, 3),
    }


@contextlib.contextmanager
def _server(shape: Shape, pinned: bool = True) -> Any:
    cores = sorted(os.sched_getaffinity(0))
    own = cores[:1] if pinned and len(cores) > 1 else None
    come_back = _COME_BACK if shape is QUIET else 0.2
    with contextlib.closing(Worker(servers.fedlm, shape, come_back, cores=own)) as server:
        yield server


@contextlib.contextmanager
def _probe(server: Worker, connections: int, identities: int) -> Any:
    cores = sorted(os.sched_getaffinity(0))
    others = cores[1:] or None
    worker = Worker(load.check_ins, server.first["port"], connections, identities, cores=others)
    with contextlib.closing(worker) as probe:
        yield probe


def _summary(answer: dict[str, Any]) -> dict[str, Any]:
    milliseconds = 1e3 * np.array(answer["latencies"])
    names, parts = ("p50_ms", "p99_ms", "greatest_ms"), np.percentile(milliseconds, [50, 99, 100])
    return {
        "check_ins": len(milliseconds),
        "check_ins_a_second": round(len(milliseconds) / answer["seconds"], 1),
        **{name: round(float(value), 3) for name, value in zip(names, parts, strict=True)},
        "distribution": np.percentile(milliseconds, np.arange(0, 100.1, 0.5)).tolist(),
    }


def plot(distributions: dict[str, list[float]]) -> Figure:
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, values in distributions.items():
        label = name.replace("_", " ")
        axes.plot(values, np.linspace(0, 100, len(values)), label=label, color=_COLOURS[name])
    axes.axhline(99, color="#999999", linewidth=1)
    axes.axvline(50, color="#999999", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds to answer a check-in")
    axes.set_ylabel("percent of check-ins")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
