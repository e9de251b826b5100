"""One training of a grid: its batches, its blocks, and what is written down of them."""

import dataclasses
import functools
import math
import shutil
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.atomic_files import make_folder
from fedlm.fl_core.clipping.methods import Clipping, method_for
from fedlm.fl_core.exact_sums import MOST_CLIP_NORM
from fedlm.fl_core.randomness import host_rng
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from fedlm.fl_core.runs.files.run_lock import run_lock
from fedlm.models.base import Model, parameter_count
from fedlm.models.precision import resolve_precision, with_precision
from fedlm.models.registry import create_model
from fedlm.models.training_shapes import shapes_of_training
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.laws.measuring.cell_program import CellProgram, StepMeasures, StepNumbers
from fedlm.simulations.laws.measuring.grid import Grid
from fedlm.simulations.laws.measuring.measurements import Measurements, make_measurements, write_measurements
from fedlm.simulations.pretraining.batches.masking import MaskedWords
from fedlm.simulations.pretraining.batches.opening_units import open_units
from fedlm.simulations.pretraining.batches.privacy_units import Units
from fedlm.simulations.pretraining.batches.sampling import ShuffledBatches

CHECKPOINT_SECONDS = 120.0
"""Between two checkpoints of a cell."""


@dataclass(frozen=True)
class GridCell:
    """One training of a grid, a `CellTask`; NOT PRIVATE."""

    grid: Grid
    model: str
    learning_rate: float
    noise_batch_ratio: float
    batch_size: int
    steps: int
    training_examples: int
    seed: int
    folder: Path  # of all cells

    @property
    def name(self) -> str:
        """The name of its files; no two cells of a grid share one."""
        limited = f"_examples-{self.training_examples}" if self.training_examples else ""
        return (
            f"{urllib.parse.quote(self.model, safe='')}_batch-{self.batch_size}_steps-{self.steps}{limited}"
            f"_rate-{self.learning_rate!r}_ratio-{self.noise_batch_ratio!r}_seed-{self.seed}"
        )

    @property
    def directory(self) -> Path:
        """Of its checkpoints, for as long as it has not finished."""
        return self.folder / self.name

    @property
    def result(self) -> Path:
        """The file of what it measured."""
        return self.folder / f"{self.name}.parquet"

    def is_finished(self) -> bool:
        return self.result.exists()

    def run(self, report: Callable[[dict[str, Any]], None]) -> None:
        make_folder(self.directory)
        with run_lock(self.directory):
            if self.is_finished():  # by who held the lock until now
                shutil.rmtree(self.directory, ignore_errors=True)
            else:
                train_cell(self, report)


def train_cell(
    cell: GridCell, report: Callable[[dict[str, Any]], None], checkpoint_seconds: float = CHECKPOINT_SECONDS
) -> None:
    """Train a cell from its last checkpoint, or the beginning, to its end, and write its measurements.

    One that diverges, so that a loss is not finite, ends there; what it measured before is written.

    Args:
      cell: which.
      report: called after every block, with the block's row.
      checkpoint_seconds: how long no checkpoint is written.

    Raises:
      UserError: settings or data do not fit.
    """
    task = _task_of(cell.grid, cell.model)
    batches = CellBatches(task, cell)
    program, heldout = task.program, task.heldout_fields(cell.grid)
    with Checkpoints(cell.directory, keep=1) as checkpoints:
        state, rows = program.first_state(cell.seed), []
        if done := checkpoints.latest_round():
            state = jax.device_put(checkpoints.restore_state(done, state))
            rows = checkpoints.restore_about(done)["rows"]
        saved = time.monotonic()
        while done < cell.steps:
            first, done = done, done + cell.grid.block_steps
            state, measures = program.run_block(
                state,
                batches.block(first, done),
                _numbers(cell, first, done),
                noise_batch_ratio=cell.noise_batch_ratio,
                seed=cell.seed,
            )
            row = {"step": done} | block_row(jax.device_get(measures))
            row["heldout_loss"] = program.loss(state.params, heldout) if heldout else math.nan
            if not math.isfinite(row["loss"]):
                break
            rows.append(row)
            report(row)
            if done < cell.steps and time.monotonic() - saved >= checkpoint_seconds:
                checkpoints.save(done, state, {"rows": rows})
                saved = time.monotonic()
    write_measurements(_measurements(cell, task, rows, batches.examples), cell.result)
    shutil.rmtree(cell.directory)


class CellBatches:
    """The batches of a cell: the same for all models, learning rates and ratios."""

    def __init__(self, task: "_Task", cell: GridCell):
        """Draw which examples the cell trains on."""
        self._task, units = task, task.units
        if 0 < cell.training_examples < units.count:
            drawn = host_rng(cell.seed, "examples of a cell").permutation(units.count)[: cell.training_examples]
            units = _SomeUnits(**{one.name: getattr(units, one.name) for one in dataclasses.fields(Units)}, drawn=drawn)
        self._units = units
        self._batches = ShuffledBatches(units, cell.batch_size, cell.seed)
        self._seed = cell.seed

    def block(self, first: int, last: int) -> dict[str, NDArray[np.int32]]:
        """Make the fields of the model's batch for some steps, but for the weight: int32 [steps, examples, ...]."""
        steps = [self._fields(step) for step in range(first, last)]
        return {name: np.stack([fields[name] for fields in steps]) for name in steps[0]}

    def _fields(self, step: int) -> dict[str, NDArray[np.int32]]:
        return self._task.fields(self._units, self._batches.draw(step), self._seed, step)

    @property
    def examples(self) -> int:
        """How many different ones there are."""
        return self._units.count


@dataclass(frozen=True, eq=False)
class _SomeUnits(Units):
    """Some of all units, numbered anew."""

    drawn: NDArray[np.int64]

    @property
    def count(self) -> int:
        return len(self.drawn)

    def sequences(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        whole = Units(*(getattr(self, one.name) for one in dataclasses.fields(Units)))
        return whole.sequences(self.drawn[indices])


@dataclass(frozen=True)
class _Task:
    """What the cells of one model share."""

    model: Model
    vocabulary_size: int  # of the data
    units: Units
    heldout: Units | None  # None where they are not scored
    program: CellProgram

    def fields(self, units: Units, indices: NDArray[np.int64], seed: int, step: int) -> dict[str, NDArray[np.int32]]:
        """Make the fields of the model's batch of some units: int32 [units, ...]."""
        tokens, _ = units.sequences(indices)
        if self.model.objective == "causal":
            return {"tokens": tokens[:, 0]}
        masked = MaskedWords(self.vocabulary_size, seed)(step, indices, tokens)
        return {name: array[:, 0] for name, array in masked.items()}

    def heldout_fields(self, grid: Grid) -> dict[str, NDArray[np.int32]] | None:
        """Make the fields of the held-out examples that are scored, the same for all cells; None where none are."""
        if self.heldout is None:
            return None
        drawn = host_rng(0, "held-out examples of a grid").permutation(self.heldout.count)[: grid.heldout_examples]
        return self.fields(self.heldout, np.sort(drawn), 0, 0)


@functools.lru_cache(maxsize=1)
def _task_of(grid: Grid, name: str) -> _Task:
    store = TokenStore.open(grid.data)
    precision = resolve_precision(grid.precision, jax.default_backend())
    model = with_precision(create_model(name, store.vocabulary_size, store.special_tokens), precision)
    params, batch = shapes_of_training(name, model, grid.length)
    method, _ = method_for("bookkeeping", model, params, batch)
    clipping = Clipping(method, MOST_CLIP_NORM if grid.clip_norm is None else grid.clip_norm)
    unit = 1.0 if grid.clip_norm is None else grid.clip_norm
    adam = (grid.beta1, grid.beta2, grid.adam_epsilon)
    program = CellProgram(model, clipping, unit, microbatch_size=grid.microbatch_size, precision=precision, adam=adam)
    heldout = open_grid_units(grid, store, "heldout") if grid.heldout_examples else None
    return _Task(model, store.vocabulary_size, open_grid_units(grid, store), heldout, program)


def open_grid_units(grid: Grid, store: TokenStore, split: str = "train") -> Units:
    """Open the examples that a grid trains on, or others."""
    cache = grid.cache or grid.data / "cache"
    return open_units(
        store, split, grid.length, unit="example", packing=grid.packing, sequences_per_unit=1, seed=0, cache=cache
    )


def _numbers(cell: GridCell, first: int, last: int) -> StepNumbers:
    steps = np.arange(first, last, dtype=np.int32)
    schedule = cell.grid.rate_schedule(cell.steps)
    rates = np.array([cell.learning_rate * float(schedule(step)) for step in steps], np.float32)
    return StepNumbers(jnp.asarray(steps), jnp.asarray(rates))


def block_row(measures: StepMeasures) -> dict[str, float]:
    """Summarise the steps of a block, [steps, ...].

    Returns:
      `loss`, nats per predicted token; `loss_error`, its standard error, as that of the ratio of two means over
      examples; and `gradient_noise_scale`, see `noise_scale`.
    """
    losses, tokens = (np.asarray(array, np.float64).reshape(-1) for array in measures[:2])
    loss = losses.sum() / tokens.sum()
    residual = losses - loss * tokens
    error = math.sqrt(residual @ residual * len(losses) / max(len(losses) - 1, 1)) / tokens.sum()
    small, big = (float(np.mean(np.asarray(array, np.float64))) for array in measures[2:])
    examples = np.shape(measures.losses)[1]
    return {"loss": float(loss), "loss_error": error, "gradient_noise_scale": noise_scale(small, big, examples)}


def noise_scale(mean_squared_norm: float, squared_norm_of_mean: float, examples: int) -> float:
    """Estimate the gradient noise scale tr(S) / |G|^2 in examples (McCandlish et al. 2018, "An empirical model of
    large-batch training", appendix A.1, with batches of 1 and of all examples).

    Args:
      mean_squared_norm: of the gradients of single examples, in the mean over a block.
      squared_norm_of_mean: of the mean gradient of a batch, in the mean over a block.
      examples: of a batch.

    Returns:
      The ratio of unbiased estimates; NaN where that of |G|^2 is not positive, or batches have one example.
    """
    if examples < 2:
        return math.nan
    squared_gradient = (examples * squared_norm_of_mean - mean_squared_norm) / (examples - 1)
    trace = (mean_squared_norm - squared_norm_of_mean) * examples / (examples - 1)
    return trace / squared_gradient if squared_gradient > 0 else math.nan


def _measurements(cell: GridCell, task: _Task, rows: list[dict[str, float]], examples: int) -> Measurements:
    columns = {name: [row[name] for row in rows] for name in _MEASURED}
    return make_measurements(
        model=[cell.model] * len(rows),
        parameters=parameter_count(task.model),
        non_embedding_parameters=non_embedding_parameters(task.model),
        learning_rate=cell.learning_rate,
        noise_batch_ratio=cell.noise_batch_ratio,
        batch_size=cell.batch_size,
        length=cell.grid.length,
        steps=cell.steps,
        seed=cell.seed,
        training_examples=examples,
        **columns,
    )


_MEASURED = ("step", "loss", "loss_error", "gradient_noise_scale", "heldout_loss")
_EMBEDDINGS = {"embedding", "positions", "token_types", "output_bias", "output"}


def non_embedding_parameters(model: Model) -> int:
    """Count a model's parameters but for those of embeddings and output layers, as Kaplan et al. 2020 do."""
    leaves = jax.tree_util.tree_leaves_with_path(jax.eval_shape(model.init, jax.random.key(0)))
    return sum(leaf.size for path, leaf in leaves if getattr(path[0], "key", None) not in _EMBEDDINGS)
