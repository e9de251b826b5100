"""How far fits to a part of the measurements miss the rest."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import UserError
from fedlm.simulations.laws.forms.rows import CELL, numbered, settled
from fedlm.simulations.laws.measuring.measurements import Measurements, make_measurements

Predict = Callable[[Measurements], NDArray[np.float64]]
Fit = Callable[[Measurements], Predict]
_SHARE = 0.2


@dataclass(frozen=True)
class HeldOutError:
    """Relative errors of predicted losses that a fit had not seen.

    A point is the mean loss of a model and ratio over seeds and over the blocks that end within a halving of its steps,
    of the last three: from an eighth to a quarter, to a half, and to all of them; at the learning rate where that is
    least.

    Attributes:
      mean_relative_error: mean over points of |predicted / measured - 1|.
      max_relative_error: the largest.
      points: how many were predicted.
      points_out_of_reach: how many had no prediction.
      cells: how many models and ratios were left out, wholly or in part.
    """

    mean_relative_error: float
    max_relative_error: float
    points: int
    points_out_of_reach: int
    cells: int


def held_out_errors(
    measurements: Measurements,
    fit: Fit,
    rows: NDArray[np.bool_] | None = None,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Fit to a part of the measurements and predict the rest, by three ways of leaving out.

    - "cells": a random fifth of the models and ratios, none at the end of its model's ratios and no two beside each
      other, with all their learning rates and seeds.
    - "largest_model": all trainings of the model with the most parameters.
    - "longest_runs": trainings of the longest schedule; where there is one length alone, the second half of every
      training.

    Args:
      measurements: of one batch size and one length in tokens.
      fit: fits to measurements, and returns what predicts the losses of rows of others: float64 [rows], NaN where it
        cannot.
      rows: bool [rows], of which losses are compared; where they are not given, all from an eighth of the steps on.
      seed: of the cells that are left out.

    Returns:
      The fields of HeldOutError by the way of leaving out; without those that leave too little to fit.
    """
    if rows is None:
        rows = settled(measurements)
    found = {}
    for name, left_out in (
        ("cells", random_cells(measurements, seed, _SHARE)),
        ("largest_model", measurements.parameters == measurements.parameters.max()),
        ("longest_runs", longest_runs_or_halves(measurements)),
    ):
        if (left_out & rows).any() and not left_out.all():
            try:
                predict = fit(_ended(measurements.where(~left_out)))
            except UserError:  # too little is left
                continue
            found[name] = asdict(error_on(measurements.where(left_out), rows[left_out], predict))
    return found


def random_cells(measurements: Measurements, seed: int, share: float) -> NDArray[np.bool_]:
    """Choose random models and ratios, none at the end of a model's ratios and no two side by side: bool [rows]."""
    random = np.random.default_rng(seed)
    chosen = np.zeros(len(measurements), bool)
    candidates = []
    total = 0
    for model in np.unique(measurements.model.astype(str)):
        ratios = np.unique(measurements.noise_batch_ratio[measurements.model == model])
        ratios = ratios[ratios > 0]
        total += len(ratios)
        candidates += [(model, ratios, place) for place in range(1, len(ratios) - 1)]
    taken: set[tuple[str, int]] = set()
    for number in random.permutation(len(candidates)):
        model, ratios, place = candidates[number]
        if len(taken) >= max(1, round(share * total)):
            break
        if not taken & {(model, place - 1), (model, place + 1)}:
            taken.add((model, place))
            chosen |= (measurements.model == model) & (measurements.noise_batch_ratio == ratios[place])
    return chosen


def longest_runs_or_halves(measurements: Measurements) -> NDArray[np.bool_]:
    """Choose the rows of the longest schedule; of one schedule alone, those of its second half: bool [rows]."""
    longest = measurements.steps == measurements.steps.max()
    return measurements.step > measurements.steps / 2 if longest.all() else longest


def _ended(measurements: Measurements) -> Measurements:
    """Let trainings of which the second half was left out be trainings that ended there."""
    halved = not np.any(measurements.step > measurements.steps / 2)
    if not halved:
        return measurements
    return make_measurements(**measurements.columns() | {"steps": np.full(len(measurements), measurements.step.max())})


def error_on(unseen: Measurements, rows: NDArray[np.bool_], predict: Predict) -> HeldOutError:
    """Compare what was measured with what is predicted, point by point.

    Args:
      unseen: what no fit has seen.
      rows: bool [rows of it], of which losses are compared.
      predict: see `held_out_errors`.
    """
    compared = unseen.where(rows)
    halvings = np.floor(np.log2(compared.steps / compared.step)).astype(int)
    cell, at_rate = (numbered(compared, columns) * 64 + halvings for columns in (CELL, (*CELL, "learning_rate")))
    _, first, at_rate = np.unique(at_rate, return_index=True, return_inverse=True)
    counts = np.bincount(at_rate)
    measured, predicted = (np.bincount(at_rate, losses) / counts for losses in (compared.loss, predict(compared)))
    by_loss = np.argsort(measured)
    best = by_loss[np.unique(cell[first][by_loss], return_index=True)[1]]
    measured, predicted = measured[best], predicted[best]
    errors = np.abs(predicted / measured - 1)
    known = np.isfinite(errors)
    return HeldOutError(
        mean_relative_error=float(errors[known].mean()) if known.any() else float("nan"),
        max_relative_error=float(errors[known].max()) if known.any() else float("nan"),
        points=int(known.sum()),
        points_out_of_reach=int((~known).sum()),
        cells=len(np.unique(numbered(unseen, ("model", "noise_batch_ratio")))),
    )
