"""`fedlm evaluate`: score a run's model on the clients of a split, and how much each gains by training on, by what it
recommends to users, or on tasks of lm-evaluation-harness."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.markup import escape

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options, set_up_devices
from fedlm.command_line.progress import EvaluationProgress
from fedlm.commands.evaluate.tables import (
    describe_gain,
    ranking_notes,
    ranking_table,
    score_table,
    task_notes,
    task_table,
)
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.number_ranges import Count, Positive
from fedlm.simulations.evaluation.client_evaluation import write_evaluation
from fedlm.simulations.evaluation.language_tasks.measuring import TaskSettings, measure_tasks
from fedlm.simulations.evaluation.recommendation.measuring import RankingSettings, measure_ranking

if TYPE_CHECKING:
    from fedlm.simulations.evaluation.trained_models import TrainedModel


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand:
    """Score a run's model, as its last checkpoint holds it, on each client of a split.

    Prints how the scores are spread over clients. Writes evaluation_SPLIT.json and, with a row a client,
    evaluation_SPLIT.parquet into the run's folder. With --personalize each client's examples are cut in two halves: the
    model trains on the first as in a round, and is scored on the second before and after. The files are then named
    personalization_SPLIT.

    With --tasks the command scores the model on tasks of lm-evaluation-harness instead, a library that `pip install
    'fedlm[evaluation]'` brings. There it scores multiple choice by log-likelihood, and answers that the model
    generates. It takes the last checkpoint of any run, and of a private run only one that its ledger names as released.

    On data of recommendation it scores the rank that a model of any kind gives to each user's held-out item: HIT@k,
    NDCG@k, the share of the catalogue that is recommended, and these by the popularity of the items. Beside them it
    prints the scores of recommending the most popular items. Rankings with --sampled-negatives or --keep-history have
    files of their own, such as evaluation_SPLIT_100_negatives.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    split: Literal["train", "heldout", "test"] = "test"
    """Whose clients to score."""
    personalize: bool = False
    """Train on the first half of each client's examples before its second half is scored again."""
    client_learning_rate: Annotated[Positive | None, OnlyWith("personalize")] = None
    """Learning rate of that training. If not given, that of the run."""
    max_clients: Count | None = None
    """Score at most this many clients, chosen at random but always the same ones. If not given, all. The files are then
    named evaluation_SPLIT_N_clients, and other files stay as they are."""
    data: Path | None = None
    """Folder of the run's data set, if it was moved."""
    devices: Count | None = None
    """Devices to use (CPU cores without an accelerator). If not given, all; for tasks on a CPU one, which has all
    cores."""
    task_settings: TaskSettings
    ranking: RankingSettings
    json: bool = False
    """Print the scores on tasks, or of recommended items, as one JSON object in place of a table."""
    out: Path | None = None
    """File to write that object into."""

    def __post_init__(self) -> None:
        self._refuse_what_does_nothing()
        if self.out is not None and self.out.is_dir():
            raise ConfigurationError(f"{setting('out')} is {self.out}, which is a folder; give a file")
        if self.out is not None and not self.out.parent.is_dir():
            raise ConfigurationError(
                f"{setting('out')} is {self.out}, but there is no folder {self.out.parent}; make it first"
            )

    def _refuse_what_does_nothing(self) -> None:
        of_clients = ("split", "personalize", "client_learning_rate", "max_clients", "data")
        of_tasks = [field.name for field in dataclasses.fields(TaskSettings)]
        tasks = self.task_settings
        if tasks.tasks is None:
            given = [name for name in of_tasks if getattr(tasks, name) is not None]
            why = f"does nothing without {setting('tasks')}"
        else:
            defaults = {field.name: field.default for field in dataclasses.fields(self)}
            given = [name for name in of_clients if getattr(self, name) != defaults[name]] + self._of_ranking()
            why = "is about clients, and does nothing with tasks"
        if given:
            raise ConfigurationError(f"{setting(given[0])} {why}; leave it out")

    def _of_ranking(self) -> list[str]:
        """Name what is given of how items are ranked."""
        given = dataclasses.asdict(self.ranking)
        return [name for name, default in dataclasses.asdict(RankingSettings()).items() if given[name] != default]

    def refuse_what_is_of_others(self, item_sequences: bool) -> None:
        """Refuse, as a ConfigurationError, what does nothing for data of recommendation, or for all other data."""
        if item_sequences:
            given = [name for name in ("personalize", "client_learning_rate") if getattr(self, name)]
            why = "does nothing for data of recommendation"
        else:
            given = self._of_ranking() + [name for name in ("json", "out") if getattr(self, name)]
            why = f"does nothing without {setting('tasks')}, or data of recommendation"
        if given:
            raise ConfigurationError(f"{setting(given[0])} {why}; leave it out")


def main(argv: list[str]) -> int:
    """Run `fedlm evaluate`."""
    command = read_options(EvaluateCommand, argv, "fedlm evaluate")
    if command.task_settings.tasks is not None:
        return _evaluate_on_tasks(command)
    set_up_devices(command.devices)
    from fedlm.fl_core.runs.outcome import stated_privacy
    from fedlm.simulations.evaluation.client_evaluation import evaluate_split
    from fedlm.simulations.evaluation.personalization import personalize
    from fedlm.simulations.evaluation.trained_models import NOT_COVERED, open_model
    from fedlm.simulations.experiments.trained_run import federated_run

    trained = open_model(command.run, command.data)
    command.refuse_what_is_of_others(trained.store.item_sequences)
    if trained.store.item_sequences:
        return _evaluate_ranking(command, trained)
    run = federated_run(command.run, trained)
    with EvaluationProgress(run.experiment.model, "clients" if command.personalize else "examples") as progress:
        if command.personalize:
            training, rate = run.experiment.training.local_training(), command.client_learning_rate
            found = personalize(
                run.trained,
                training,
                command.split,
                client_learning_rate=rate,
                max_clients=command.max_clients,
                observe=progress.update,
            )
        else:
            found = evaluate_split(run.trained, command.split, command.max_clients, progress.update)
    path, _ = write_evaluation(command.run, found, command.max_clients)
    console = Console()
    console.print(score_table(found.summary))
    if command.personalize:
        console.print(describe_gain(found.summary))
    console.print(f"privacy of the model: {escape(stated_privacy(command.run))}", soft_wrap=True, highlight=False)
    console.print(NOT_COVERED, soft_wrap=True)
    console.print(f"everything is in {path} and {path.with_suffix('.parquet').name}", soft_wrap=True)
    return 0


def _evaluate_ranking(command: EvaluateCommand, trained: "TrainedModel") -> int:
    with EvaluationProgress(trained.settings["model"], "users") as progress:
        found = measure_ranking(
            trained, command.split, command.ranking, max_users=command.max_clients, observe=progress.update
        )
    path, record = write_evaluation(command.run, found, command.max_clients)
    console = Console()
    if command.json:
        print(json_text(record, indent=2), flush=True)
    else:
        console.print(ranking_table(record))
        for line in ranking_notes(record):
            console.print(escape(line), soft_wrap=True, highlight=False)
        console.print(f"everything is in {path} and {path.with_suffix('.parquet').name}", soft_wrap=True)
    if command.out is not None:
        write_atomically(command.out, json_text(record, indent=2) + "\n")
    return 0


def _evaluate_on_tasks(command: EvaluateCommand) -> int:
    set_up_devices(command.devices, of_cpu=1)
    with EvaluationProgress("tasks", "requests") as progress:
        found = measure_tasks(command.run, command.task_settings, progress.update)
    text, console = json_text(found, indent=2), Console()
    if command.json:
        print(text, flush=True)
    else:
        console.print(task_table(found))
        for line in task_notes(found, command.task_settings):
            console.print(escape(line), soft_wrap=True, highlight=False)
    # What took long is seen already, should the disk refuse it.
    if command.out is not None:
        write_atomically(command.out, text + "\n")
        if not command.json:
            console.print(f"everything is in {command.out}", soft_wrap=True)
    return 0


COMMAND = Command(EvaluateCommand, main)
