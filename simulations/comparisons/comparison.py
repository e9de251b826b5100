"""A comparison: every model with every privacy, learning rate and seed, cell by cell, one worker process a device.

A cell that diverges, fails or is killed does not end the others; a comparison that is stopped goes on, when started
again, with the cells that are left, each from its last checkpoint.
"""

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedlm.fl_core.atomic_files import make_folder, write_atomically
from fedlm.fl_core.composed_settings import changes_in_words, idle_names, settings_as_json
from fedlm.fl_core.errors import CheckpointError, setting
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.runs.run_folder import COMPARISON, COMPARISON_FILE, refuse_other_contents
from fedlm.models.arguments import StrPath, checked_arguments
from fedlm.models.layers.dropout import with_dropout
from fedlm.simulations.comparisons.cell_execution import LocalProcesses, run_cells
from fedlm.simulations.comparisons.cells import Cell, CellObserver, CellResult, list_cells, read_result
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.experiments.configuration import (
    MAY_MOVE,
    Comparison,
    RunSettings,
)
from fedlm.simulations.experiments.federated_models import create_federated_model


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
    make_folder(out)
    path = out / COMPARISON_FILE
    if not path.exists():
        refuse_other_contents(out, COMPARISON)
    settings = settings_as_json(comparison)
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
