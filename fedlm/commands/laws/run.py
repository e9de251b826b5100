"""`fedlm laws run`: train a grid, and measure the loss of each of its cells."""

import math
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from fedlm.command_line.cell_options import CellOptions
from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.command_line.progress import EvaluationProgress
from fedlm.command_line.run_endings import NO_GOOD
from fedlm.fl_core.worker_processes import ending_by_sigterm
from fedlm.simulations.laws.measuring.grid import PRESETS, Grid
from fedlm.simulations.laws.measuring.running import NOT_PRIVATE, GridProgress, claim_grid, run_grid, run_some


@dataclass(frozen=True, kw_only=True)
class LawsRunCommand:
    """Train every model with every learning rate, noise-batch ratio, batch size, number of steps and seed, and measure
    the training loss in blocks of steps.

    The noise-batch ratio is the standard deviation of the noise on a step's mean gradient, in clip norms. The trainings
    are NOT PRIVATE. Later commands compute what a ratio costs in privacy, for any number of people and any batch size
    (McKenna et al. 2025, "Scaling laws for differentially private language models").

    Writes grid.json, a file of measurements for each training, and measurements.parquet with all of them. A row is a
    block: loss, its standard error, and the gradient noise scale. If you stop the command, the same command goes on
    where it was. With more models, rates, ratios, batch sizes, steps or seeds it adds to its results. It can go on from
    grid.json and measurements.parquet alone.

    The preset small has 180 trainings of 0.1 to 3.3 M parameters, about 7 hours of one CPU core. The others are for
    accelerators. mckenna2025 is the published grid, BERTs from Tiny to Mega. vaultgemma has seven learning rates and
    five numbers of steps for each configuration, as its report has them. kaplan2020, kaplan2020-data and
    kaplan2020-batches vary size, data and batch size of decoders, without clipping and noise (Kaplan et al. 2020,
    "Scaling laws for neural language models").
    """

    grid: Grid
    execution: CellOptions
    out: Path
    """Folder of the results."""


_ESSENTIALS = (
    *("out", "data", "models", "learning_rates", "noise_batch_ratios", "batch_sizes", "steps", "seeds", "length"),
    *("clip_norm", "warmup_steps", "block_steps", "workers", "executor"),
)


class _GridBar(EvaluationProgress):
    """Shows the trainings of a grid, by the floating-point operations that they take."""

    _began: tuple[float, float] | None = None  # when, and how many had been computed before

    def measured(self, progress: GridProgress) -> None:
        """Show a finished block of a cell."""
        cell, tera, now = progress.cell, 1e-12, time.monotonic()
        began, before = self._began = self._began or (now, progress.flops)
        rate = 1e-9 * (progress.flops - before) / max(now - began, 1e-9)
        # A bar counts in whole numbers, and of what it is first shown at least 1 is done.
        done, total = (max(1, math.ceil(flops * tera)) for flops in (progress.flops, progress.total_flops))
        self.show(
            done,
            total,
            f"cells {progress.finished}/{progress.cells} {rate:.2f} GFLOP/s {cell.model} (rate "
            f"{cell.learning_rate:.3g}, ratio {cell.noise_batch_ratio:.3g}, seed {cell.seed}) step "
            f"{progress.row['step']} loss {progress.row['loss']:.3f}",
        )


def main(argv: list[str]) -> int:
    """Run `fedlm laws run`."""
    command = read_options(
        LawsRunCommand, argv, "fedlm laws run", presets=PRESETS, default_preset="small", essentials=_ESSENTIALS
    )
    execution = command.execution
    if execution.is_apart:
        return _run_apart(command, argv)
    with ending_by_sigterm(), _GridBar("measuring", "TFLOP") as progress:
        results = run_grid(command.grid, command.out, execution.cell_executor(), progress.measured)
    console = Console()
    for cell, why in results.failures.items():
        console.print(f"[red]failed[/] {escape(f'{cell.directory}: {why}')}", soft_wrap=True, highlight=False)
    for cell, steps in results.diverged.items():
        console.print(f"[red]diverged[/] after {steps} steps: {escape(cell.name)}", soft_wrap=True, highlight=False)
    measured = 0 if results.measurements is None else len(results.measurements)
    console.print(NOT_PRIVATE, soft_wrap=True, highlight=False)
    console.print(
        f"{results.cells - len(results.failures)} of {results.cells} trainings, {measured:,} blocks: {results.path}",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
    if results.failures:
        return 1
    return NO_GOOD if len(results.diverged) == results.cells else 0


def _run_apart(command: LawsRunCommand, argv: list[str]) -> int:
    """Write the job array of a grid, or run the share of one of its tasks."""
    execution = command.execution
    cells = claim_grid(command.grid, command.out)
    if execution.share is None:
        return execution.write_script("laws run", argv, command.out, len(cells))
    mine = execution.chosen(cells)
    with ending_by_sigterm(), _GridBar("measuring", "TFLOP") as progress:
        failures = run_some(command.grid, mine, execution.cell_executor(), progress.measured)
    return execution.finish_share(mine, failures)


COMMAND = Command(LawsRunCommand, main)
