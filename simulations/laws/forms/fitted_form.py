"""A parametric law with the values of its coefficients: printed, written as JSON, evaluated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.measuring.measurements import Measurements


class Interval(NamedTuple):
    """A confidence interval of a coefficient."""

    low: float
    high: float


@dataclass(frozen=True)
class FittedForm:
    """What a fit found.

    Attributes:
      form: the law's name in the registry.
      coefficients: values by name.
      intervals: confidence intervals by name; empty where none was asked for.
      level: of the intervals.
      reasons: why a coefficient is not identified, by name; one that is not here is identified.
      rows: how many rows were fitted.
      runs: of how many trainings they are.
      root_mean_square_log_error: of the fitted rows; about the relative error.
      starts: how many searches there were.
      agreeing_starts: how many ended at the objective that was kept.
      held_out: errors on rows that a fit has not seen, by how they were chosen; see `held_out.HeldOutError`.
    """

    form: str
    coefficients: dict[str, float]
    intervals: dict[str, Interval]
    level: float
    reasons: dict[str, str]
    rows: int
    runs: int
    root_mean_square_log_error: float
    starts: int
    agreeing_starts: int
    held_out: Mapping[str, Mapping[str, float]] | None = None

    @property
    def identified(self) -> dict[str, bool]:
        """Whether the data tell each coefficient."""
        return {name: name not in self.reasons for name in self.coefficients}

    def predict(self, data: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
        """Evaluate the law on variables of its equation, which broadcast with each other."""
        return FORMS[self.form].predict(self.coefficients, data)

    def predict_rows(self, measurements: Measurements) -> NDArray[np.float64]:
        """Evaluate the law at the rows of measurements, measured or planned: float64 [rows]."""
        return self.predict(FORMS[self.form].variables(measurements))

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads, for a file of laws."""
        return {
            "coefficients": self.coefficients,
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "level": self.level,
            "identified": self.identified,
            "reasons": self.reasons,
            "rows": self.rows,
            "runs": self.runs,
            "root_mean_square_log_error": self.root_mean_square_log_error,
            "starts": self.starts,
            "agreeing_starts": self.agreeing_starts,
            "held_out": self.held_out and {name: dict(errors) for name, errors in self.held_out.items()},
        }

    @classmethod
    def from_json(cls, form: str, fields: Mapping[str, Any]) -> Self:
        """Make a fitted form of what `to_json` returned."""
        kept = {name: value for name, value in fields.items() if name != "identified"}
        intervals = {name: Interval(*interval) for name, interval in fields["intervals"].items()}
        return cls(form=form, **{**kept, "intervals": intervals})

    def __str__(self) -> str:
        form = FORMS[self.form]
        width = max(map(len, form.names))
        lines = [
            f"{self.form}: {form.text}",
            f"  {self.rows} rows of {self.runs} runs, error {self.root_mean_square_log_error:.2%} (root mean square of "
            f"log residuals), {self.agreeing_starts} of {self.starts} starts agree",
        ]
        for coefficient in form.coefficients:
            name = coefficient.name
            text = f"  {name:{width}} = {self.coefficients[name]:<10.4g}"
            if name in self.intervals:
                low, high = self.intervals[name]
                text += f" [{low:.4g}, {high:.4g}]"
            text += f"  {coefficient.meaning}"
            if name in self.reasons:
                text += f"; NOT IDENTIFIED: {self.reasons[name]}"
            lines.append(text)
        for split, errors in (self.held_out or {}).items():
            shown = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in errors.items())
            lines.append(f"  held out {split.replace('_', ' ')}: {shown}")
        return "\n".join(lines)
