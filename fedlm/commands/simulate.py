"""`fedlm simulate`: train one model in simulated cross-device rounds."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.command_line.processes import ProcessGroup, join_processes
from fedlm.command_line.progress import RoundProgress, scores_in_words, trained_part
from fedlm.command_line.run_endings import exit_status, say_no_good, say_privacy
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_down
from fedlm.simulations.experiments.configuration import Experiment
from fedlm.simulations.experiments.presets import SIMULATION_PRESETS


@dataclass(frozen=True, kw_only=True)
class SimulateCommand:
    """Train one model in simulated cross-device rounds.

    Clients run plain SGD on their own examples, and the server applies the mean of their updates. The run writes
    metrics.jsonl, TensorBoard events, checkpoints and summary.json into its folder. If you stop it, the same command
    goes on where it was. With `--privacy` the models that the run releases are differentially private, and `fedlm
    account ledger OUT` states what it has spent. Without it they are NOT PRIVATE. The exit status is 3 if the run
    diverged, or no client answered in any round; the summary is written all the same.

    Several processes, on one machine or on many, simulate together: start each with the same options, the same
    `--coordinator` and `--num-processes`, and a `--process-id` of its own. Process 0 writes the folder and prints.
    """

    experiment: Experiment
    processes: ProcessGroup
    out: Path
    """Folder of the run."""
    save_client_scores: bool = False
    """Also write test_clients.parquet into the folder: the scores of each test client."""


_ESSENTIALS = (
    *("out", "model", "data", "rounds", "seed", "client_learning_rate", "server_learning_rate", "init_from"),
    *("cohort_size", "cohort_sampler", "length", "client_batch_size", "client_epochs", "server_optimizer"),
    *(
        "lora_rank",
        "update_clip_norm",
        "privacy",
        "noise_multiplier",
        "target_epsilon",
        "delta",
        "evaluate_every",
        "devices",
    ),
)


def main(argv: list[str]) -> int:
    """Run `fedlm simulate`."""
    command = read_options(SimulateCommand, argv, "fedlm simulate", presets=SIMULATION_PRESETS, essentials=_ESSENTIALS)
    join_processes(command.processes)
    from fedlm.fl_core.processes import is_first
    from fedlm.simulations.experiments.experiment import run_experiment

    experiment = command.experiment
    if not is_first():
        summary = run_experiment(experiment, command.out, save_client_scores=command.save_client_scores)
        return exit_status(summary["status"])
    with RoundProgress(experiment.model) as progress:
        summary = run_experiment(
            experiment, command.out, progress.update, save_client_scores=command.save_client_scores
        )
    console = Console()
    if not say_no_good(console, summary):
        console.print(
            f"{scores_in_words(summary)} after {summary['rounds']} rounds ({summary['parameters']:,} "
            f"parameters{trained_part(summary)})",
            soft_wrap=True,
        )
    if summary["rounds"] > experiment.rounds:
        console.print(f"nothing was trained: the run already had more than the {experiment.rounds} rounds asked for")
    say_privacy(console, summary["privacy"])
    if audit := summary.get("audit"):
        console.print(
            f"audit: epsilon is at least {rounded_down(audit['epsilon_lower_bound'], 3)} at delta "
            f"{rounded_down(audit['delta'])} with {audit['confidence']:.0%} confidence; {audit['canaries']} canaries "
            f"are told apart with an AUC of {audit['auc']:.3f}",
            soft_wrap=True,
        )
    console.print(f"everything is in {command.out}", soft_wrap=True)
    return exit_status(summary["status"])


COMMAND = Command(SimulateCommand, main)
