"""The search for a law's coefficients: the objective, its coordinates and their bounds, and L-BFGS from one place.

Everything is searched at the scale of the data. Variables are divided by their medians and the target by its own, so
that an amplitude is its term's size there, which keeps it apart from its exponent; positive coefficients are searched
in their logarithms. Derivatives are carried through the equation by `Dual`.
"""

import functools
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedlm.simulations.laws.forms.form import Coefficient, Data, Form
from fedlm.simulations.laws.measuring.measurements import Measurements


class Dual:
    """An array and its derivatives by some unknowns, through `+ - * / **` (forward-mode differentiation).

    Attributes:
      value: float64 [...].
      slopes: the derivatives that are not zero, each [...], by the unknown's index.
    """

    __array_ufunc__ = None  # NumPy arrays leave operators to this class.

    def __init__(self, value: Any, slopes: dict[int, Any]) -> None:
        self.value = value
        self.slopes = slopes

    def __add__(self, other: Any) -> "Dual":
        return _chained(self, other, (1.0, 1.0), self.value + _value(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Dual":
        return _chained(self, other, (1.0, -1.0), self.value - _value(other))

    def __rsub__(self, other: Any) -> "Dual":
        return _chained(self, other, (-1.0, 1.0), _value(other) - self.value)

    def __mul__(self, other: Any) -> "Dual":
        return _chained(self, other, (_value(other), self.value), self.value * _value(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "Dual":
        inverse = 1 / _value(other)
        ratio = self.value * inverse
        return _chained(self, other, (inverse, -ratio * inverse), ratio)

    def __rtruediv__(self, other: Any) -> "Dual":
        ratio = _value(other) / self.value
        return _chained(self, other, (-ratio / self.value, 1 / self.value), ratio)

    def __pow__(self, other: Any) -> "Dual":
        power = self.value ** _value(other)
        by_exponent = power * np.log(self.value) if isinstance(other, Dual) else 0.0
        return _chained(self, other, (power * _value(other) / self.value, by_exponent), power)

    def __rpow__(self, other: Any) -> "Dual":
        power = other**self.value
        return _chained(self, other, (power * np.log(other), 0.0), power)

    def log(self) -> "Dual":
        """Return the natural logarithm."""
        return Dual(np.log(self.value), {i: slope / self.value for i, slope in self.slopes.items()})

    @classmethod
    def unknown(cls, index: int, value: float, slope: float = 1.0) -> Self:
        """Make the number that an unknown is, or a function of it alone of a given slope."""
        return cls(value, {index: slope})

    def gradient(self, weights: NDArray[np.float64], unknowns: int) -> NDArray[np.float64]:
        """Return the derivatives of a weighted sum, float64 [unknowns], for weights [...]."""
        return np.array([np.sum(weights * self.slopes.get(i, 0.0)) for i in range(unknowns)])


def _value(number: Any) -> Any:
    return number.value if isinstance(number, Dual) else number


def _chained(one: Dual, other: Any, slopes_of: tuple[Any, Any], value: Any) -> Dual:
    one_slope, other_slope = slopes_of
    slopes = {i: slope * one_slope for i, slope in one.slopes.items()}
    for i, slope in other.slopes.items() if isinstance(other, Dual) else ():
        slopes[i] = slope * other_slope + slopes[i] if i in slopes else slope * other_slope
    return Dual(value, slopes)


HUBER_DELTA = 1e-3
"""Where the Huber loss turns from square to absolute, in log loss (Hoffmann et al. 2022)."""
_NOWHERE = 1e6  # What a line search meets where the equation overflows, so that it turns back.
_OPTIONS = {"maxiter": 2000, "maxfun": 4000, "ftol": 0.0, "gtol": 1e-9}


@dataclass(frozen=True)
class Minimum:
    """Where a search ended: its coordinates float64 [coefficients], and the objective there."""

    coordinates: NDArray[np.float64]
    objective: float


@dataclass(frozen=True)
class Problem:
    """A form and the rows that it is fitted to.

    Attributes:
      form: the law.
      data: the equation's variables, each float64 [rows].
      log_target: float64 [rows].
    """

    form: Form
    data: Data
    log_target: NDArray[np.float64]

    @functools.cached_property
    def bounds(self) -> NDArray[np.float64]:
        """The least and largest of each coordinate: float64 [coefficients, 2]."""
        return self._coordinates([(c.low, c.high) for c in self.form.coefficients])

    def start(self, random: np.random.Generator) -> NDArray[np.float64]:
        """Draw where a search begins: float64 [coefficients]."""
        ranges = self._coordinates([c.starts or (c.low, c.high) for c in self.form.coefficients])
        return random.uniform(ranges[:, 0], ranges[:, 1])

    def values(self, coordinates: NDArray[np.float64]) -> dict[str, float]:
        """Return the coefficients at coordinates, at the scale of the equation."""
        form, scales = self.form, self._scales
        scaled = {c.name: np.exp(x) if c.positive else x for c, x in zip(form.coefficients, coordinates, strict=True)}
        values = {
            c.name: scaled[c.name] * (scales[c.variable] if c.kind == "reference" and c.variable else 1)
            for c in form.coefficients
        }
        medians = {name: float(np.median(column)) for name, column in self.data.items()}
        scaled_medians = {name: median / scales[name] for name, median in medians.items()}
        amplitudes = [c.name for c in form.coefficients if c.kind == "amplitude"]
        for name in amplitudes:
            alone = {**dict.fromkeys(amplitudes, 0.0), name: 1.0}
            terms = [form.predict({**of, **alone}, at) for of, at in ((scaled, scaled_medians), (values, medians))]
            values[name] *= np.exp(self._log_scale) * terms[0] / terms[1]
        return {name: float(value) for name, value in values.items()}

    def minimise(self, start: NDArray[np.float64], weights: NDArray[np.float64]) -> Minimum:
        """Search from one place with L-BFGS, with a weight of each row, float64 [rows], that sum to 1.

        Where many residuals are beyond delta the objective is full of kinks, at which it hardly falls for many
        steps: a tolerance of its fall would end the search too early.
        """
        found = minimize(self.objective, start, (weights,), "L-BFGS-B", jac=True, bounds=self.bounds, options=_OPTIONS)
        return Minimum(found.x, float(found.fun))

    @functools.cached_property
    def _scales(self) -> dict[str, float]:
        powers = {c.variable for c in self.form.coefficients if c.kind in ("exponent", "reference")}
        return {name: float(np.median(column)) if name in powers else 1.0 for name, column in self.data.items()}

    @functools.cached_property
    def _log_scale(self) -> float:
        sums = any(c.kind == "amplitude" for c in self.form.coefficients)
        return float(np.median(self.log_target)) if sums else 0.0

    @functools.cached_property
    def _scaled(self) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:
        data = {name: column / self._scales[name] for name, column in self.data.items()}
        return data, self.log_target - self._log_scale

    def objective(
        self, coordinates: NDArray[np.float64], weights: NDArray[np.float64]
    ) -> tuple[float, NDArray[np.float64]]:
        """Return the weighted mean of the Huber loss of log residuals, in units of its delta, and its gradient."""
        data, log_target = self._scaled
        values = {c.name: _unknown(c, i, coordinates[i]) for i, c in enumerate(self.form.coefficients)}
        with np.errstate(all="ignore"):
            residual = self.form.equation(values, data).log() - log_target
            bent = np.clip(residual.value / HUBER_DELTA, -1, 1)
            value = np.sum(weights * bent * (residual.value - HUBER_DELTA * bent / 2))
            gradient = residual.gradient(weights * bent, len(coordinates))
        if not np.isfinite([value, *gradient]).all():
            return _NOWHERE, np.zeros(len(coordinates))
        return float(value), gradient

    def _coordinates(self, ranges: list[tuple[float, float]]) -> NDArray[np.float64]:
        return np.array(
            [np.log(one) if c.positive else one for c, one in zip(self.form.coefficients, ranges, strict=True)]
        )


def make_problem(form: Form, measurements: Measurements) -> Problem:
    """Make the problem of fitting a form to rows that are its own already."""
    return Problem(form, form.variables(measurements), np.log(form.target(measurements)))


def _unknown(coefficient: Coefficient, index: int, coordinate: float) -> Dual:
    if not coefficient.positive:
        return Dual.unknown(index, coordinate)
    value = np.exp(coordinate)
    return Dual.unknown(index, value, value)
