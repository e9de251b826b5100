"""A comparison: every model with every privacy, learning rate and seed, cell by cell, one worker process a device.

A cell that diverges, fails or is killed does not end the others; a comparison that is stopped goes on, when started
again, with the cells that are left, each from its last checkpoint.
"""

import dataclasses
import itertools
import json
import math
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlm.fl_core.atomic_files import make_folder, write_atomically
from fedlm.fl_core.composed_settings import changes_in_words, idle_names, settings_as_json, with_changes
from fedlm.fl_core.errors import CheckpointError, setting
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.runs.endings import FINISHED
from fedlm.fl_core.runs.files.metrics_log import METRICS_FILE, read_rows
from fedlm.fl_core.runs.outcome import restated
from fedlm.fl_core.runs.run_folder import COMPARISON, COMPARISON_FILE, refuse_other_contents
from fedlm.models.arguments import StrPath, checked_arguments
from fedlm.models.layers.dropout import with_dropout
from fedlm.models.shown import in_a_line
from fedlm.simulations.comparisons.cell_execution import LocalProcesses, Observer, Row, run_cells
from fedlm.simulations.data.cohort_files import fingerprint
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.experiments.configuration import (
    MAY_MOVE,
    Comparison,
    Experiment,
    RunSettings,
)
from fedlm.simulations.experiments.federated_models import create_federated_model

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

        run_experiment(
            self.experiment,
            self.directory,
            lambda row, rounds: report(row),
            save_client_scores=self.client_scores,
            tuning=self.tuning,
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


@checked_arguments
def run_comparison(
    comparison: Comparison,
    out: StrPath,
    executor: LocalProcesses = LocalProcesses(),  # noqa: B008
    observe: CellObserver = lambda cell, row: None,
) -> list[CellResult]:
    """Run the cells that are not finished yet, as the executor says: by one worker process for each CPU core or
    accelerator, or by so many. Returns the results of all cells that train to the end, in the order of `list_cells`.
    Raises UserError where settings or data do not fit, or `out` holds a comparison with other settings.

    Example:
      >>> import fedlm
      >>> comparison = fedlm.compose(fedlm.Comparison, models=("cifg_tiny", "si_cifg_tiny"), data=Path("runs/stdlib"))
      >>> results = run_comparison(comparison, Path("runs/compare"), fedlm.LocalProcesses(2))  # doctest: +SKIP
    """
    out = Path(out)
    claim_folder(comparison, out)
    cells = list_cells(comparison, out)
    by_folder = {cell.directory: cell for cell in cells}

    def train(some: Sequence[Cell]) -> dict[Path, str]:
        failures = run_cells(
            each_model_early(some),
            executor,
            lambda cell, row: observe(by_folder[cell.directory], row),
        )
        return {cell.directory: why for cell, why in failures.items()}

    cells, failures = _halved(comparison, cells, train) if comparison.halvings else (cells, train(cells))
    return [read_result(cell, failures.get(cell.directory)) for cell in cells]


def _halved(
    comparison: Comparison, cells: Sequence[Cell], train: Callable[[Sequence[Cell]], dict[Path, str]]
) -> tuple[list[Cell], dict[Path, str]]:
    """Select learning rates by successive halving, see `Comparison.halvings`. Returns the cells that train to the end,
    and why some of these failed."""
    left = [cell for cell in cells if cell.experiment.seed == comparison.seeds[0]]
    failures: dict[Path, str] = {}
    for halving in range(comparison.halvings, 0, -1):
        rounds = -(-comparison.rounds // 2**halving)
        failures |= train([cell.until(rounds) for cell in left if cell.directory not in failures])
        left = [cell for rates in _grouped(left, _server_rate) for cell in _best(rates, rounds, -(-len(rates) // 2))]
    failures |= train([cell for cell in left if cell.directory not in failures])
    best = [cell for rates in _grouped(left, _trained) for cell in _best(rates, comparison.rounds, 1)]
    chosen = {(*_trained(cell), _rates(cell)) for cell in best}
    others = [
        cell
        for cell in cells
        if cell.experiment.seed != comparison.seeds[0] and (*_trained(cell), _rates(cell)) in chosen
    ]
    failures |= train(others)
    ended = {cell.directory for cell in (*left, *others)}
    return [cell for cell in cells if cell.directory in ended], failures


def rounds_to_train(comparison: Comparison) -> int:
    """Count the rounds that all cells of a comparison train, where none fails."""
    experiments, rounds = comparison.experiments(), comparison.rounds
    if not comparison.halvings:
        return len(experiments) * rounds
    first = [one for one in experiments if one.seed == comparison.seeds[0]]
    total = len({(one.model, one.privacy) for one in first}) * (len(comparison.seeds) - 1) * rounds
    for cells in Counter((one.model, one.privacy, one.server_learning_rate) for one in first).values():
        done = 0
        for halving in range(comparison.halvings, -1, -1):
            until = -(-rounds // 2**halving)
            total, done, cells = total + cells * (until - done), until, -(-cells // 2)
    return total


def _trained(cell: Cell) -> tuple[Any, ...]:
    """What learning rates are selected for."""
    return cell.experiment.model, cell.experiment.privacy


def _server_rate(cell: Cell) -> tuple[Any, ...]:
    return *_trained(cell), cell.experiment.server_learning_rate


def _rates(cell: Cell) -> tuple[float, float]:
    return cell.experiment.client_learning_rate, cell.experiment.server_learning_rate


def _grouped(cells: Iterable[Cell], key: Callable[[Cell], tuple[Any, ...]]) -> list[list[Cell]]:
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return list(groups.values())


def _best(cells: Sequence[Cell], rounds: int, number: int) -> list[Cell]:
    """Take the cells with the lowest held-out losses; ties go to the lower rates, as in the report."""
    return sorted(cells, key=lambda cell: (cell.heldout_loss(rounds), *_rates(cell)))[:number]


def each_model_early(cells: Sequence[Cell]) -> list[Cell]:
    """Put cells in the order in which they begin: the first of every model, the second of every model, and so on."""
    by_model: dict[str, list[Cell]] = {}
    for cell in cells:
        by_model.setdefault(cell.experiment.model, []).append(cell)
    in_turn = itertools.zip_longest(*by_model.values())
    return [cell for turn in in_turn for cell in turn if cell is not None]


def claim_folder(comparison: Comparison, out: Path) -> None:
    """Make the folder of a comparison, or find that it holds what was begun with these settings.

    Raises:
      UserError: settings or data do not fit, or the runs in it have other settings.
    """
    for name in comparison.models:
        with_dropout(create_federated_model(name), comparison.training.dropout)
    TokenStore.open(comparison.data)
    file = comparison.cohorts.availability_trace or comparison.cohorts.cohort_weights
    cohort_file = fingerprint(file) if file else None
    make_folder(out)
    path = out / COMPARISON_FILE
    if not path.exists():
        refuse_other_contents(out, COMPARISON)
    settings = settings_as_json(comparison) | {"cohort_file_sha256": cohort_file}
    may_grow = {one.name for one in dataclasses.fields(Comparison)} - {
        one.name for one in dataclasses.fields(RunSettings)
    }
    if comparison.selection.private_selection != "none":
        # What runs were drawn from does not change.
        may_grow = set()
    text = json_text(settings, indent=2) + "\n"
    if path.exists():
        before = path.read_text(encoding="utf-8")
        try:
            what = changed_settings(json.loads(before), settings, {*may_grow, *idle_names(comparison)})
        except (json.JSONDecodeError, TypeError) as error:
            raise CheckpointError(
                f"{path}: not the settings of a comparison ({error}); give another {setting('out')}"
            ) from error
        if what:
            raise CheckpointError(
                f"{out} holds a comparison with other settings: {what}. Give the same settings to go on with it "
                f"{'(models, mechanisms, epsilons, learning rates and seeds may be added)' * bool(may_grow)}, or "
                f"another {setting('out')}"
            )
        if before == text:
            # Tasks of a job array come at the same time, and one would write into another's file.
            return
    write_atomically(path, text)


def changed_settings(recorded: dict[str, Any], settings: dict[str, Any], may_grow: Iterable[str] = ()) -> str:
    """Say in which settings a comparison differs from one that was recorded, but for those that may grow, and for where
    files lie; empty where it does not. Raises TypeError where the record is none."""
    if not isinstance(recorded, dict):
        raise TypeError(f"a list of settings is expected, found {recorded!r}")
    shared = settings.keys() - set(may_grow) - set(MAY_MOVE)
    return changes_in_words(recorded, settings, (name for name in settings if name in shared))


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
