"""`fedlm compare`: compare models over learning rates and seeds, and write a report."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedlm.commands.options import read_options
from fedlm.commands.progress import CellProgress
from fedlm.simulations.experiments.comparison import run_comparison
from fedlm.simulations.experiments.configuration import Comparison
from fedlm.simulations.experiments.presets import PRESETS
from fedlm.simulations.reporting.report import write_report
from fedlm.simulations.worker_processes import ending_by_sigterm


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """Compare models over learning rates and seeds, and write a report.

    Each model is trained with every combination of learning rates and every seed. The combination with the lowest
    mean held-out loss is selected; its scores on the test clients are the model's result. Writes report.html,
    results.csv and plots into its folder. Stopped at any time, the same command goes on where it was.

    `--mechanisms` and `--epsilons` compare at equal privacy: every model is trained with every mechanism at every
    epsilon, rates are selected for each by itself, and the report draws test perplexity against epsilon. `inf` among
    the epsilons adds runs without noise. Such a comparison needs `--update-clip-norm` and a `--cohort-sampler` that
    bounds participation. Each private run alone has the guarantee that its summary states; choosing the best of several
    runs is not accounted.
    """

    comparison: Comparison
    out: Path
    """Folder of the comparison."""
    workers: int | None = None
    """Cells run at the same time: one per CPU core, or per accelerator, where it is not given."""


_ESSENTIALS = (
    *("out", "workers", "models", "data", "rounds", "seeds", "client_learning_rates", "server_learning_rates"),
    *("mechanisms", "epsilons", "init_from", "cohort_size", "cohort_sampler", "length", "client_batch_size"),
    *("client_epochs", "server_optimizer", "update_clip_norm", "privacy", "noise_multiplier", "target_epsilon"),
    *("delta", "evaluate_every"),
)


def main(argv: list[str]) -> int:
    """Run `fedlm compare`."""
    command = read_options(CompareCommand, argv, "fedlm compare", PRESETS, "small", _ESSENTIALS)
    comparison = command.comparison
    with ending_by_sigterm(), CellProgress(len(comparison.experiments()) * comparison.rounds) as progress:
        results = run_comparison(comparison, command.out, command.workers, progress.update)
    report = write_report(comparison, results, command.out, shlex.join(["fedlm", "compare", *argv]))
    console = Console()
    for result in results:
        if result.status != "finished":
            why = result.summary.get("diverged_because") or result.summary.get("error")
            console.print(f"[red]{result.status}[/] {result.cell.directory}: {why}")
    console.print(f"report: {report}", soft_wrap=True)
    return 0 if all(result.status != "failed" for result in results) else 1
