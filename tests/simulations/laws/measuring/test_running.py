"""A grid in its folder: it goes on, it grows, and another is refused."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.simulations.laws.measuring import cell as cell_module
from fedlm.simulations.laws.measuring.cell import block_row
from fedlm.simulations.laws.measuring.grid import PRESETS, Grid
from fedlm.simulations.laws.measuring.measurements import write_measurements
from fedlm.simulations.laws.measuring.running import list_cells, run_grid
from tests.simulations.laws.tiny_model import NAME as TINY


class InThisProcess:
    """Executes cells one after another, and counts them."""

    def __init__(self, stop_after=None):
        self.ran, self._stop_after = [], stop_after

    def execute(self, cells, observe, total):
        for cell in cells:
            if len(self.ran) == self._stop_after:
                raise KeyboardInterrupt
            cell.run(lambda row, cell=cell: observe(cell, row))
            self.ran.append(cell.name)
        return {}


@pytest.fixture
def grid(small_store, tmp_path):
    return Grid(
        **{"models": (TINY,), "learning_rates": (0.01,), "noise_batch_ratios": (0.0, 0.001), "batch_sizes": (4,)},
        **{"steps": (4,), "data": small_store, "cache": tmp_path / "cache", "length": 8},
        **{"warmup_steps": 1, "block_steps": 2},
    )


@pytest.mark.long
def test_a_grid_goes_on_and_grows(grid, tmp_path):
    out, seen = tmp_path / "grid", []
    with pytest.raises(KeyboardInterrupt):
        run_grid(grid, out, InThisProcess(stop_after=1), seen.append)
    assert [(one.finished, one.cells, one.flops < one.total_flops) for one in seen] == [(0, 2, True), (1, 2, True)]
    assert len(run_grid(grid, out, first := InThisProcess()).measurements) == 4
    assert len(first.ran) == 1
    more = dataclasses.replace(grid, learning_rates=(0.02, 0.01))
    found = run_grid(more, out, second := InThisProcess())
    assert len(second.ran) == 2
    assert (found.cells, len(found.measurements), found.failures) == (4, 8, {})
    record = json.loads((out / "grid.json").read_text())
    assert record["learning_rates"] == [0.01, 0.02]
    assert record["privacy"].startswith("NOT PRIVATE")
    # A part of it is no other grid.
    assert len(run_grid(grid, out, InThisProcess()).measurements) == 8
    assert json.loads((out / "grid.json").read_text())["learning_rates"] == [0.01, 0.02]
    assert not list((out / "cells").glob("*/"))
    for change in ({"clip_norm": 0.5}, {"length": 4}, {"block_steps": 1}, {"schedule": "linear", "final_rate": 0.0}):
        with pytest.raises(CheckpointError, match=f"holds another grid: {next(iter(change))} was"):
            run_grid(dataclasses.replace(grid, **change), out, InThisProcess())


@pytest.mark.long
def test_a_grid_goes_on_from_its_table_alone(grid, tmp_path):
    out = tmp_path / "grid"
    more = dataclasses.replace(grid, noise_batch_ratios=(0.0,), seeds=(0, 1), training_examples=(0, 6))
    whole = run_grid(more, out, InThisProcess()).measurements
    kept = tmp_path / "kept"
    kept.mkdir()
    shutil.copy(out / "grid.json", kept)
    write_measurements(whole.where(whole.seed == 0), kept / "measurements.parquet")
    again = run_grid(more, kept, ran := InThisProcess()).measurements
    assert len(ran.ran) == 2
    assert all("seed-1" in name for name in ran.ran)
    assert (kept / "measurements.parquet").read_bytes() == (out / "measurements.parquet").read_bytes()
    assert len(again) == len(whole)


@pytest.mark.long
def test_cells_that_diverged_are_told(grid, tmp_path, monkeypatch):
    run_grid(grid, tmp_path / "grid", InThisProcess())
    monkeypatch.setattr(cell_module, "block_row", lambda measures: block_row(measures) | {"loss": math.nan})
    more = dataclasses.replace(grid, noise_batch_ratios=(0.0, 0.001, 0.5))
    found = run_grid(more, tmp_path / "grid", InThisProcess())
    assert [(cell.noise_batch_ratio, steps) for cell, steps in found.diverged.items()] == [(0.5, 0)]
    assert len(found.measurements) == 4


def test_a_folder_with_something_else_is_refused(grid, tmp_path):
    for file in ("comparison.json", "store.json", "summary.json"):
        folder = tmp_path / file.removesuffix(".json")
        folder.mkdir()
        (folder / file).write_text("{}")
        with pytest.raises(CheckpointError, match="but a grid of trainings would be written there; give another out"):
            run_grid(grid, folder, InThisProcess())
        assert not (folder / "cells").exists()
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "grid.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"grid\.json: not the settings of a grid"):
        run_grid(grid, tmp_path / "grid", InThisProcess())
    with pytest.raises(ConfigurationError, match=r"batch_sizes has 1000000, but .* examples of 8 tokens"):
        run_grid(dataclasses.replace(grid, batch_sizes=(10**6,)), tmp_path / "many", InThisProcess())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rates": ()}, "learning_rates is \\(\\), but must name at least one value"),
        ({"seeds": (1, 1)}, "seeds is \\(1, 1\\), but must name .* only once"),
        ({"clip_norm": None}, "noise_batch_ratios are in clip norms, but clip_norm is None"),
        ({"steps": (5,)}, "steps has 5, but must have multiples of block_steps, 2"),
        ({"microbatch_size": 3}, "batch_sizes has 4, but must have multiples of microbatch_size, 3"),
        ({"training_examples": (3,)}, "training_examples has 3, but must not be below a batch size, 4"),
        ({"warmup_steps": 4}, "warmup_steps is 4, but must lie between 0 and steps - 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(grid, change, message):
    with pytest.raises(ConfigurationError, match=message):
        dataclasses.replace(grid, **change)


def test_presets_are_grids_of_cells_with_files_of_their_own(tmp_path):
    for preset, values in PRESETS.items():
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
        listed = list_cells(compose(Grid, data=Path("store"), **values), tmp_path)
        assert len(listed) == len({cell.name for cell in listed}) == len({cell.directory for cell in listed}) > 20, (
            preset
        )
        costs = [(cell.seed, cell.batch_size * cell.steps) for cell in listed if cell.model == listed[0].model]
        assert costs == sorted(costs)


def test_the_published_grid_is_that_of_the_paper():
    """McKenna et al. 2025, section 3.2."""
    grid = PRESETS["mckenna2025"]
    assert grid["noise_batch_ratios"] == [0.0, *(2.0**-power for power in range(23, 5, -1))]
    assert sorted(grid["learning_rates"]) == [2.0**-9, 2.0**-8, 2.0**-7]
    assert (grid["batch_sizes"][0] * grid["steps"][0], grid["length"]) == (131_072_000, 512)
    assert grid["steps"][0] // grid["block_steps"] == 1280
