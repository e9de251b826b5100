"""DPFormer's experiments on Amazon Games, with the controls that they lack: trainings, tables, verdicts, pictures.

    python -m benchmarks.recommendation --data ../shared/data/recommendation/Video.txt
    python -m benchmarks.recommendation report

The first trains what is left of the grid, rates first, one training a CPU core, and can be stopped at any time: what
has ended is in results/amazon_games.json, and a training that was stopped goes on from its last checkpoint. Both write
results/report.md.

Of the 31,013 users and 23,715 items of Amazon Games 13,403 and 1,442 are left, items with at least 40 interactions and
users with four of these, since scoring all items is most of a step; trainings have 30 epochs in place of 100, in
batches of 1,024, and of 128 without privacy, where there is no noise to spread and more steps are better. Batches and
learning rates were searched for in the paper; here three rates are tried, at one epsilon.
A private step of the tied Transformer takes 0.2 s of a core, so that the 125 trainings should take about two hours of
two cores.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.recommendation.claims import Evidence
from benchmarks.recommendation.grid import Point, Results, Scale, chosen_points, rate_points, scale_of
from benchmarks.recommendation.report import write_report
from benchmarks.recommendation.training import describe_data, prepare, run_points
from fedlm.fl_core.errors import DataError, UserError
from fedlm.simulations.experiments.cell_execution import CellExecutor, LocalProcesses

RESULTS = Path(__file__).parent / "results"
_TABLE = "amazon_games.json"


def main(words: Sequence[str] | None = None, scale: Scale | None = None, executor: CellExecutor | None = None) -> int:
    """Run the command; `scale` and `executor` are for tests."""
    arguments = _parse(words)
    try:
        results = _report_of(arguments) if arguments.step == "report" else _run(arguments, scale or Scale(), executor)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    print(write_report(Evidence(results, scale_of(results.about)), arguments.results))
    return 0


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", nargs="?", choices=("run", "report"), default="run")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("../shared/data/recommendation/Video.txt"),
        help="lines `user item`, in the order of time",
    )
    parser.add_argument("--work", type=Path, default=Path("runs/recommendation"), help="folder of stores and trainings")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the table, the report and its pictures"
    )
    parser.add_argument(
        "--workers",
        type=int,
        help="trainings at the same time, one core each; as many as there are cores where it is not given",
    )
    parser.add_argument(
        "--at-most", type=int, help="end after so many trainings of each kind: those of rates, and all others"
    )
    return parser.parse_args(words)


def _report_of(arguments: argparse.Namespace) -> Results:
    path = arguments.results / _TABLE
    if not path.exists():
        raise DataError(f"{path}: there is no such file; run python -m benchmarks.recommendation first")
    return Results(path, json.loads(path.read_text(encoding="utf-8"))["about"])


def _run(arguments: argparse.Namespace, scale: Scale, executor: CellExecutor | None) -> Results:
    # Trainings of one model share what is compiled.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str((arguments.work / "compiled").absolute()))
    store = prepare(arguments.data, arguments.work, scale)
    data = describe_data(store, scale)
    about = {"scale": scale_as_json(scale), "data": data, "machine": describe_machine()}
    results = Results(arguments.results / _TABLE, about)
    executor = executor or LocalProcesses(arguments.workers, cores=1)

    def run(points: list[Point]) -> None:
        left = [point for point in points if point not in results.cells]
        run_points(left[: arguments.at_most], results, scale, store, arguments.work, executor, print)

    run(rate_points(scale))
    run(chosen_points(results, scale))
    return results


def scale_as_json(scale: Scale) -> dict[str, Any]:
    """Make a scale's record."""
    fields = dataclasses.asdict(scale)
    return {name: list(one) if isinstance(one, tuple) else one for name, one in fields.items()}


if __name__ == "__main__":
    sys.exit(main())
