"""Rounds over several hosts: network namespaces of this machine, one process in each, and links of several speeds.

All processes train one cohort and exchange its sums; the bytes are those that the namespaces' interfaces counted. In
turn with it, each trains its share alone, so that the ratio says what being many costs. Where processes share a core,
training takes as many times as long; `efficiency` takes that out of the time of training, and what cannot be taken out
of the exchange stays in it. From the points of two processes, and those of a tiny model, the constants of
`hosts_prediction` are fitted; the other points say how good its predictions are.

    python -m benchmarks.simulation.hosts

It wants root and iproute2. Points that are not measured keep the numbers of an earlier run on the same machine, and
with `--points` alone only the predictions and the plot are made anew. Run it when nothing else runs.
"""

import argparse
import dataclasses
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import jax

from benchmarks.machine import describe_machine, measured_before
from benchmarks.simulation.against_peers import RESULTS, ROOT, make_task
from benchmarks.simulation.contestants import Contestant
from benchmarks.simulation.hosts_prediction import sent_bytes
from benchmarks.simulation.hosts_report import plot, predict, table
from benchmarks.simulation.namespaces import CONGESTION_CONTROL, Link, NamespaceError, Network, why_impossible
from benchmarks.simulation.peers.task import save_task
from fedlm.fl_core.atomic_files import write_atomically

LOGS = ROOT / "runs/benchmark/hosts"
CORES = len(os.sched_getaffinity(0))
PORT = 12355
LINKS = (
    Link("unshaped"),
    Link("1 Gbit/s, 0.2 ms", 1000, 0.2),
    Link("100 Mbit/s, 1 ms", 100, 1),
    Link("1 Gbit/s, 20 ms", 1000, 20),
)
CLIENTS = {"cifg_tiny": 2, "cifg_1m": 10, "cifg_9m": 3}
"""Clients of a cohort for each process."""
POINTS = (
    "cifg_tiny:2",
    "cifg_tiny:4",
    "cifg_tiny:8",
    "cifg_1m:2",
    "cifg_1m:4",
    "cifg_9m:2",
    "cifg_9m:4",
    "cifg_1m:2:2",
)
"""MODEL:PROCESSES or MODEL:PROCESSES:DEVICES of a process."""
PRIVATE_LINKS = (LINKS[1].name, LINKS[3].name)
ALONE, END = ("", "alone"), ("", "end")
VECTORS = {"together": 1, "private": 2}
"""Of 4 bytes a parameter, that the processes of a variant add up."""
Answers = list[dict[str, Any]]


def main() -> None:
    arguments = parse_arguments()
    reason = why_impossible()
    if reason is not None:
        raise SystemExit(f"hosts: {reason}")
    # Being told to end is no reason to leave namespaces behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        measure_and_write(arguments)
    except NamespaceError as error:
        raise SystemExit(f"hosts: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--points", nargs="*", default=list(POINTS), help="MODEL:PROCESSES[:DEVICES], of " + str(POINTS)
    )
    parser.add_argument("--passes", type=int, default=5, help="how often each point is timed")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that an answer may take")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    return parser.parse_args()


def measure_and_write(arguments: argparse.Namespace) -> None:
    path = arguments.results / "hosts.json"
    results = {"machine": describe_machine(), "setting": setting()}
    for part in ("links", "points"):
        results[part] = measured_before(path, results, part, {})
    if arguments.points and not results["links"]:
        results["links"] = {link.name: check_link(link) for link in LINKS}
    arguments.results.mkdir(parents=True, exist_ok=True)
    for name in arguments.points:
        results["points"][name] = measure(name, arguments)
        write_atomically(path, json.dumps(results, indent=2) + "\n")
    results["predictions"] = predict(results["points"], LINKS, CORES)
    write_atomically(path, json.dumps(results, indent=2) + "\n")
    picture = arguments.results / "hosts.png"
    plot(results, LINKS).savefig(picture.with_suffix(".partial.png"), dpi=120)
    picture.with_suffix(".partial.png").replace(picture)
    print(table(results))


def setting() -> str:
    return (
        f"clients a process {CLIENTS}, each of lognormal size, as in against_peers; one core a process, shared where "
        f"there are more processes than cores; namespaces with veth pairs, rates by tbf, delays by delaying_switch, "
        f"TCP {CONGESTION_CONTROL}"
    )


def check_link(link: Link) -> dict[str, float]:
    """Measure what a link gives to a plain TCP connection."""
    with Network(2, link) as network:
        words = [sys.executable, "-m", "benchmarks.simulation.link_check"]
        server = [*network.command(0), *words, "serve", network.address(0)]
        with subprocess.Popen(server, stdout=subprocess.PIPE, cwd=ROOT) as serving:
            assert serving.stdout is not None
            serving.stdout.readline()
            client = [*network.command(1), *words, "ask", network.address(0), "2"]
            found = subprocess.run(client, stdout=subprocess.PIPE, cwd=ROOT, check=True)
    return json.loads(found.stdout)


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time rounds of one model over some processes, on all links in turn."""
    model, processes, devices = parse_point(name)
    task = make_task(model, CLIENTS[model] * processes)
    task = task._replace(settings=dataclasses.replace(task.settings, cores=devices))
    answers: dict[tuple[str, str], list[Answers]] = defaultdict(list)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        save_task(folder / "task.npz", task)
        # The network ends before the threads, which wait for the processes in it.
        pool = stack.enter_context(ThreadPoolExecutor(processes))
        network = stack.enter_context(Network(processes, LINKS[0]))
        start = starter(name, network, folder, arguments.timeout)
        hosts = [stack.enter_context(closing(host)) for host in pool.map(start, range(processes))]

        def run(variant: str) -> Answers:
            return list(pool.map(lambda host: host.run_round(variant), hosts))

        for variant in hosts[0].ready["variants"] * 2:
            run(variant)
        for number in range(arguments.passes):
            for link in LINKS[:: -1 if number % 2 else 1]:
                network.change(link)
                for variant in variants_of(link):
                    answers[link.name, variant].append(run(variant))
            answers[ALONE].append(run("alone"))
        # What a round sent is known when the next one begins.
        answers[END].append(run("alone"))
    parameters = sum(leaf.size for leaf in jax.tree_util.tree_leaves(task.params))
    count_bytes(answers)
    return {
        "model": model,
        "processes": processes,
        "devices": devices,
        "parameters": parameters,
        "alone": summarise(answers[ALONE], 0),
        "links": {
            link.name: {
                variant: summarise(answers[link.name, variant], VECTORS[variant] * 4 * parameters)
                for variant in variants_of(link)
            }
            | {"efficiency": efficiency(answers[ALONE], answers[link.name, "together"], processes / CORES)}
            for link in LINKS
        },
    }


def variants_of(link: Link) -> tuple[str, ...]:
    return ("together", "private") if link.name in PRIVATE_LINKS else ("together",)


def parse_point(name: str) -> tuple[str, int, int]:
    """Read MODEL:PROCESSES[:DEVICES]; ends the command where it is something else."""
    model, *numbers = name.split(":")
    if model not in CLIENTS or len(numbers) not in (1, 2) or not all(number.isdecimal() for number in numbers):
        raise SystemExit(
            f"hosts: --points has {name!r}, but must be MODEL:PROCESSES or MODEL:PROCESSES:DEVICES, of the models "
            f"{', '.join(CLIENTS)}"
        )
    processes, devices = int(numbers[0]), int(numbers[1]) if len(numbers) == 2 else 1
    if not 2 <= processes <= 16 or not 1 <= devices <= 16:
        raise SystemExit(f"hosts: --points has {name!r}, but must have 2 to 16 processes and 1 to 16 devices")
    return model, processes, devices


def starter(name: str, network: Network, folder: Path, timeout: float) -> Callable[[int], Contestant]:
    """Give what starts the process of a host, on a core of its own as far as there are enough."""
    _, processes, _ = parse_point(name)
    LOGS.mkdir(parents=True, exist_ok=True)
    module = [sys.executable, "-m", "benchmarks.simulation.hosts_process"]
    cores = sorted(os.sched_getaffinity(0))

    def start(host: int) -> Contestant:
        pinned = ["taskset", "--cpu-list", str(cores[host % len(cores)])]
        group = [f"{network.address(0)}:{PORT}", str(processes), str(host)]
        command = [*network.command(host), *pinned, *module, str(folder / "task.npz"), *group]
        log = LOGS / f"{name.replace(':', '-')}-{host}.log"
        return Contestant(command, log, timeout, {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"})

    return start


def count_bytes(answers: dict[tuple[str, str], list[Answers]]) -> None:
    """Turn counters at the beginning of each round into the bytes of the round."""
    rounds = sorted((of_round for several in answers.values() for of_round in several), key=lambda one: one[0]["begun"])
    for this, following in itertools.pairwise(rounds):
        for before, after in zip(this, following, strict=True):
            before |= {f"{what}_bytes": after[what] - before[what] for what in ("sent", "received", "within")}


def summarise(rounds: list[Answers], vector_bytes: int) -> dict[str, Any]:
    """Sum up the rounds of a variant on a link: medians over rounds.

    Args:
      rounds: answers of all processes, each with its bytes.
      vector_bytes: of the sum that is exchanged.
    """
    last = [max(answer["arrived"] for answer in one) for one in rounds]
    trained = [[answer["arrived"] - answer["begun"] for answer in one] for one in rounds]
    whole = [max(answer["seconds"] for answer in one) for one in rounds]
    waited = [
        statistics.mean((answer["ended"] - answer["arrived"]) / answer["seconds"] for answer in one) for one in rounds
    ]
    processes = len(rounds[0])
    return {
        "steps": [answer["steps"] for answer in rounds[0]],
        "seconds": [round(value, 4) for value in whole],
        "training_seconds": round(statistics.median(map(max, trained)), 4),
        "training_cpu_seconds": round(
            statistics.median(max(answer["training_cpu_seconds"] for answer in one) for one in rounds), 4
        ),
        "slowest_over_mean": round(statistics.median(max(one) / statistics.mean(one) for one in trained), 3),
        "exchange_seconds": [
            round(max(answer["ended"] for answer in one) - moment, 4) for one, moment in zip(rounds, last, strict=True)
        ],
        "exchange_cpu_seconds": round(
            statistics.median(max(answer["exchange_cpu_seconds"] for answer in one) for one in rounds), 4
        ),
        "waiting_share": round(statistics.median(waited), 4),
        **{
            f"{what}_megabytes": [
                round(1e-6 * statistics.median(one[host][f"{what}_bytes"] for one in rounds), 3)
                for host in range(processes)
            ]
            for what in ("sent", "received", "within")
        },
        "expected_megabytes": round(1e-6 * sent_bytes(processes, vector_bytes), 3),
        "same_parameters": all(len({answer["checksum"] for answer in one}) == 1 for one in rounds),
    }


def efficiency(alone: list[Answers], together: list[Answers], share: float) -> float:
    """Compare what processes take for their shares alone with the round of all: 1 where being many costs nothing.

    Time of training is divided by the processes for each core, so that it is as if each had one; the median of passes.

    Args:
      alone: answers of all processes, a pass each.
      together: the same of rounds of all.
      share: processes for each core; below 1 counts as 1.
    """
    ratios = []
    for by_themselves, of_all in zip(alone, together, strict=True):
        needed = statistics.mean(answer["arrived"] - answer["begun"] for answer in by_themselves)
        trained = max(answer["arrived"] - answer["begun"] for answer in of_all)
        rest = max(answer["seconds"] for answer in of_all) - trained
        ratios.append((needed / max(1.0, share)) / (trained / max(1.0, share) + rest))
    return round(statistics.median(ratios), 4)


if __name__ == "__main__":
    main()
