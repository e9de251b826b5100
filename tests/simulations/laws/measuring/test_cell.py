"""One training of a grid: its steps are those of central training, its noise has the deviation that it says, and what
is measured is what was computed."""

import itertools
import math
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from scipy import stats

from fedlm.fl_core.clipping.methods import Clipping
from fedlm.models.base import Batch, parameter_count
from fedlm.models.registry import create_model
from fedlm.simulations.laws.measuring import cell as cell_module
from fedlm.simulations.laws.measuring.cell import (
    CellBatches,
    GridCell,
    block_row,
    noise_scale,
    non_embedding_parameters,
    train_cell,
)
from fedlm.simulations.laws.measuring.cell_program import StepMeasures, add_noise
from fedlm.simulations.laws.measuring.grid import Grid
from fedlm.simulations.laws.measuring.measurements import read_measurements
from fedlm.simulations.pretraining.microbatches import StepRules
from fedlm.simulations.pretraining.trainer import Trainer
from tests.simulations.laws.tiny_model import NAME as TINY
from tests.simulations.laws.tiny_model import WIDTH

LENGTH, BATCH = 8, 6
leaves = jax.tree_util.tree_leaves


def make_cell(store: Path, folder: Path, model: str = TINY, ratio: float = 0.0, **settings) -> GridCell:
    examples = settings.pop("examples", 0)
    axes = {"models": (model,), "learning_rates": (2.0**-7,), "noise_batch_ratios": (ratio,), "batch_sizes": (BATCH,)}
    chosen = {"steps": (12,), "warmup_steps": 3, "block_steps": 4, "cache": folder / "cache"} | settings
    grid = Grid(**axes, training_examples=(examples,), data=store, length=LENGTH, **chosen)
    return GridCell(grid, model, 2.0**-7, ratio, BATCH, 12, examples, 3, folder / "cells")


def task_of(cell: GridCell):
    return cell_module._task_of(cell.grid, cell.model)


def trained(cell: GridCell):
    """Train without files. Returns the state before the first step, that after the last, and the measures."""
    task = task_of(cell)
    first = jax.device_get(task.program.first_state(cell.seed))
    state, measures = jax.device_put(first), []
    batches = CellBatches(task, cell)
    for start in range(0, cell.steps, cell.grid.block_steps):
        stop = start + cell.grid.block_steps
        numbers = cell_module._numbers(cell, start, stop)
        state, found = task.program.run_block(
            state, batches.block(start, stop), numbers, noise_batch_ratio=cell.noise_batch_ratio, seed=cell.seed
        )
        measures.append(jax.device_get(found))
    return first, jax.device_get(state), measures


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "clip_norm", "microbatch_size"),
    [
        (TINY, None, None),
        (TINY, 0.5, 2),
        pytest.param("transformer_1x32", 0.5, None, marks=pytest.mark.thorough),
    ],
)
def test_steps_are_those_of_central_training(small_store, tmp_path, model, clip_norm, microbatch_size):
    # Central training rounds sums, which Adam would see in coordinates of hardly any gradient.
    settings = {"clip_norm": clip_norm, "microbatch_size": microbatch_size, "adam_epsilon": 1e-3}
    cell = make_cell(small_store, tmp_path, model, **settings)
    first, last, measures = trained(cell)
    task = task_of(cell)
    grid = cell.grid
    schedule = grid.rate_schedule(cell.steps)
    optimizer = optax.adam(lambda step: cell.learning_rate * schedule(step), grid.beta1, grid.beta2, grid.adam_epsilon)
    rules = StepRules(clip_norm and Clipping("bookkeeping", clip_norm), 0.0, BATCH, BATCH)
    trainer = Trainer(task.model, optimizer, rules, "data", devices=jax.devices()[:1])
    state = trainer.place(trainer.fresh(first.params))
    batches = CellBatches(task, cell)
    losses = []
    for step in range(cell.steps):
        rows = batches.block(step, step + 1)["tokens"][0][:, None]
        filled = np.zeros((trainer.chunk_units - BATCH, *rows.shape[1:]), np.int32)
        chunk = {"tokens": np.concatenate([rows, filled]), "weight": np.zeros((trainer.chunk_units, 1), np.float32)}
        chunk["weight"][:BATCH] = 1
        totals = trainer.add(state.params, trainer.zero(), chunk)
        state, report = trainer.step(state, totals, None)
        losses.append(float(report.totals.loss[()] / report.totals.tokens[()]))
    np.testing.assert_allclose(
        [row.losses.sum(axis=1) / row.tokens.sum(axis=1) for row in measures],
        np.reshape(losses, (-1, grid.block_steps)),
        rtol=2e-4,
    )
    for ours, theirs, before in zip(
        *(leaves(params) for params in (last.params, trainer.whole(state).params, first.params)), strict=True
    ):
        assert np.abs(theirs - before).max() > 0.005
        # Central training clips to 1 - 2^-11 of the norm, which Adam hardly sees.
        np.testing.assert_allclose(ours, theirs, atol=2e-4)


@pytest.mark.long
def test_noise_on_the_mean_has_the_ratio_for_its_deviation_and_is_independent(small_store, tmp_path):
    """A chi-square test of more than 10 thousand coordinates, of which one in a million fails, and Kolmogorov-Smirnov
    and correlation tests, of which one in a hundred thousand fails."""
    ratio, found = 2.0**-6, []
    for one in (0.0, ratio):
        cell = make_cell(small_store, tmp_path, ratio=one)
        task = task_of(cell)
        numbers = cell_module._numbers(cell, 0, 1)
        state = task.program.first_state(cell.seed)
        block = CellBatches(task, cell).block(0, 1)
        state, _ = task.program.run_block(state, block, numbers, noise_batch_ratio=one, seed=cell.seed)
        found.append(np.concatenate([np.ravel(leaf) for leaf in leaves(state.optimizer.mu)]).astype(np.float64))
    noise = (found[1] - found[0]) / (1 - cell.grid.beta1)
    assert len(noise) > 10_000
    assert 5e-7 < stats.chi2.cdf(np.sum(noise**2) / ratio**2, len(noise)) < 1 - 5e-7
    zeros = {"a": np.zeros(20_000, np.float32), "b": np.zeros((100, 200), np.float32)}
    drawn = [add_noise(zeros, np.float32(2.0), jax.random.key(0), np.int32(step)) for step in (0, 1)]
    series = [np.ravel(leaf) for tree in drawn for leaf in leaves(tree)]
    assert stats.kstest(np.concatenate(series) / 2, "norm").pvalue > 1e-6
    for one, other in itertools.combinations(series, 2):
        assert stats.pearsonr(one, other).pvalue > 1e-6


@pytest.mark.long
def test_an_interrupted_cell_ends_with_the_same_bits(small_store, tmp_path, monkeypatch):
    cell = make_cell(small_store, tmp_path, ratio=2.0**-8)
    rows = []
    train_cell(cell, rows.append)
    whole = cell.result.read_bytes()
    assert [row["step"] for row in rows] == [4, 8, 12]
    assert not cell.directory.exists()
    cell.result.unlink()

    def stop(row):
        if row["step"] == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_cell(cell, stop, checkpoint_seconds=0.0)
    assert not cell.is_finished()
    again = []
    train_cell(cell, again.append)
    assert [row["step"] for row in again] == [8, 12]
    assert again == rows[1:]
    assert cell.result.read_bytes() == whole


def test_measurements_say_what_was_trained_until_it_diverged(small_store, tmp_path, monkeypatch):
    cell = make_cell(small_store, tmp_path, ratio=2.0**-8)
    rows = []
    monkeypatch.setattr(
        cell_module, "block_row", lambda measures: block_row(measures) | ({"loss": math.nan} if len(rows) == 2 else {})
    )
    train_cell(cell, rows.append)
    found = read_measurements(cell.result)
    assert found.step.tolist() == [4, 8]
    vocabulary = task_of(cell).vocabulary_size
    assert set(found.parameters) == {parameter_count(create_model(TINY, vocabulary))}
    assert set(found.non_embedding_parameters) == {WIDTH**2}
    said = zip(found.learning_rate, found.noise_batch_ratio, found.steps, found.seed, strict=True)
    assert set(said) == {(2.0**-7, 2.0**-8, 12, 3)}
    assert np.all((found.loss > 3) & (found.loss < 6) & (found.loss_error > 0) & (found.loss_error < 0.3))


def test_parameters_without_embeddings_are_those_between_input_and_output():
    for name in ("bert_tiny", "transformer_2x64", "cifg_tiny"):
        model, smaller = create_model(name, 500), create_model(name, 400)
        counts = [non_embedding_parameters(one) for one in (model, smaller)]
        assert counts[0] == counts[1] < parameter_count(smaller)


def test_few_training_examples_are_repeated(small_store, tmp_path):
    few, all_of_them = (
        CellBatches(task_of(cell), cell).block(0, 8)["tokens"].reshape(-1, LENGTH + 1)
        for cell in (make_cell(small_store, tmp_path, examples=examples) for examples in (2 * BATCH, 0))
    )
    assert len(np.unique(few, axis=0)) <= 2 * BATCH < len(np.unique(all_of_them, axis=0))
    np.testing.assert_array_equal(*(np.unique(few[half], axis=0) for half in (slice(0, 12), slice(12, 24))))


def test_the_loss_of_a_block_is_per_token_with_its_standard_error():
    """Of a thousand blocks the error is within 10 % of the deviation of their losses, ten times that of chance."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(1000):
        tokens = rng.integers(1, 9, (4, 25)).astype(float)
        losses = tokens * 3.0 + rng.normal(size=tokens.shape) * np.sqrt(tokens)
        found.append(block_row(StepMeasures(losses, tokens, np.ones(4), np.ones(4) / 2)))
    assert abs(np.mean([row["loss"] for row in found]) - 3.0) < 0.01
    assert np.mean([row["loss_error"] for row in found]) == pytest.approx(
        np.std([row["loss"] for row in found]), rel=0.1
    )


def test_the_gradient_noise_scale_is_that_of_the_gradients():
    """Gradients drawn around a mean, 4000 batches: trace and squared norm are known; the estimate is within 5 %, about
    five standard errors."""
    rng = np.random.default_rng(0)
    mean, deviation, examples = np.full(50, 0.2), 0.5, 8
    gradients = mean + deviation * rng.normal(size=(4000, examples, 50))
    small = np.mean(np.sum(gradients**2, axis=2))
    big = np.mean(np.sum(np.mean(gradients, axis=1) ** 2, axis=1))
    assert noise_scale(small, big, examples) == pytest.approx(deviation**2 * 50 / np.sum(mean**2), rel=0.05)
    assert math.isnan(noise_scale(1.0, 0.1, 8))
    assert math.isnan(noise_scale(1.0, 1.0, 1))


@pytest.mark.long
def test_norms_are_those_of_clipped_gradients(small_store, tmp_path):
    cell = make_cell(small_store, tmp_path, clip_norm=0.25)
    task = task_of(cell)
    fields = CellBatches(task, cell).block(0, 1)
    state = task.program.first_state(cell.seed)

    def loss(params, tokens):
        sums = task.model.loss(params, Batch(tokens[None], np.ones(1, np.float32)))
        return (sums.loss / sums.tokens)[0]

    gradients = jax.vmap(jax.grad(loss), (None, 0))(state.params, fields["tokens"][0])
    flat = np.concatenate([np.reshape(leaf, (BATCH, -1)) for leaf in leaves(gradients)], axis=1).astype(np.float64)
    norms = np.linalg.norm(flat, axis=1)
    flat *= np.minimum(1, 0.25 / norms)[:, None] / 0.25
    numbers = cell_module._numbers(cell, 0, 1)
    _, found = task.program.run_block(state, fields, numbers, noise_batch_ratio=0.0, seed=cell.seed)
    assert found.mean_squared_norm[0] == pytest.approx(np.mean(np.sum(flat**2, axis=1)), rel=1e-3)
    assert found.squared_norm_of_mean[0] == pytest.approx(np.sum(np.mean(flat, axis=0) ** 2), rel=1e-3)


@pytest.mark.long
def test_held_out_examples_are_scored_after_every_block(small_store, tmp_path):
    cell = make_cell(small_store, tmp_path, heldout_examples=20, microbatch_size=3)
    task = task_of(cell)
    train_cell(cell, lambda row: None)
    found = read_measurements(cell.result)
    fields = task.heldout_fields(cell.grid)
    assert fields["tokens"].shape == (20, LENGTH + 1)
    _, last, _ = trained(cell)
    sums = task.model.loss(last.params, Batch(fields["tokens"], np.ones(20, np.float32)))
    assert found.heldout_loss[-1] == pytest.approx(float(np.sum(sums.loss) / np.sum(sums.tokens)), rel=1e-5)
    assert len(set(found.heldout_loss)) == 3
    assert set(found.training_examples) == {task.units.count}
