"""A grid of trainings, cell by cell, into one folder: resumed where it was stopped, and it may grow."""

import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.atomic_files import make_folder, write_atomically
from fedlm.fl_core.composed_settings import changes_in_words, settings_as_json
from fedlm.fl_core.errors import CheckpointError, ConfigurationError, setting
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.runs.capabilities.data_budget import budget_of
from fedlm.fl_core.runs.files.run_lock import run_lock
from fedlm.fl_core.runs.run_folder import GRID, GRID_FILE, refuse_other_contents
from fedlm.models.base import parameter_count
from fedlm.models.registry import create_model, refuse_run_constants
from fedlm.models.training_shapes import check_length
from fedlm.simulations.comparisons.cell_execution import LocalProcesses, run_cells
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.laws.measuring.cell import GridCell, open_grid_units
from fedlm.simulations.laws.measuring.grid import AXES, Grid
from fedlm.simulations.laws.measuring.measurements import (
    MEASUREMENTS_FILE,
    Measurements,
    read_measurements,
    write_measurements,
)
from fedlm.simulations.pretraining.flops import training_flops_per_token

CELLS_FOLDER = "cells"
NOT_PRIVATE = (
    "NOT PRIVATE: the noise follows from the seed and batches are no Poisson samples; these are experiments about "
    "private training"
)
_MAY_DIFFER = (*AXES, "data", "cache")
_NAMED_BY_AXES = ("model", "learning_rate", "noise_batch_ratio", "batch_size", "steps", "seed")
_COLLECTED_EVERY = 60.0
"""Seconds in which the measurements of finished cells are put together at most once, while others run."""


class GridResults(NamedTuple):
    """What became of a grid."""

    measurements: Measurements | None  # of all finished cells; None where there is none
    cells: int
    failures: dict[GridCell, str]
    diverged: dict[GridCell, int]  # how many steps were measured of those that ended before their last
    path: Path  # of the measurements


class GridProgress(NamedTuple):
    """How far a grid is.

    Attributes:
      cell: of which a block was finished.
      row: what the block measured.
      finished: how many cells are.
      cells: how many there are.
      flops: that were computed for all that was finished, 6 times parameters and tokens.
      total_flops: of the whole grid.
    """

    cell: GridCell
    row: dict[str, Any]
    finished: int
    cells: int
    flops: float
    total_flops: float


def list_cells(grid: Grid, folder: Path) -> list[GridCell]:
    """List the cells of a grid whose files are in a folder: by the order of seeds, and of one seed by what they cost,
    so that what has been measured when a grid is stopped is of use."""
    parameters = {model: parameter_count(create_model(model)) for model in grid.models}
    axes: list[tuple[Any, ...]] = [getattr(grid, axis) for axis in AXES]
    cells = [
        GridCell(grid, model, rate, ratio, batch_size, steps, examples, seed, folder)
        for model, rate, ratio, batch_size, steps, examples, seed in itertools.product(*axes)
    ]
    place = {seed: number for number, seed in enumerate(grid.seeds)}
    return sorted(cells, key=lambda cell: (place[cell.seed], parameters[cell.model] * cell.batch_size * cell.steps))


def run_grid(
    grid: Grid, out: Path, executor: LocalProcesses, observe: Callable[[GridProgress], None] = lambda progress: None
) -> GridResults:
    """Run the cells of a grid that are not finished, and put together what all have measured.

    Raises:
      UserError: settings or data do not fit, or the folder holds another grid.
    """
    store = _prepare(grid, out)
    with run_lock(out):
        cells = _claimed(grid, store, out)
        follower = _Follower(cells, store.vocabulary_size, out, observe)
        try:
            failures = run_cells(cells, executor, follower.observe)
        finally:
            measurements = collect(out)
    measured = {cell: int(read_measurements(cell.result).step.max(initial=0)) for cell in cells if cell.is_finished()}
    diverged = {cell: steps for cell, steps in measured.items() if steps < cell.steps}
    return GridResults(measurements, len(cells), failures, diverged, out / MEASUREMENTS_FILE)


def claim_grid(grid: Grid, out: Path) -> list[GridCell]:
    """Make the folder of a grid, of whose cells several commands are to run a part each. Returns all cells.

    Raises:
      UserError: as `run_grid` does.
    """
    store = _prepare(grid, out)
    with run_lock(out):
        return _claimed(grid, store, out)


def run_some(
    grid: Grid,
    cells: Sequence[GridCell],
    executor: LocalProcesses,
    observe: Callable[[GridProgress], None] = lambda progress: None,
) -> dict[GridCell, str]:
    """Run some of the cells of a grid that was claimed, and put nothing together. Returns why cells failed."""
    follower = _Follower(list(cells), TokenStore.open(grid.data).vocabulary_size, None, observe)
    return run_cells(cells, executor, follower.observe)


def _prepare(grid: Grid, out: Path) -> TokenStore:
    """Open the data, look whether models and settings fit it, and make the folder."""
    store = TokenStore.open(grid.data)
    budget_of(store.path, private=False)
    if store.has_completions:
        raise ConfigurationError(f"{store.path} has prompts and completions; give data that was imported as texts")
    for name in grid.models:
        refuse_run_constants(name)
        model = create_model(name, store.vocabulary_size, store.special_tokens)
        check_length(name, model, grid.length)
    units = open_grid_units(grid, store)
    for axis, most in (("batch_sizes", units.count), ("training_examples", units.count)):
        if max(getattr(grid, axis)) > most:
            raise ConfigurationError(
                f"{axis} has {max(getattr(grid, axis))}, but {store.path} has {most} examples of {grid.length} tokens"
            )
    refuse_other_contents(out, GRID)
    make_folder(out / CELLS_FOLDER)
    return store


def collect(out: Path) -> Measurements | None:
    """Put the measurements of all finished cells in a results' folder into its `measurements.parquet`, in the order of
    their names; None where there is none."""
    found = [read_measurements(path) for path in sorted((out / CELLS_FOLDER).glob("*.parquet"))]
    if not found:
        return None
    measurements = found[0].joined(found[1:])
    write_measurements(measurements, out / MEASUREMENTS_FILE)
    return measurements


def _claimed(grid: Grid, store: TokenStore, out: Path) -> list[GridCell]:
    """Claim a folder, and list the cells. Where `measurements.parquet` was kept without files of single cells, these
    are written again."""
    _claim(grid, store, out)
    cells = list_cells(grid, out / CELLS_FOLDER)
    table = out / MEASUREMENTS_FILE
    if table.exists() and not all(cell.is_finished() for cell in cells):
        kept, examples = read_measurements(table), open_grid_units(grid, store).count
        for cell in cells:
            rows = kept.where(_rows_of(cell, kept, examples))
            if len(rows) and not cell.is_finished():
                write_measurements(rows, cell.result)
    return cells


def _rows_of(cell: GridCell, kept: Measurements, examples: int) -> NDArray[np.bool_]:
    named = [getattr(kept, name) == getattr(cell, name) for name in _NAMED_BY_AXES]
    trained_on = kept.training_examples == (cell.training_examples or examples)
    return np.all([*named, trained_on], axis=0)


class _Follower:
    """Counts what is finished, and puts measurements together now and then."""

    def __init__(
        self, cells: list[GridCell], vocabulary_size: int, out: Path | None, observe: Callable[[GridProgress], None]
    ) -> None:
        models = {cell.model for cell in cells}
        flops = {name: training_flops_per_token(create_model(name, vocabulary_size)) for name in models}
        self._of_step = {cell: flops[cell.model] * cell.batch_size * cell.grid.length for cell in cells}
        self._done = {cell: cell.steps if cell.is_finished() else 0 for cell in cells}
        self._out, self._observe, self._collected = out, observe, time.monotonic()

    def observe(self, cell: GridCell, row: dict[str, Any]) -> None:
        self._done[cell] = row["step"]
        finished = sum(done == one.steps for one, done in self._done.items())
        flops = sum(self._of_step[one] * done for one, done in self._done.items())
        total = sum(self._of_step[one] * one.steps for one in self._done)
        self._observe(GridProgress(cell, row, finished, len(self._done), flops, total))
        due = row["step"] == cell.steps and time.monotonic() - self._collected > _COLLECTED_EVERY
        if due and self._out is not None:
            collect(self._out)
            self._collected = time.monotonic()


def _claim(grid: Grid, store: TokenStore, out: Path) -> None:
    """Write down which grid a folder holds, or find that it holds this one, or one that this one adds to.

    Raises:
      CheckpointError: it holds another.
    """
    path = out / GRID_FILE
    settings = settings_as_json(grid) | {"data_contents": store.contents, "privacy": NOT_PRIVATE}
    if path.exists():
        try:
            recorded = json.loads(path.read_text(encoding="utf-8"))
            what = changes_in_words(recorded, settings, (name for name in settings if name not in _MAY_DIFFER))
        except (json.JSONDecodeError, AttributeError) as error:
            raise CheckpointError(
                f"{path}: not the settings of a grid ({error}); give another {setting('out')}"
            ) from error
        if what:
            raise CheckpointError(
                f"{out} holds another grid: {what}. Give the same settings to go on with it (values of "
                f"{', '.join(map(setting, AXES))} may be added), or another {setting('out')}"
            )
        settings |= {axis: _added(recorded[axis], settings[axis]) for axis in AXES}
    write_atomically(path, json_text(settings, indent=2) + "\n")


def _added(before: list[Any], now: list[Any]) -> list[Any]:
    return before + [value for value in now if value not in before]
