import numpy as np
import pytest

from fedlm.simulations.laws.figures import advantage_by_batch, saturating, searching
from fedlm.simulations.laws.figures.figure import Evidence
from fedlm.simulations.laws.figures.searching import TrainingSearch
from tests.simulations.laws.synthetic_laws import COEFFICIENTS, fitted_form, measurements_of, surface_of


def quick_noise(probability, steps, epsilon, delta):
    """A closed form that behaves as the accountant's noise does, nearly."""
    return np.sqrt(np.asarray(steps)) * probability * 8 / epsilon + 0.4


@pytest.fixture(scope="session")
def evidence():
    """Laws of six published sizes and measurements of a small grid; noise and advantage are closed forms."""
    patch = pytest.MonkeyPatch()
    patch.setattr(searching, "many_noise_multipliers", quick_noise)
    patch.setattr(advantage_by_batch, "many_noise_multipliers", quick_noise)
    patch.setattr(advantage_by_batch, "membership_advantage", lambda examples, batch, steps, noise: batch**0.2 / 50)
    patch.setattr(
        saturating,
        "exact_noise_multiplier",
        lambda examples, batch, steps, epsilon: float(quick_noise(batch / examples, steps, epsilon, 1e-8)),
    )
    searching._noise_table.cache_clear()
    kaplan = {"kaplan_parameters": {"N_c": 1e13, "alpha_N": 0.08}, "kaplan_compute": {"C_c": 1e7, "alpha_C": 0.05}}
    forms = {
        "mckenna_l1": fitted_form("mckenna_l1", **{**COEFFICIENTS, "g": 0.3}),
        "mckenna_l2": fitted_form("mckenna_l2", **COEFFICIENTS),
        **{name: fitted_form(name, **values) for name, values in kaplan.items()},
    }
    yield Evidence(TrainingSearch(surface_of(), 24, 1, 12), forms, measurements_of())
    patch.undo()
    searching._noise_table.cache_clear()
