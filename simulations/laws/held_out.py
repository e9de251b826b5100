"""Errors of fits on measurements that they have not seen: cells, the largest model, the longest runs."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from fedlm.models.errors import ConfigurationError
from fedlm.simulations.laws.forms.rows import numbered
from fedlm.simulations.laws.measurements import Measurements

Predict = Callable[[Measurements], NDArray[np.float64]]
Fit = Callable[[Measurements], Predict]
Split = Callable[[Measurements], list[NDArray[np.bool_]]]
_FOLDS = 5


def _cells(measurements: Measurements) -> list[NDArray[np.bool_]]:
    """Leave out each fifth of the pairs of a model and a noise-batch ratio, drawn at random, in turn."""
    cells = numbered(measurements, ("model", "noise_batch_ratio"))
    order = np.random.default_rng(0).permutation(cells.max(initial=-1) + 1)
    folds = np.argsort(order)[cells] % _FOLDS
    return [folds == fold for fold in range(_FOLDS) if (folds == fold).any()]


def _largest_model(measurements: Measurements) -> list[NDArray[np.bool_]]:
    """Leave out the model that has the most parameters."""
    return [measurements.parameters == measurements.parameters.max(initial=0)]


def _longest_runs(measurements: Measurements) -> list[NDArray[np.bool_]]:
    """Leave out the blocks after half of the largest number of steps."""
    return [measurements.step > measurements.step.max(initial=0) / 2]


SPLITS: dict[str, Split] = {"cells": _cells, "largest_model": _largest_model, "longest_runs": _longest_runs}
"""Ways to choose rows that a fit does not see; each maps measurements to bool [rows], the rows left out in turn."""


def held_out_errors(
    fit: Fit,
    measurements: Measurements,
    judged: NDArray[np.bool_] | None = None,
    target: Predict = lambda measurements: measurements.loss,
    splits: Mapping[str, Split] = SPLITS,
) -> dict[str, dict[str, float]]:
    """Fit without some rows and predict them.

    Args:
      fit: maps measurements to what predicts the quantity at the rows of others, NaN where it cannot.
      measurements: all rows.
      judged: bool [rows], those whose prediction counts; all where None.
      target: maps measurements to what is predicted, measured.
      splits: how rows are chosen that a fit does not see.

    Returns:
      for each split that leaves enough to fit: `rows` judged, `not_predicted` among them, and of the others the
      `mean_error` (mean of |predicted / measured - 1|), the `largest_error` and the `bias` (mean of
      predicted / measured - 1).
    """
    everything = np.ones(len(measurements), bool) if judged is None else judged
    found = {}
    for name, split in splits.items():
        try:
            of_folds = [
                _relative_errors(fit, measurements.where(~left_out), measurements.where(left_out & everything), target)
                for left_out in split(measurements)
            ]
        except ConfigurationError:
            continue
        if (errors := np.concatenate(of_folds)).size:
            found[name] = _summary(errors)
    return found


def _relative_errors(fit: Fit, seen: Measurements, unseen: Measurements, target: Predict) -> NDArray[np.float64]:
    return fit(seen)(unseen) / target(unseen) - 1 if len(unseen) else np.zeros(0)


def _summary(relative: NDArray[np.float64]) -> dict[str, float]:
    known = relative[np.isfinite(relative)]
    errors = {"rows": float(len(relative)), "not_predicted": float(len(relative) - len(known))}
    if not len(known):
        return errors
    sizes = np.abs(known)
    return errors | {
        "mean_error": float(sizes.mean()),
        "largest_error": float(sizes.max()),
        "bias": float(known.mean()),
    }
