"""What each client algorithm costs: a round of the engine with each of them, and of a bare loop of SGD, timed in turn.

In each pass every algorithm runs one round from the same parameters, in one order and in the reverse order by turns;
ratios to SGD and to the bare loop are taken pass by pass.

    python -m benchmarks.simulation.client_algorithms

Run it when nothing else runs.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine, measured_before
from benchmarks.simulation.against_peers import COHORTS, CORES, RESULTS, make_task, setting
from benchmarks.simulation.comparing import Spread, pass_ratios, spread
from benchmarks.simulation.peers.bare_loop import BareLoop
from benchmarks.simulation.peers.fedlm_engine import Engine, Variant
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.client_algorithms.registry import CLIENT_ALGORITHMS, SGD, make_algorithm

BARE = "bare_lanes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=COHORTS, default=["cifg_1m", "transformer_1m"])
    parser.add_argument("--algorithms", nargs="+", choices=CLIENT_ALGORITHMS, default=list(CLIENT_ALGORITHMS))
    parser.add_argument("--passes", type=int, default=7, help="how often each algorithm is timed")
    parser.add_argument("--clients", type=int, help="in the cohort; the default depends on the model")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers go")
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", CORES)
    path = arguments.results / "client_algorithms.json"
    results: dict[str, Any] = {"machine": describe_machine(), "setting": setting()}
    results["models"] = measured_before(path, results, "models", {})
    for model in arguments.models:
        clients = arguments.clients or COHORTS[model].clients
        algorithms = dict.fromkeys([SGD, *arguments.algorithms])
        results["models"][model] = measure(model, clients, list(algorithms), arguments.passes)
        Console().print(table(model, results["models"][model]))
        arguments.results.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(results, indent=2) + "\n")


def measure(model: str, clients: int, algorithms: list[str], passes: int) -> dict[str, Any]:
    """Time rounds of each algorithm, SGD among them, and of the bare loop.

    Returns:
      Steps of a round and, by algorithm, the spread of steps a second and of their ratios to SGD's and the bare loop's.
    """
    task = make_task(model, clients)
    engine = Engine(task, {name: Variant(algorithm=make_algorithm(name)) for name in algorithms})
    bare = BareLoop(task)
    contestants = {name: engine for name in algorithms} | {BARE: bare}
    for name, contestant in contestants.items():
        contestant.run_round(name)
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(passes):
        for name in list(contestants)[:: -1 if number % 2 else 1]:
            answer = contestants[name].run_round(name)
            rates[name].append(answer.steps / answer.seconds)
    return {
        "clients": clients,
        "steps": task.steps,
        "passes": passes,
        "algorithms": {name: _described(name, rates) for name in contestants},
    }


def _described(name: str, rates: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "steps_per_second": _rounded(spread(rates[name])),
        "ratio_to_sgd": _rounded(pass_ratios(rates[name], rates[SGD])),
        "ratio_to_bare_loop": _rounded(pass_ratios(rates[name], rates[BARE])),
    }


def _rounded(found: Spread | None) -> list[float]:
    return [round(value, 3) for value in found or ()]


def table(model: str, measured: dict[str, Any]) -> Table:
    """Show medians, with least and greatest of all passes."""
    title = f"{model}, {measured['clients']} clients, {measured['steps']} local steps, {measured['passes']} passes"
    shown = Table("client algorithm", "steps a second", "to sgd", "to the bare loop", title=title)
    for name, numbers in measured["algorithms"].items():
        cells = [f"{middle:g} ({least:g} to {most:g})" for least, middle, most in numbers.values()]
        shown.add_row(name, *cells)
    return shown


if __name__ == "__main__":
    main()
