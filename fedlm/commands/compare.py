"""`fedlm compare`: compare models over learning rates and seeds, and write a report."""

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedlm.command_line.cell_options import CellOptions
from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.command_line.progress import CellProgress
from fedlm.command_line.run_endings import NO_GOOD, exit_status
from fedlm.fl_core.number_ranges import Probability
from fedlm.fl_core.worker_processes import ending_by_sigterm
from fedlm.simulations.comparisons.benchmarks import benchmark_of, benchmark_presets, scaled
from fedlm.simulations.comparisons.cell_execution import run_cells
from fedlm.simulations.comparisons.cells import list_cells
from fedlm.simulations.comparisons.comparison import claim_folder, rounds_to_train, run_comparison
from fedlm.simulations.experiments.configuration import Comparison
from fedlm.simulations.experiments.presets import PRESETS
from fedlm.simulations.reporting.gaps import finding, gaps
from fedlm.simulations.reporting.privacy_summary import choice_warning
from fedlm.simulations.reporting.report import write_report
from fedlm.simulations.reporting.selection import model_results
from fedlm.simulations.reporting.tables import reason

if TYPE_CHECKING:
    from fedlm.fl_core.privacy.statement import Statement


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """Compare models over learning rates and seeds, and write a report.

    Each model is trained with every combination of learning rates and every seed. The combination with the lowest mean
    held-out loss is selected, and its scores on the test clients are the model's result. Writes report.html,
    results.csv and plots into its folder. If you stop the command, the same command goes on where it was.

    `--mechanisms` and `--epsilons` compare at equal privacy (`inf`: without noise). This needs `--update-clip-norm` and
    a `--cohort-sampler` that bounds participation. Each private run alone has the guarantee that its summary states.
    Choosing the best of several is not accounted, except with `--private-selection`.
    """

    comparison: Comparison
    execution: CellOptions
    out: Path
    """Folder of the comparison."""
    scale: Probability = 1.0
    """Take this part of the rounds and of the clients a round, to see a published setting with less compute. With
    privacy the noise on a mean stays as it is, and the runs are NOT PRIVATE."""


_ESSENTIALS = (
    *("out", "scale", "workers", "models", "data", "rounds", "seeds", "client_learning_rates", "server_learning_rates"),
    *("mechanisms", "epsilons", "private_selection", "cohort_size", "cohort_sampler", "length"),
    *("server_optimizer", "update_clip_norm", "privacy", "target_epsilon"),
)


def main(argv: list[str]) -> int:
    """Run `fedlm compare`."""
    command = read_options(
        CompareCommand,
        argv,
        "fedlm compare",
        presets=PRESETS | benchmark_presets(),
        default_preset="small",
        essentials=_ESSENTIALS,
    )
    benchmark_of(command.comparison)
    command = dataclasses.replace(command, comparison=scaled(command.comparison, command.scale))
    comparison = command.comparison
    line = shlex.join(["fedlm", "compare", *argv])
    if comparison.selection.private_selection != "none":
        return _select(command, line)
    if comparison.halvings:
        command.execution.refuse_apart("halvings")
    if command.execution.is_apart:
        return _run_apart(command, argv)
    with ending_by_sigterm(), CellProgress(rounds_to_train(comparison)) as progress:
        executor = command.execution.cell_executor()
        results = run_comparison(comparison, command.out, executor, progress.update)
    report = write_report(comparison, results, command.out, line)
    console = Console()
    for result in results:
        if why := reason(result):
            console.print(f"[red]{result.status}[/] {result.cell.directory}: {why}")
    models = model_results(results)
    for warning in choice_warning(models):
        console.print(f"[red]not accounted[/]: {warning}", soft_wrap=True, highlight=False)
    if found := finding(gaps(models)):
        console.print(found, soft_wrap=True, highlight=False)
    console.print(f"report: {report}", soft_wrap=True)
    statuses = [result.status for result in results]
    return 1 if "failed" in statuses else exit_status(*statuses)


def _run_apart(command: CompareCommand, argv: list[str]) -> int:
    """Write the job array of a comparison, or run the share of one of its tasks, without a report."""
    comparison, execution = command.comparison, command.execution
    claim_folder(comparison, command.out)
    cells = list_cells(comparison, command.out)
    if execution.share is None:
        return execution.write_script("compare", argv, command.out, len(cells))
    mine = execution.chosen(cells)
    with ending_by_sigterm(), CellProgress(len(mine) * comparison.rounds) as progress:
        failures = run_cells(mine, execution.cell_executor(), progress.update)
    return execution.finish_share(mine, failures)


def _select(command: CompareCommand, line: str) -> int:
    # The libraries of privacy take a while to load.
    from fedlm.simulations.comparisons.private_selection import CHOSEN, run_selection
    from fedlm.simulations.reporting.selection_page import write_selection_page

    console = Console()

    def announce(stated: "Statement") -> None:
        said = f"privacy of the run that will be chosen: {stated.sentence()}"
        console.print(said, soft_wrap=True, highlight=False, markup=False)
        console.print("training; the number of runs and their scores stay secret", soft_wrap=True)

    command.execution.refuse_apart("private_selection")
    with ending_by_sigterm():
        executor = command.execution.cell_executor()
        selection = run_selection(command.comparison, command.out, executor, announce)
    report = write_selection_page(command.comparison, selection, command.out, line)
    where = "none of the runs" if selection.chosen is None else str(command.out / CHOSEN)
    console.print(f"chosen: {where}", soft_wrap=True, highlight=False, markup=False)
    console.print(f"report: {report}", soft_wrap=True)
    return NO_GOOD if selection.chosen is None else 0


COMMAND = Command(CompareCommand, main)
