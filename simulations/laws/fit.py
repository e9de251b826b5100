"""All that is fitted to measurements: the surface of losses and parametric laws, with errors on what was held out."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import DataError, UserError
from fedlm.fl_core.runs.run_folder import GRID_FILE
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.forms.fitting import fit_form
from fedlm.simulations.laws.forms.form import Form
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.forms.rows import RUN, final, numbered
from fedlm.simulations.laws.held_out import Predict, held_out_errors
from fedlm.simulations.laws.laws_file import Laws
from fedlm.simulations.laws.measuring.grid import AXES
from fedlm.simulations.laws.measuring.measurements import Measurements, read_task
from fedlm.simulations.laws.surface.fitted_losses import SurfaceSettings
from fedlm.simulations.laws.surface.loss_surface import LossSurface
from fedlm.simulations.laws.surface.measured_grid import of_batch_size
from fedlm.simulations.laws.surface.surface_fit import fit_surface

_OF_A_MACHINE = ("data", "cache", "privacy")
_HELD_OUT_STARTS = 8


def fit_laws(
    measurements: Measurements,
    settings: SurfaceSettings,
    forms: Sequence[str],
    observe: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> tuple[Laws, dict[str, str]]:
    """Fit the surface and parametric laws, each with its errors on what was held out.

    Args:
      measurements: of one length in tokens.
      settings: of the surface; its seed is that of all fits.
      forms: names of parametric laws.
      observe: called with the name of a fit that begins, how many are done, and how many there are.

    Returns:
      The laws, without source and task, and why a fit was left out, by its name.

    Raises:
      DataError: nothing can be fitted.
    """
    total = 1 + len(forms)
    left_out: dict[str, str] = {}
    if settings.batch_size is not None:
        measurements = of_batch_size(measurements, settings.batch_size)
    observe("surface", 0, total)
    surface, held_out = None, {}
    try:
        surface = fit_surface(measurements, settings)
        held_out = surface_held_out(measurements, settings)
    except UserError as error:
        left_out["surface"] = str(error)
    fitted: dict[str, FittedForm] = {}
    for done, name in enumerate(forms, start=1):
        observe(name, done, total)
        try:
            fitted[name] = _fitted_form(FORMS[name], measurements, settings.seed)
        except UserError as error:
            left_out[name] = str(error)
    observe("done", total, total)
    if surface is None and not fitted:
        raise DataError(f"no law can be fitted: {left_out['surface']}")
    return Laws(surface, fitted, held_out), left_out


def surface_held_out(measurements: Measurements, settings: SurfaceSettings) -> dict[str, dict[str, float]]:
    """Return the errors of a surface on what was held out; beyond its grid it goes on linearly from its edge."""
    alone = dataclasses.replace(settings, draws=0)

    def fit(kept: Measurements) -> Predict:
        return predict_beyond(fit_surface(kept, alone))

    rows = final(measurements) if settings.method == "two-stage" else None
    return held_out_errors(measurements, fit, rows, settings.seed)


def predict_beyond(surface: LossSurface) -> Predict:
    """Return what predicts the losses of rows of measurements by a surface, on its grid and beyond."""
    return lambda rows: surface.predict(rows.parameters, rows.step, rows.noise_batch_ratio, extrapolate=True)


def is_of_loss(form: Form, measurements: Measurements) -> bool:
    """Tell whether what a form is a law of is the measured loss itself."""
    return np.array_equal(form.target(measurements), measurements.loss, equal_nan=True)


def _fitted_form(form: Form, measurements: Measurements, seed: int) -> FittedForm:
    """Fit a form, and again without what is held out where it is a law of the loss."""
    fitted = fit_form(form, measurements, seed=seed)
    if not is_of_loss(form, measurements):
        return fitted

    def fit(kept: Measurements) -> Callable[[Measurements], NDArray[np.float64]]:
        return fit_form(form, kept, seed=seed, starts=_HELD_OUT_STARTS, draws=0).predict_rows

    return dataclasses.replace(fitted, held_out=held_out_errors(measurements, fit, form.rows(measurements), seed))


def source_of(path: Path, measurements: Measurements, settings: SurfaceSettings) -> dict[str, Any]:
    """Say what laws were fitted to, and how."""
    return {
        "measurements": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "blocks": len(measurements),
        "trainings": int(numbered(measurements, RUN).max(initial=-1)) + 1,
        "trainings_of_the_grid": _trainings_of_grid(path, measurements),
        "settings": dataclasses.asdict(settings),
    }


def _trainings_of_grid(path: Path, measurements: Measurements) -> int | None:
    """Count the trainings of the grid whose settings lie beside its measurements; None where there are none."""
    grid = _grid_settings(path, measurements)
    return None if any(axis not in grid for axis in AXES) else math.prod(len(grid[axis]) for axis in AXES)


def task_of(path: Path, measurements: Measurements) -> dict[str, Any]:
    """Return the settings that are kept with measurements, or those of the grid that lies beside them, but for those of
    a machine; empty where there are none.

    Raises:
      DataError: what lies beside them is no settings of a grid, or those of another.
    """
    if (task := read_task(path)) is not None:
        return task
    grid = _grid_settings(path, measurements)
    return {name: value for name, value in grid.items() if name not in _OF_A_MACHINE}


_COLUMNS = {
    **{"models": "model", "learning_rates": "learning_rate", "noise_batch_ratios": "noise_batch_ratio"},
    **{"batch_sizes": "batch_size", "steps": "steps", "seeds": "seed"},
}
"""Of measurements, by the grid's setting whose values they have."""


def _grid_settings(path: Path, measurements: Measurements) -> dict[str, Any]:
    beside = path.parent / GRID_FILE
    try:
        grid = json.loads(beside.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{beside}: cannot be read ({error}), expected the settings of the grid beside it.") from error
    if not isinstance(grid, dict) or not all(isinstance(grid.get(axis, []), list) for axis in AXES):
        raise DataError(f"{beside}: holds no settings of a grid; without this file the task counts as unknown.")
    measured = {name: set(getattr(measurements, column).tolist()) for name, column in _COLUMNS.items()}
    measured |= {"length": set(measurements.length.tolist())}
    settings = grid | {"length": [grid["length"]]} if "length" in grid else grid
    for name, values in measured.items():
        if name in settings and (others := [value for value in values if value not in settings[name]]):
            raise DataError(
                f"{beside}: is of another grid than {path.name}: its {name} is {grid[name]}, and {others[0]} was "
                "measured. Put measurements and their grid.json together, or remove it: the task then counts as "
                "unknown."
            )
    return grid
