"""`fedlm pretrain`: train one model centrally, with differential privacy."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from fedlm.commands.options import read_options
from fedlm.commands.processes import ProcessGroup, join_processes
from fedlm.commands.progress import StepProgress
from fedlm.simulations.pretraining.settings import Pretraining


@dataclass(frozen=True, kw_only=True)
class PretrainCommand:
    """Train one model centrally, with DP-SGD, DP-Adam or DP-AdamW.

    Batches are drawn by Poisson sampling, the gradient of every unit (a sequence, or all sequences of a user) is
    clipped, and noise is added to their sum. The run writes metrics.jsonl, TensorBoard events, checkpoints and
    summary.json into its folder; stopped at any time, the same command goes on where it was. What every checkpoint
    spends is in its ledger, and `fedlm account ledger OUT` states it. `--privacy none` trains without clipping and
    noise, and its summary says NOT PRIVATE. `fedlm simulate --init-from OUT` begins with the parameters.

    Several processes, on one machine or on many, train together when each is started with the same options, the same
    `--coordinator` and `--num-processes`, and a `--process-id` of its own. Process 0 writes the folder and prints.
    """

    pretraining: Pretraining
    processes: ProcessGroup
    out: Path
    """Folder of the run."""


_ESSENTIALS = (
    *("out", "model", "data", "init_from", "steps", "batch_size", "length", "unit", "privacy", "epsilon"),
    *(
        "noise_multiplier",
        "noise_batch_ratio",
        "delta",
        "clip_norm",
        "optimizer",
        "learning_rate",
        "schedule",
        "seed",
        "evaluate_every",
    ),
    *("checkpoint_every", "devices"),
)


def main(argv: list[str]) -> int:
    """Run `fedlm pretrain`."""
    command = read_options(PretrainCommand, argv, "fedlm pretrain", essentials=_ESSENTIALS)
    join_processes(command.processes)
    from fedlm.fl_core.processes import is_first
    from fedlm.simulations.pretraining.run import run_pretraining

    settings = command.pretraining
    if not is_first():
        run_pretraining(settings, command.out)
        return 0
    with StepProgress(settings.model, "step") as progress:
        summary = run_pretraining(settings, command.out, progress)
    console = Console()
    if summary["status"] == "diverged":
        console.print(f"[red]diverged[/] after {summary['steps']} steps: {summary['diverged_because']}")
    else:
        what = "of masked words " if summary["objective"] == "masked" else ""
        console.print(
            f"test perplexity {what}{summary['test_perplexity']:.2f}, test accuracy {summary['test_accuracy']:.4f} "
            f"after {summary['steps']} steps ({summary['parameters']:,} parameters)"
        )
    console.print(f"privacy: {escape(summary['privacy'])}", soft_wrap=True)
    if summary.get("privacy_guarantee"):
        console.print(f"noise-batch ratio {summary['noise_batch_ratio']:.4g}; {escape(summary['units']['protects'])}")
    console.print(f"everything is in {command.out}", soft_wrap=True)
    return 0
