import numpy as np
import pytest

from fedlm.simulations.laws.figures import noise, table2
from fedlm.simulations.laws.figures.figure import Evidence
from fedlm.simulations.laws.figures.search import TrainingSearch
from fedlm.simulations.laws.planning import central_planner, configurations
from tests.support.synthetic_laws import COEFFICIENTS, FEW, WORLD, fitted_form, surface_of


def quick_noise(probability, steps, epsilon, delta):
    """A closed form that behaves as the accountant's noise does, nearly."""
    return np.sqrt(np.asarray(steps)) * probability * 8 / epsilon + 0.4


class QuickTable:
    """Stands for the table of the accountant's noise."""

    def __init__(self, epsilon):
        self.epsilon = epsilon

    def noise_multiplier(self, examples, batch_size, steps):
        return np.asarray(quick_noise(np.asarray(batch_size) / examples, steps, self.epsilon, 1e-8))


@pytest.fixture(scope="module")
def evidence():
    """Laws of six published sizes and measurements of a small grid; noise and advantage are closed forms."""
    patch = pytest.MonkeyPatch()
    patch.setattr(central_planner, "make_noise_table", lambda epsilon, delta, *ranges: QuickTable(epsilon))
    patch.setattr(configurations, "_SIZES", 24)
    patch.setattr(central_planner, "_BATCHES", 26)
    patch.setattr(noise, "noise_multipliers", quick_noise)
    patch.setattr(noise, "membership_advantage", lambda examples, batch, steps, noise: batch**0.2 / 50)
    patch.setattr(
        table2,
        "exact_noise_multiplier",
        lambda examples, batch, steps, epsilon: float(quick_noise(batch / examples, steps, epsilon, 1e-8)),
    )
    kaplan = {"kaplan_parameters": {"N_c": 1e13, "alpha_N": 0.08}, "kaplan_compute": {"C_c": 1e7, "alpha_C": 0.05}}
    forms = {
        "mckenna_l1": fitted_form("mckenna_l1", **{**COEFFICIENTS, "g": 0.3}),
        "mckenna_l2": fitted_form("mckenna_l2", **COEFFICIENTS),
        **{name: fitted_form(name, **values) for name, values in kaplan.items()},
    }
    yield Evidence(TrainingSearch(surface_of(), 12), forms, FEW.measure(WORLD))
    patch.undo()
