import dataclasses
import functools
import itertools

import numpy as np
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.laws.surface.fitted_losses import SurfaceSettings
from fedlm.simulations.laws.surface.surface_fit import fit_surface
from tests.support.synthetic_laws import PUBLISHED, SMALL, Truth

METHODS = ["paper", "code"]
TRUTH = Truth(batch_size=32)
THIN = dataclasses.replace(PUBLISHED, block=1000, glitches=0.0)


def fitted(measurements, method="paper", draws=0, **settings):
    return fit_surface(measurements, SurfaceSettings(method=method, draws=draws, **settings))


def errors(surface, truth, least_steps, most_steps):
    sizes, steps, ratios = np.meshgrid(
        surface.parameters, surface.steps, surface.noise_batch_ratios, indexing="ij", sparse=True
    )
    relative = surface.loss / truth.loss(sizes, steps, ratios) - 1
    return relative[:, (surface.steps >= least_steps) & (surface.steps <= most_steps)]


@functools.cache
def published_surface(method):
    return fitted(PUBLISHED.measure(Truth()), method)


class TestTruth:
    @pytest.mark.long
    @pytest.mark.parametrize("method", METHODS)
    def test_known_losses_are_recovered(self, method):
        surface = published_surface(method)
        assert np.abs(errors(surface, Truth(), 16_000, 128_000)).max() < 0.01
        kept = (surface.steps >= 16_000) & (surface.steps <= 128_000)
        quiet = Truth().loss(surface.parameters[:, None], surface.steps, 0)
        assert np.abs(surface.noiseless / quiet - 1)[:, kept].max() < 0.01

    @pytest.mark.long
    def test_the_longest_training_doubled_is_foretold(self):
        surface = fitted(dataclasses.replace(THIN, example_spread=0.0).measure(Truth()), rolling=0)
        assert surface.measured_steps == 128_000
        assert surface.steps[-1] == 128_000 * 2**6
        assert np.abs(errors(surface, Truth(), 250_000, 260_000)).max() < 1e-3
        # What E, A and alpha come to at a hundredth more is what they come to: 6 / N^0.12 goes on without a limit.
        assert np.abs(errors(surface, Truth(), 500_000, 1e7)).max() < 0.02

    def test_rises_with_noise_everywhere_and_falls_with_steps_where_it_was_measured(self):
        # Where noise does nothing, chance alone orders the ratios.
        same = dataclasses.replace(TRUTH, C=0.0, curvature=0.0)
        for method, truth in itertools.product(METHODS, (TRUTH, same)):
            surface = fitted(SMALL.measure(truth), method)
            measured = surface.loss[:, surface.steps <= 1024]
            assert (np.diff(measured, axis=1) <= 0).all()
            assert (np.diff(surface.loss, axis=2) >= 0).all()
            # The code has one limit a model, the paper one a ratio.
            assert ((np.ptp(surface.curves[..., 0], axis=1) == 0) == (method == "code")).all() or truth is same

    def test_the_best_measured_learning_rate_is_known(self):
        surface, ratios = fitted(SMALL.measure(TRUTH)), 2.0 ** -np.arange(14, 5, -2)
        assert np.array_equal(surface.learning_rate(660_000, 512, ratios), TRUTH.best_rate(ratios))
        assert surface.learning_rate(660_000, 1024, 0) == 2.0**-7


class TestOptimum:
    @pytest.mark.long
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize(("compute", "people"), [(1e18, 1e7), (1e20, 1e9), (1e22, 1e7)])
    def test_the_best_training_of_a_budget_is_within_one_percent_of_the_truth(self, method, compute, people):
        surface = published_surface(method)
        sizes, batches = np.meshgrid(np.geomspace(4.6e6, 770e6, 100), 2.0 ** np.arange(0, 25, 0.25))
        steps = compute / (6 * 512 * sizes * batches)
        # Noise that costs one epsilon: what composition asks for, and at least 0.5.
        ratios = np.maximum(0.5, 4 * np.sqrt(steps) * batches / people) / batches
        truth = np.where((steps >= 1000) & (steps <= 8e6), Truth().loss(sizes, steps, ratios), np.nan)
        inside = (ratios >= 2.0**-23) & (ratios <= 2.0**-6)
        truth = np.where(inside, truth, np.nan)
        predicted = np.where(np.isfinite(truth), surface.predict(sizes, steps, ratios), np.nan)
        chosen = np.unravel_index(np.nanargmin(predicted), predicted.shape)
        assert truth[chosen] <= 1.01 * np.nanmin(truth)
        # The best trainings are short here, where the paper's rolling mean is of losses before.
        assert np.isclose(predicted[chosen], truth[chosen], rtol=0.01 if method == "code" else 0.04)


class TestMethods:
    @pytest.mark.long
    def test_the_paper_averages_what_came_before_and_the_code_drops_what_came_first(self):
        measurements = THIN.measure(Truth())
        paper, code = fitted(measurements, "paper", rolling=5), fitted(measurements, "code", drop_before=4000)
        assert paper.steps[0] == 1000
        assert code.steps[0] == 4000
        early = [errors(surface, Truth(), 4000, 8000).mean() for surface in (paper, code)]
        assert early[0] > 0.01 > early[1]


ODD = np.arange(5760) % 2 + 31


class TestUnfinishedGrids:
    MEASUREMENTS = SMALL.measure(TRUTH)

    def test_a_ratio_without_training_is_filled_in_between_others(self):
        without = (self.MEASUREMENTS.model == "model1") & (self.MEASUREMENTS.noise_batch_ratio == 2.0**-10)
        surface = fitted(self.MEASUREMENTS.where(~without), interpolation="linear")
        whole = fitted(self.MEASUREMENTS)
        beside = whole.loss[1][:, [1, 3]].mean(axis=1)
        assert np.allclose(surface.loss[1, :, 2], beside, rtol=1e-12)
        cubic = fitted(self.MEASUREMENTS.where(~without)).loss[1, :, 2]
        off, farther = (np.abs(found / whole.loss[1, :, 2] - 1).mean() for found in (cubic, beside))
        assert off < 0.7 * farther
        assert (
            "6 of 180 trainings of the grid are missing; no training at all of model1 at 0.000976562." in surface.notes
        )

    @pytest.mark.long
    def test_at_the_end_of_the_ratios_nothing_is_filled_in(self):
        without = (self.MEASUREMENTS.model == "model4") & (self.MEASUREMENTS.noise_batch_ratio == 2.0**-6)
        surface = fitted(self.MEASUREMENTS.where(~without), "code", draws=4)
        assert np.isnan(surface.predict(3_280_000, 512, 2.0**-6))
        assert np.isfinite(surface.predict([3_280_000, 1_870_000], 512, [2.0**-8, 2.0**-6])).all()
        assert np.isfinite(surface.band(3_280_000, 512, 2.0**-8)).all()

    def test_trainings_that_have_not_ended_or_are_on_fewer_examples_are_left_out(self):
        last = (self.MEASUREMENTS.seed == 1) & (self.MEASUREMENTS.model == "model4")
        surface = fitted(self.MEASUREMENTS.where(~(last & (self.MEASUREMENTS.step > 512))))
        assert "18 of 180 trainings have not ended and are left out." in surface.notes
        assert np.array_equal(surface.loss, fitted(self.MEASUREMENTS.where(~last)).loss)
        examples = np.where(last, 1000, 50_000)
        surface = fitted(dataclasses.replace(self.MEASUREMENTS, training_examples=examples))
        assert "576 blocks of trainings on fewer examples than 50,000 are left out." in surface.notes
        assert np.array_equal(surface.loss, fitted(self.MEASUREMENTS.where(~last)).loss)

    def test_without_noiseless_trainings_the_limit_is_of_the_least_noise(self):
        surface = fitted(self.MEASUREMENTS.where(self.MEASUREMENTS.noise_batch_ratio > 0), "code", draws=3)
        assert np.isnan(surface.predict(3_280_000, 512, 0))
        assert any(note.startswith("There is no training without noise") for note in surface.notes)
        assert surface.curves.shape == (5, 6, 3)

    @pytest.mark.long
    def test_trainings_of_two_lengths_make_one_grid(self):
        longer = dataclasses.replace(SMALL, parameters=(660_000,), steps=2048, block=64).measure(TRUTH)
        longer = dataclasses.replace(longer, model=np.full(len(longer), "model2", object))
        surface = fitted(self.MEASUREMENTS.joined([longer]))
        assert surface.measured_steps == 1024
        assert np.isfinite(surface.loss[:, 1:]).all()
        assert np.isclose(surface.predict(660_000, 2048, 2.0**-10), TRUTH.loss(660_000, 2048, 2.0**-10), rtol=0.02)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"step": 512}, "none of 180 trainings has ended; finish some of them first"),
            ({"batch_size": ODD}, "batch sizes 31, 32, and a fit is for one: choose it with batch"),
            ({"length": ODD}, "examples of 31, 32 tokens, and a fit is for one length"),
            ({"parameters": np.arange(5760)}, "models and numbers of parameters do not belong one to one"),
            ({}, "2 blocks end at step 0 or later, but a fit needs at least 3"),
        ],
    )
    def test_what_no_grid_can_be_made_of_is_refused(self, change, message):
        columns = {name: np.broadcast_to(value, 5760) for name, value in change.items()}
        few = dataclasses.replace(SMALL, block=512).measure(TRUTH)
        with pytest.raises(DataError, match=message):
            fitted(dataclasses.replace(self.MEASUREMENTS, **columns) if change else few)


class TestBands:
    @pytest.mark.thorough
    @pytest.mark.parametrize("seeds", [1, 2])
    def test_bands_cover_at_their_level(self, seeds):
        grid = dataclasses.replace(SMALL, glitches=0.0, seeds=seeds, seed_spread=0.002 * (seeds > 1))
        covered = []
        for root in range(20):
            surface = fitted(grid.measure(TRUTH, root), "code", draws=100)
            kept = (surface.steps > 128) & (surface.steps <= 1024)
            sizes, steps, ratios = np.meshgrid(
                surface.parameters, surface.steps[kept], surface.noise_batch_ratios, indexing="ij"
            )
            low, high = surface.band(sizes, steps, ratios, level=0.9)
            truth = TRUTH.loss(sizes, steps, ratios)
            covered.append(((low <= truth) & (truth <= high)).mean())
        # Of a grid, 0.93 was covered with one seed and 0.91 with two; grids scatter by 0.02 and 0.04 about that, and
        # the mean of twenty by a fifth of that. The limits are 4 of these away: one in 10,000 fails by chance.
        assert 0.87 < np.mean(covered) < 0.95
