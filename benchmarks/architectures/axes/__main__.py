"""How the gap between scale-invariant models and their twins moves along each axis towards the published setting.

    python -m benchmarks.architectures.axes --axis cohort --dumps ../shared/data/stackexchange
    python -m benchmarks.architectures.axes estimate
    python -m benchmarks.architectures.axes report

The first trains what is left of the axes that are named, all where none is, one training a CPU core or accelerator, and
can be stopped at any time: what has ended is in results/axes.json, and a training that was stopped goes on from its
last checkpoint. It says what it will cost before it begins. At every point of an axis each model's client and server
rate are selected again on held-out loss with the first seed: after a third of the rounds one client rate goes on for
each server rate, and the best pair in the end is trained with the other seeds. The last writes results/axes.md and its
pictures, of whatever is there.

Texts are imported where that was not done: Stack Exchange dumps (`--dumps`), the standard library, and the made-up text
of known entropy.
"""

import argparse
import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.architectures.axes.costs import Costs, estimate
from benchmarks.architectures.axes.gaps import left_at
from benchmarks.architectures.axes.points import (
    AXES,
    BATCH_SIZE,
    DATA,
    EVALUATE_EVERY,
    LENGTH,
    SEEDS,
    Axis,
    Run,
    scored_rounds,
)
from benchmarks.architectures.axes.records import Records
from benchmarks.architectures.axes.report import write_report
from benchmarks.architectures.axes.selection import Task, next_tasks
from benchmarks.architectures.axes.training import (
    DONE,
    HELDOUT_EXAMPLES,
    TEST_EXAMPLES,
    Cell,
    describe_data,
    prepare_data,
)
from benchmarks.machine import describe_machine
from fedlm.fl_core.errors import UserError
from fedlm.simulations.experiments.cell_execution import CellExecutor, LocalProcesses, Row, run_cells
from fedlm.simulations.experiments.workers import default_workers

RESULTS = Path(__file__).parent.parent / "results"


class Study(NamedTuple):
    """What is trained and reported.

    Attributes:
      about: what the command says of itself.
      axes: by name, in the order in which they are trained.
      name: of the table, and of the folder of texts and trainings.
      write_report: writes the page and its pictures into a folder, of what is there; returns the page.
    """

    about: str
    axes: dict[str, Axis]
    name: str
    write_report: Callable[[Records, dict[str, Axis], Path], Path]

    def table(self, results: Path) -> Path:
        """Name the table's file."""
        return results / f"{self.name}.json"


STUDY = Study(__doc__ or "", AXES, "axes", write_report)


def main(words: Sequence[str] | None = None, study: Study = STUDY, executor: CellExecutor | None = None) -> int:
    """Run the command; `executor` is for tests."""
    arguments = _parse(words, study)
    try:
        if arguments.step == "report":
            print(study.write_report(Records(study.table(arguments.results)), study.axes, arguments.results))
        else:
            _run(arguments, study, executor)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parse(words: Sequence[str] | None, study: Study) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=study.about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", nargs="?", choices=("run", "estimate", "report"), default="run")
    parser.add_argument("--axis", nargs="+", choices=list(study.axes), help="what to train; all where none is given")
    models = dict.fromkeys(model for axis in study.axes.values() for model in axis.models)
    parser.add_argument("--models", nargs="+", choices=list(models), help="of the axes; all where none is given")
    parser.add_argument("--dumps", type=Path, default=Path("../shared/data/stackexchange"), help="Stack Exchange dumps")
    parser.add_argument("--work", type=Path, default=Path("runs") / study.name, help="folder of texts and trainings")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the table, the report and its pictures"
    )
    parser.add_argument(
        "--workers", type=int, help="trainings at the same time; one a core or accelerator if not given"
    )
    parser.add_argument("--at-most", type=int, help="end after so many trainings, or parts of trainings")
    return parser.parse_args(words)


def _run(arguments: argparse.Namespace, study: Study, executor: CellExecutor | None) -> None:
    # Trainings of one model share what is compiled.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str((arguments.work / "compiled").absolute()))
    chosen = {
        name: dataclasses.replace(
            axis, models=tuple(one for one in axis.models if one in (arguments.models or axis.models))
        )
        for name, axis in study.axes.items()
        if name in (arguments.axis or study.axes)
    }
    used = dict.fromkeys(point.setting.data for axis in chosen.values() for point in axis.points)
    stores = {name: prepare_data(name, arguments.work, arguments.dumps) for name in used}
    about = {
        "machine": describe_machine(),
        "protocol": protocol(),
        "data": {name: describe_data(store) for name, store in stores.items()},
    }
    records = Records(study.table(arguments.results), about)
    costs, workers = Costs(stores, records), arguments.workers or default_workers()
    for one in estimate(costs, records, chosen):
        print(one.line(workers), flush=True)
    if arguments.step == "estimate":
        return
    executor = executor or LocalProcesses(workers, cores=1)
    runner = Runner(records, stores, arguments.work, executor, print, study.axes)
    for name, axis in chosen.items():
        runner.run(name, axis, costs, workers, arguments.at_most)
    print(study.write_report(records, study.axes, arguments.results))


def protocol() -> dict[str, Any]:
    """Describe, JSON-able, what all trainings have in common; what was measured with another one is not comparable."""
    return {
        "length": LENGTH,
        "client_batch_size": BATCH_SIZE,
        "server_optimizer": "fedadam",
        "upload_bits": 8,
        "evaluate_every": EVALUATE_EVERY,
        "heldout_examples": HELDOUT_EXAMPLES,
        "test_examples": TEST_EXAMPLES,
        "seeds": list(SEEDS),
        "texts": {name: list(source) for name, source in DATA.items()},
    }


@dataclasses.dataclass
class Runner:
    """Trains what is left of axes, a wave of trainings after another: what comes next follows from what was found.

    Attributes:
      records: the table.
      stores: of texts by name.
      work: folder of trainings.
      executor: where they run.
      say: prints a line.
      every: all axes, of which others may go on with the same trainings.
      trained: parts of trainings that ended.
    """

    records: Records
    stores: dict[str, Path]
    work: Path
    executor: CellExecutor
    say: Callable[[str], None]
    every: dict[str, Axis]
    trained: int = 0

    def run(self, name: str, axis: Axis, costs: Costs, workers: int, at_most: int | None) -> None:
        """Train what is left of an axis point by point, so that the first are known first, or so many trainings."""
        failed: dict[Run, str] = {}
        for point in axis.points:
            here = dataclasses.replace(axis, points=(point,))
            while tasks := [task for task in next_tasks(self.records, here) if task[0] not in failed]:
                if at_most is not None:
                    tasks = tasks[: max(at_most - self.trained, 0)]
                    if not tasks:
                        return
                failed |= self._wave(name, axis, tasks, costs, workers)
                self._remove_checkpoints(axis)
        for run, why in failed.items():
            self.say(f"{run.name}: failed: {why}")

    def _remove_checkpoints(self, axis: Axis) -> None:
        """Remove the checkpoints of models and settings of which all has ended, on whatever axis."""
        for point in axis.points:
            same = [other for each in self.every.values() for other in each.points if other.setting == point.setting]
            for model in axis.models:
                if not any(left_at(self.records, other, model) for other in same):
                    for run in self.records.runs:
                        if (run.setting, run.model) == (point.setting, model):
                            shutil.rmtree(self.work / "cells" / run.name / "run", ignore_errors=True)

    def _wave(self, name: str, axis: Axis, tasks: list[Task], costs: Costs, workers: int) -> dict[Run, str]:
        began, left, seconds = time.monotonic(), costs.axis(self.records, axis), 0.0
        cells = [
            Cell(
                run,
                rounds,
                self.stores[run.setting.data],
                self.work / "cells" / run.name,
                scored_rounds(self.every, run.setting),
            )
            for run, rounds in tasks
        ]
        expected = {cell: costs.task(task, self.records) for cell, task in zip(cells, tasks, strict=True)}
        self.say(f"{name}: {len(cells)} trainings, or parts, in this wave")
        for cell in cells:
            if cell.is_finished():
                self.records.add(cell.trained, cell.result())

        def observe(cell: Cell, row: Row) -> None:
            nonlocal seconds
            if not row.get(DONE):
                return
            self.records.add(cell.trained, cell.result())
            self.trained += 1
            seconds += expected[cell]
            # How much longer than expected trainings take here.
            factor = (time.monotonic() - began) * workers / seconds
            loss = self.records.heldout_loss(cell.trained, cell.rounds)
            self.say(
                f"{name} {cell.trained.name}, {cell.rounds} rounds: held-out loss {loss:.4f}; "
                f"{factor * max(left - seconds, 0) / workers / 3600:.1f} hours left"
            )

        failures = run_cells(cells, self.executor, observe)
        return {cell.trained: why for cell, why in failures.items()}


if __name__ == "__main__":
    sys.exit(main())
