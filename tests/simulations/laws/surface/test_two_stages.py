import dataclasses

import numpy as np
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.laws.fit import surface_held_out
from fedlm.simulations.laws.surface.fitted_losses import SurfaceSettings
from fedlm.simulations.laws.surface.surface_fit import fit_surface
from tests.support.synthetic_laws import Grid, Truth

TRUTH = Truth(B=60.0, b=0.3)
GRID = Grid(
    parameters=(4.5e6, 29e6, 109e6, 335e6),
    ratios=(0.0, *(2.0**-power for power in range(18, 7, -1))),
    steps=128_000,
    block=2000,  # of the longest, the last alone is averaged
    seeds=2,
    learning_rates=tuple(2.0 ** (power / 2) for power in range(-20, -11)),
    seed_spread=0.001,
)


def trainings(grid=GRID, lengths=(8000, 16_000, 32_000, 64_000, 128_000), truth=TRUTH):
    """Return the trainings of several lengths: those on their way are too bad by a twentieth of the loss."""
    parts = []
    for root, steps in enumerate(lengths):
        part = dataclasses.replace(grid, steps=steps).measure(truth, seed=root)
        parts.append(dataclasses.replace(part, loss=np.where(part.step < steps * 0.98, 1.05, 1.0) * part.loss))
    return parts[0].joined(parts[1:])


def fitted(measurements, draws=0, **settings):
    return fit_surface(measurements, SurfaceSettings(method="two-stage", draws=draws, **settings))


@pytest.fixture(scope="module")
def whole():
    return trainings()


class TestTwoStages:
    def test_losses_and_curves_are_recovered_from_final_losses_alone(self, whole):
        surface = fitted(whole)
        sizes, steps, ratios = np.meshgrid(
            surface.parameters, surface.steps[surface.steps <= 256_000], surface.noise_batch_ratios, indexing="ij"
        )
        assert np.abs(surface.predict(sizes, steps, ratios) / TRUTH.loss(sizes, steps, ratios) - 1).max() < 0.005
        quiet = surface.predict(sizes, steps, 0) / TRUTH.loss(sizes, steps, 0)
        assert np.abs(quiet - 1).max() < 0.005
        exact = dataclasses.replace(GRID, example_spread=0.0, seed_spread=0.0)
        curves = fitted(trainings(exact)).curves
        ratios = np.append(0.0, surface.noise_batch_ratios)
        limits = TRUTH.loss(surface.parameters[:, None], np.inf, ratios)
        assert np.allclose(curves[..., 0], limits, rtol=1e-4)
        assert np.allclose(curves[..., 1:], [TRUTH.B / 1024**TRUTH.b, TRUTH.b], rtol=1e-3)

    @pytest.mark.long
    def test_held_out_trainings_are_predicted_within_one_percent(self, whole):
        settings = SurfaceSettings(method="two-stage", draws=0)
        found = surface_held_out(whole, settings)
        assert found["cells"]["points"] == 5 * 9
        assert found["cells"]["max_relative_error"] < 0.01
        assert found["longest_runs"]["max_relative_error"] < 0.01

    def test_two_lengths_are_too_few(self):
        with pytest.raises(
            DataError, match="there are trainings of 8,000, 16,000 steps, but the method two-stage needs 3"
        ):
            fitted(trainings(lengths=(8000, 16_000)))
