"""The cells of a comparison: where each runs, and what became of it."""

import dataclasses
import json
import math
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlm.fl_core.composed_settings import with_changes
from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.runs.endings import FINISHED
from fedlm.fl_core.runs.files.metrics_log import METRICS_FILE, read_rows
from fedlm.fl_core.runs.outcome import restated
from fedlm.models.shown import in_a_line
from fedlm.simulations.comparisons.cell_execution import Observer, Row
from fedlm.simulations.experiments.configuration import Comparison, Experiment

CellObserver = Observer["Cell"]
"""Called with each cell's metrics rows as they come."""


@dataclass(frozen=True)
class Cell:
    """One experiment of a comparison, a `CellTask`."""

    experiment: Experiment
    directory: Path  # where it runs
    # what its ledger says of what it is compared with
    tuning: Mapping[str, Any] | None = field(default=None, compare=False)
    client_scores: bool = False  # whether it writes a table of its test clients' scores

    def is_finished(self) -> bool:
        try:
            found = json.loads((self.directory / "summary.json").read_text(encoding="utf-8"))
            return bool(found["status"] != FINISHED or found["rounds"] >= self.experiment.rounds)
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError):
            return True  # `read_result` says what is wrong with it

    def run(self, report: Callable[[Row], None]) -> None:
        from fedlm.simulations.experiments.experiment import run_experiment
        from fedlm.simulations.experiments.tuning import ComparedWith

        brought = () if self.tuning is None else (ComparedWith(self.tuning),)
        run_experiment(
            self.experiment,
            self.directory,
            lambda row, rounds: report(row),
            save_client_scores=self.client_scores,
            brought=brought,
        )

    def until(self, rounds: int) -> "Cell":
        """Make the same cell with fewer rounds; it can go on from there."""
        return dataclasses.replace(self, experiment=with_changes(self.experiment, rounds=rounds))

    def heldout_loss(self, rounds: int) -> float:
        """Read its last held-out loss of so many rounds; infinite where it has not come so far."""
        rows = [row for row in read_rows(self.directory / METRICS_FILE) if row["round"] < rounds]
        loss = rows[-1].get("heldout_loss") if len(rows) == rounds else None
        return loss if loss is not None and math.isfinite(loss) else math.inf


@dataclass(frozen=True, repr=False)
class CellResult:
    """What became of a cell."""

    cell: Cell
    # its summary, with `status` as in `fl_core.runs.endings` or `failed`, and its ledger's statement in place of what
    # it says of privacy; a failed one has only `error` beside the status
    summary: dict[str, Any]
    rows: list[dict[str, Any]]  # its metrics, a dictionary a round

    def __repr__(self) -> str:
        model, folder = self.cell.experiment.model, str(self.cell.directory)
        return in_a_line(self, model=model, folder=folder, status=self.status, test_loss=self.summary.get("test_loss"))

    @property
    def status(self) -> str:
        """`finished`, `diverged`, `unanswered` or `failed`."""
        return self.summary["status"]


def list_cells(comparison: Comparison, out: Path) -> list[Cell]:
    """Name the cells of a comparison and their folders. Returns one cell for each experiment, those of one model
    together."""
    experiments = comparison.experiments()
    private = sum(experiment.privacy.is_private for experiment in experiments)
    return [
        Cell(
            experiment,
            out
            / "cells"
            # The path of a description must not be one here.
            / urllib.parse.quote(experiment.model, safe=":")
            / _privacy_folder(comparison, experiment)
            / f"client-{experiment.client_learning_rate:g}_server-{experiment.server_learning_rate:g}"
            / f"seed-{experiment.seed}",
            {"runs": private} if experiment.privacy.is_private and private > 1 else None,
            client_scores=True,
        )
        for experiment in experiments
    ]


def _privacy_folder(comparison: Comparison, experiment: Experiment) -> Path:
    """Name the folder between model and learning rates, which there is only where several privacies are compared."""
    if not (comparison.mechanisms or comparison.epsilons):
        return Path()
    if not experiment.privacy.is_private:
        return Path("no_noise")
    if not comparison.epsilons:
        return Path(experiment.privacy.privacy)
    return Path(f"{experiment.privacy.privacy}_epsilon-{str(experiment.privacy.target_epsilon).removesuffix('.0')}")


def read_result(cell: Cell, failure: str | None = None) -> CellResult:
    """Read what a cell that `run_cells` was given left in its folder, and state its privacy by its ledger. Raises
    CheckpointError where its files are damaged."""
    rows = read_rows(cell.directory / METRICS_FILE)
    if failure is not None:
        return CellResult(cell, {"status": "failed", "error": failure}, rows)
    path = cell.directory / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error}); remove that file, and give the same command again"
        ) from error
    return CellResult(cell, restated(summary, cell.directory), rows)
