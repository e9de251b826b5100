"""Tells a step that ruined a model by its held-out loss."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from fedlm.fl_core.runs.round_rows import WENT_BACK, WENT_BACK_TO

_LOSS = "heldout_loss"


def standing_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """List the metrics rows of a run whose steps were not undone."""
    standing: list[dict[str, Any]] = []
    for row in rows:
        if WENT_BACK_TO in row:
            standing = [one for one in standing if one["round"] < row[WENT_BACK_TO]]
        else:
            standing.append(row)
    return standing


class AbsurdSteps:
    """Knows which held-out loss a run had reached.

    Attributes:
      in_a_row: how many of the latest scores were absurd.
    """

    def __init__(self, rows: Iterable[dict[str, Any]]):
        """Begin after these metrics rows."""
        self.in_a_row, self._best = 0, math.inf
        for row in rows:
            if _LOSS in row:
                self.in_a_row = row.get(WENT_BACK, 0)
                self._best = min(self._best, math.inf if row[_LOSS] is None else row[_LOSS])

    def look(self, scores: dict[str, Any], first: Callable[[], dict[str, Any]]) -> bool:
        """Say whether scores are absurd, and note them; `first` scores the first parameters, where nothing was scored
        before. Scores without a held-out loss never are."""
        if _LOSS not in scores:
            return False
        if self._best == math.inf:
            self._best = first()[_LOSS]
        if self.is_absurd(scores):
            self.in_a_row += 1
            return True
        self.in_a_row, self._best = 0, min(self._best, scores[_LOSS])
        return False

    def is_absurd(self, scores: dict[str, Any]) -> bool:
        """Say whether the loss is no number, or more than half a nat above one and a half times the lowest so far."""
        loss = scores[_LOSS]
        return loss is None or not loss <= 1.5 * self._best + 0.5
