"""`fedlm evaluate`: score a run's model on the clients of a split, and how much each gains by training on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Column, Table

from fedlm.commands.options import read_options, set_up_devices
from fedlm.commands.progress import EvaluationProgress
from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.evaluation.client_scores import SPREAD
from fedlm.simulations.experiments.configuration import check_learning_rates


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand:
    """Score a run's model, as its last checkpoint holds it, on each client of a split.

    Prints how the scores are spread over clients, and writes evaluation_SPLIT.json and, with a row a client,
    evaluation_SPLIT.parquet into the run's folder. With --personalize each client's examples are cut in two halves: the
    model trains on the first as in a round, and is scored on the second before and after; the files are then named
    personalization_SPLIT.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    split: Literal["train", "heldout", "test"] = "test"
    """Whose clients to score."""
    personalize: bool = False
    """Train on the first half of each client's examples before its second half is scored again."""
    client_learning_rate: float | None = None
    """Learning rate of that training; the run's where it is not given."""
    max_clients: int | None = None
    """Clients to score at most, chosen at random but always the same; all where it is not given."""
    data: Path | None = None
    """Folder of the run's data set, if it was moved."""
    devices: int | None = None
    """How many devices to use: CPU cores where there is no accelerator. All where it is not given."""

    def __post_init__(self) -> None:
        if self.max_clients is not None and self.max_clients < 1:
            raise ConfigurationError(f"max_clients is {self.max_clients}, but must be at least 1")
        if self.client_learning_rate is not None:
            check_learning_rates("client_learning_rate", self.client_learning_rate)
            if not self.personalize:
                raise ConfigurationError("client_learning_rate does nothing without personalize; leave it out")


def main(argv: list[str]) -> int:
    """Run `fedlm evaluate`."""
    command = read_options(EvaluateCommand, argv, "fedlm evaluate")
    set_up_devices(command.devices)
    from fedlm.simulations.evaluation.client_evaluation import evaluate_split, write_evaluation
    from fedlm.simulations.evaluation.personalization import personalize
    from fedlm.simulations.experiments.trained_run import open_run

    run = open_run(command.run, command.data)
    with EvaluationProgress(run.experiment.model, "clients" if command.personalize else "examples") as progress:
        if command.personalize:
            training, rate = run.experiment.training.local_training(), command.client_learning_rate
            found = personalize(run.trained, training, command.split, rate, command.max_clients, progress.update)
        else:
            found = evaluate_split(run.trained, command.split, command.max_clients, progress.update)
    path = write_evaluation(command.run, found)
    console = Console()
    console.print(score_table(found.summary))
    if command.personalize:
        console.print(describe_gain(found.summary))
    console.print(f"everything is in {path} and {path.with_suffix('.parquet').name}", soft_wrap=True)
    return 0


def score_table(summary: dict[str, Any]) -> Table:
    """Make the table of how an evaluation's scores are spread over clients, before and after where there are both."""
    sides = {"before": "clients", "after": "personalized_clients"}
    if "personalized_clients" not in summary:
        sides = {"": "clients"}
    title = f"{summary['model']} after {summary['rounds']} rounds, split {summary['split']}"
    table = Table(Column("score", no_wrap=True), "", *SPREAD, "clients", title=title)
    for score in summary["clients"]:
        for side, name in sides.items():
            numbers = summary[name][score]
            cells = [_number(score, numbers[column]) for column in SPREAD]
            table.add_row(score.replace("_", " "), side, *cells, f"{numbers['count']:,}")
    return table


def describe_gain(summary: dict[str, Any]) -> str:
    """Say in one sentence what personalization did."""
    share = summary["share_of_clients_better"]
    better = "no client has a target to score" if share is None else f"{100 * share:.1f} % of the clients got better"
    before, after = (summary[name]["perplexity"] for name in ("scores", "personalized_scores"))
    numbers = [_number("perplexity", value) for value in (before, after)]
    return f"{better}; perplexity of all their text together {numbers[0]} before, {numbers[1]} after"


def _number(score: str, value: float | None) -> str:
    if value is None:
        return "\N{EN DASH}"
    if "accuracy" in score:
        return f"{value:.4f}"
    return f"{value:.2e}" if value >= 1e6 else f"{value:,.0f}" if value >= 1e3 else f"{value:.2f}"
