"""`fedlm simulate`: train one model in simulated cross-device rounds."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from fedlm.options import add_configuration, settings_of
from fedlm.processes import ProcessGroup, join_processes
from fedlm.progress import RoundProgress
from simulations.configuration import Experiment


@dataclass(frozen=True, kw_only=True)
class SimulateCommand(Experiment, ProcessGroup):
    """Train one model in simulated cross-device rounds.

    Clients run plain SGD on their own examples, the server applies the mean of their updates. The run writes
    metrics.jsonl, TensorBoard events, checkpoints and summary.json into its folder; stopped at any time, the same
    command goes on where it was. `--config FILE` reads options from a TOML file (`client_learning_rate = 0.5`);
    options on the command line win. This command gives no privacy guarantee.

    Several processes, on one machine or on many, simulate together when each is started with the same options, the
    same `--coordinator` and `--num-processes`, and a `--process-id` of its own. Process 0 writes the folder and prints.
    """

    out: Path
    """Folder of the run."""
    devices: int | None = None
    """How many devices each process uses: CPU cores where there is no accelerator. All where it is not given."""
    save_client_scores: bool = False
    """Write test_clients.parquet into the folder too: the scores of each test client."""


def main(argv: list[str]) -> int:
    """Run `fedlm simulate`.

    Args:
      argv: its options.

    Returns:
      The exit status.
    """
    command = tyro.cli(SimulateCommand, args=add_configuration(argv, SimulateCommand), prog="fedlm simulate")
    join_processes(settings_of(command, ProcessGroup), command.devices)
    from fl_core.processes import is_first
    from simulations.experiment import run_experiment

    experiment = settings_of(command, Experiment)
    if not is_first():
        run_experiment(experiment, command.out, save_client_scores=command.save_client_scores)
        return 0
    with RoundProgress(experiment.model) as progress:
        summary = run_experiment(experiment, command.out, progress.update, command.save_client_scores)
    console = Console()
    if summary["status"] == "diverged":
        console.print(f"[red]diverged[/] at round {summary['diverged_at_round']}: {summary['diverged_because']}")
    else:
        console.print(
            f"test perplexity {summary['test_perplexity']:.2f}, test accuracy {summary['test_accuracy']:.4f} "
            f"after {summary['rounds']} rounds ({summary['parameters']:,} parameters)"
        )
    console.print(f"{summary['privacy']}: no noise was added. Everything is in {command.out}")
    return 0
