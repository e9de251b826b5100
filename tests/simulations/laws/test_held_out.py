"""Errors on measurements that a fit has not seen."""

import numpy as np
import pytest

from fedlm.models.errors import ConfigurationError
from fedlm.simulations.laws.all_forms import WHOLE_GRID, fit_cells, fit_whole_grid, fit_with_held_out_errors
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.held_out import SPLITS, held_out_errors
from fedlm.simulations.laws.measurements import Measurements
from tests.simulations.laws.grids import CHINCHILLA, SIZES, grid, obeying

RUNS = grid(noise_batch_ratios=(0.0, 2.0**-10), blocks=4)


def test_cells_are_left_out_whole_and_each_once():
    folds = SPLITS["cells"](RUNS)
    np.testing.assert_array_equal(np.sum(folds, axis=0), 1)
    for fold in folds:
        left_out = set(zip(RUNS.model[fold], RUNS.noise_batch_ratio[fold], strict=True))
        assert not left_out & set(zip(RUNS.model[~fold], RUNS.noise_batch_ratio[~fold], strict=True))


def test_the_largest_model_and_the_longest_runs_are_left_out():
    (largest,) = SPLITS["largest_model"](RUNS)
    assert set(RUNS.parameters[largest]) == {max(SIZES)}
    assert max(SIZES) not in RUNS.parameters[~largest]
    (longest,) = SPLITS["longest_runs"](RUNS)
    assert RUNS.step[~longest].max() == 64_000
    assert RUNS.step[longest].min() == 96_000


def test_errors_are_of_rows_that_were_not_seen():
    def fit(seen: Measurements):
        def predict(rows: Measurements):
            assert not set(rows.model) & set(seen.model)
            return np.where(rows.step == 128_000, np.nan, np.where(rows.step == 16_000, 1.1, 0.8))

        return predict

    runs = grid()
    errors = held_out_errors(fit, runs, runs.step != 64_000, splits={"largest_model": SPLITS["largest_model"]})
    assert errors["largest_model"] == pytest.approx(
        {"rows": 3, "not_predicted": 1, "mean_error": 0.15, "largest_error": 0.2, "bias": -0.05}
    )


def test_a_split_that_leaves_too_little_is_left_out():
    def fit(seen: Measurements):
        raise ConfigurationError("too little")

    assert held_out_errors(fit, RUNS) == {}


def test_a_law_predicts_what_obeys_it():
    """With noise of 0.2 % the error of cells not seen is about the mean of its absolute value, 0.16 %."""
    form = FORMS["chinchilla"]
    fitted = fit_with_held_out_errors(form, obeying(form, CHINCHILLA, grid(seeds=2), 0.002), starts=3, draws=2)
    assert fitted.held_out is not None
    assert fitted.held_out.keys() == SPLITS.keys()
    assert fitted.held_out["cells"]["rows"] == fitted.rows
    assert 0.001 < fitted.held_out["cells"]["mean_error"] < 0.004
    assert fitted.held_out["largest_model"]["mean_error"] < 0.02
    assert "held out cells: rows 48" in str(fitted)


def test_each_law_is_fitted_or_says_what_it_lacks():
    form = FORMS["chinchilla"]
    found = dict(fit_whole_grid(obeying(form, CHINCHILLA, grid(), 0.002), starts=2, draws=0))
    assert tuple(found) == WHOLE_GRID
    assert {name for name, fitted in found.items() if isinstance(fitted, FittedForm)} == {
        "chinchilla",
        "kaplan_parameters",
        "kaplan_data",
        "kaplan_compute",
        "kaplan_parameters_and_data",
    }
    assert found["mckenna_l1"].startswith("mckenna_l1: found 0 different points")
    assert found["kaplan_critical_batch"].startswith("kaplan_critical_batch: found 0 different points")


def test_cells_are_fitted_by_themselves():
    form = FORMS["steps"]
    values = {"E": 2.0, "A": 50.0, "alpha": 0.4}
    fits = list(fit_cells(form, obeying(form, values, grid(sizes=SIZES[:2])), starts=3))
    assert [rows.sum() for rows, _ in fits] == [4, 4]
    for _, fitted in fits:
        assert fitted.coefficients == pytest.approx(values, rel=0.01)
