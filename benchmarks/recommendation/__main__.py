"""DPFormer's experiments on Amazon Games, with the controls that they lack: trainings, tables, verdicts, pictures.

    python -m benchmarks.recommendation --data ../shared/data/recommendation/Video.txt
    python -m benchmarks.recommendation report

The first trains what is left of the grid, rates first, one training a CPU core, and can be stopped at any time: what
has ended is in results/amazon_games.json, and a training that was stopped goes on from its last checkpoint. Both write
results/report.md.

Of the 31,013 users and 23,715 items of Amazon Games 13,403 and 1,442 are left, items with at least 40 interactions and
users with four of these, since scoring all items is most of a step; trainings have 30 epochs in place of 100. The
paper's dropout of 0.5 is kept without privacy alone: with it the tied Transformer came to an NDCG@10 of 2.31 % at
epsilon 8 (rate 0.01, 20 epochs, seed 0), little above popularity's 2.19 %, and without it to 3.25 %, at rate 0.03 to
3.41 %. Batches are of 1,024, where 4,096 gave less, and without privacy of 128, for there is no noise to spread. A
private training takes about a minute of a core and all 125 should take less than two hours of two cores.
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
