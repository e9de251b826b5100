import dataclasses
from itertools import pairwise

import numpy as np
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.laws.fit import surface_held_out
from fedlm.simulations.laws.held_out import held_out_errors, random_cells
from fedlm.simulations.laws.surface.fitted_losses import SurfaceSettings
from tests.support.synthetic_laws import PUBLISHED, SMALL, Truth

TRUTH = Truth(batch_size=32)
MEASUREMENTS = dataclasses.replace(SMALL, example_spread=0.0, seed_spread=0.0, glitches=0.0).measure(TRUTH)


def knowing(factor=1.0, seen=None):
    """Return a fit that knows the truth, off by a factor, and notes what it was shown."""

    def fit(kept):
        if seen is not None:
            seen.append(kept)
        return lambda rows: factor * TRUTH.loss(rows.parameters, rows.step, rows.noise_batch_ratio)

    return fit


class TestErrors:
    def test_what_the_fit_is_off_by_is_found(self):
        found = held_out_errors(MEASUREMENTS, knowing(1.01))
        assert set(found) == {"cells", "largest_model", "longest_runs"}
        for error in found.values():
            assert np.isclose(error["mean_relative_error"], 0.01)
            assert np.isclose(error["max_relative_error"], 0.01)
            assert error["points_out_of_reach"] == 0
        assert found["cells"]["cells"] == 5
        assert found["cells"]["points"] == 5 * 3
        assert found["largest_model"]["points"] == 6 * 3
        assert found["longest_runs"]["points"] == 30

    def test_the_best_learning_rate_counts_and_seeds_are_averaged(self):
        random = np.random.default_rng(0)
        scattered = (
            MEASUREMENTS.loss * np.where(MEASUREMENTS.seed == 0, 1.02, 0.98) * random.choice([0.999, 1.001], 5760)
        )
        found = held_out_errors(dataclasses.replace(MEASUREMENTS, loss=scattered), knowing())
        assert max(error["max_relative_error"] for error in found.values()) < 0.001

    def test_nothing_that_is_held_out_is_shown_to_the_fit(self):
        seen = []
        held_out_errors(MEASUREMENTS, knowing(seen=seen))
        cells, models, halves = seen
        assert len({*zip(cells.model, cells.noise_batch_ratio, strict=True)}) == 25
        assert "model4" not in models.model
        assert halves.step.max() == 512
        assert (halves.steps == 512).all()  # or they would be trainings that have not ended
        # Schedules of several lengths lose the longest.
        shorter = dataclasses.replace(MEASUREMENTS, steps=MEASUREMENTS.steps // 2).where(MEASUREMENTS.step <= 512)
        found = held_out_errors(MEASUREMENTS.joined([shorter]), knowing(seen=seen))
        assert set(seen[-1].steps) == {512}
        assert found["longest_runs"]["points"] == 3 * 30

    def test_what_leaves_too_little_is_left_out_and_what_is_out_of_reach_counted(self):
        def fit(kept):
            if len(set(kept.model)) < 5:
                raise DataError("too few models")
            return lambda rows: np.full(len(rows), np.nan)

        found = held_out_errors(MEASUREMENTS, fit)
        assert set(found) == {"cells", "longest_runs"}
        assert (found["cells"]["points_out_of_reach"], found["cells"]["points"]) == (15, 0)
        assert np.isnan(found["cells"]["mean_relative_error"])

    def test_cells_lie_between_others(self):
        ratios = np.unique(MEASUREMENTS.noise_batch_ratio)[1:]
        for seed in range(5):
            chosen = random_cells(MEASUREMENTS, seed, 0.4)
            for model in np.unique(MEASUREMENTS.model):
                gone = np.isin(ratios, MEASUREMENTS.where(chosen & (MEASUREMENTS.model == model)).noise_batch_ratio)
                assert not gone[0]
                assert not gone[-1]
                assert not any(one and two for one, two in pairwise(gone))


class TestSurfaces:
    @pytest.mark.long
    @pytest.mark.parametrize("method", ["paper", "code"])
    def test_held_out_cells_of_a_grid_as_fine_as_the_published_are_predicted_within_one_percent(self, method):
        # With 102,400 examples a block, noise is far below the limit for whatever root.
        grid = dataclasses.replace(PUBLISHED, block=1000, seeds=2, seed_spread=0.001, glitches=0.001)
        settings = SurfaceSettings(method=method, draws=0)
        found = surface_held_out(grid.measure(Truth()), settings)
        assert found["cells"]["points"] == 3 * 25
        assert found["cells"]["max_relative_error"] < 0.01
        assert found["longest_runs"]["max_relative_error"] < 0.01
