"""A parametric law in the place of a surface's values, on a grid that is denser in sizes and ratios."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.forms.fitting import fit_form
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.loss_curves import fit_power_curves
from fedlm.simulations.laws.measurements import Measurements, make_measurements
from fedlm.simulations.laws.surface import LossSurface

Floats = NDArray[np.float64]

_POINTS = 4  # for each of the surface's


def on_dense_grid(surface: LossSurface, form: str, seed: int) -> LossSurface:
    """Fit a parametric law to a surface up to its longest training, and evaluate it on a denser grid.

    Losses without noise stay the surface's own, since the law is fitted to noisy ones. Draws keep their relative
    distance from the surface.

    Args:
      surface: complete, of several sizes and ratios.
      form: the law's name in the registry.
      seed: of the law's fit.

    Raises:
      ConfigurationError: the surface has too few values.
    """
    measured = surface.steps[surface.steps <= surface.measured_steps]
    known = _rows(surface, surface.parameters, measured, surface.noise_batch_ratios)
    known = known.where(np.isfinite(known.loss))
    law = fit_form(FORMS[form], known, seed=seed, draws=0)
    missed = np.sqrt(np.mean(np.log(law.predict_rows(known) / known.loss) ** 2))
    sizes, ratios = _denser(surface.parameters), _denser(surface.noise_batch_ratios)
    point = np.meshgrid(sizes, surface.steps, np.append(0.0, ratios), indexing="ij")
    loss = surface.predict(*point)
    rows = _rows(surface, sizes, surface.steps, ratios)
    loss[..., 1:] = law.predict_rows(rows).reshape(loss[..., 1:].shape)
    draws = loss * surface.predict_draws(*point) / surface.predict(*point)
    rates = surface.learning_rate(*point)
    return dataclasses.replace(
        surface,
        models=tuple(f"{size:,.0f} parameters" for size in sizes),
        parameters=sizes,
        noise_batch_ratios=ratios,
        loss=loss[..., 1:],
        noiseless=loss[..., 0],
        learning_rates=rates[..., 1:],
        noiseless_learning_rates=rates[..., 0],
        curves=fit_power_curves(surface.steps, np.moveaxis(loss, 1, 2), np.ones(len(surface.steps))),
        draws=draws[..., 1:],
        noiseless_draws=draws[..., 0],
        notes=(*surface.notes, f"The law {form} stands for what was measured, which it misses by {missed:.2%}."),
    )


def _denser(axis: Floats) -> Floats:
    """Put points between those of an axis, evenly in their logarithm."""
    places = np.arange(_POINTS * (len(axis) - 1) + 1) / _POINTS
    dense = np.exp(np.interp(places, np.arange(len(axis)), np.log(axis)))
    dense[::_POINTS] = axis
    return dense


def _rows(surface: LossSurface, sizes: Floats, steps: Floats, ratios: Floats) -> Measurements:
    """Lay out the ends of trainings of every size, length and ratio, with what a surface predicts of them."""
    size, step, ratio = (axis.ravel() for axis in np.meshgrid(sizes, steps, ratios, indexing="ij"))
    return make_measurements(
        model=size.astype(str).astype(object),
        parameters=np.round(size),
        non_embedding_parameters=np.round(size),
        learning_rate=1.0,
        noise_batch_ratio=ratio,
        batch_size=surface.batch_size,
        length=surface.length,
        steps=np.round(step),
        seed=0,
        step=np.round(step),
        loss=surface.predict(size, step, ratio),
        loss_error=np.nan,
        gradient_noise_scale=np.nan,
    )
