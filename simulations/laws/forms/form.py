"""What a parametric scaling law is: an equation with named coefficients, and the measurements that it is fitted to."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlm.models.errors import ConfigurationError
from fedlm.simulations.laws.forms.rows import VARIABLES
from fedlm.simulations.laws.measuring.measurements import Measurements

Data = Mapping[str, NDArray[np.float64]]
Equation = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]

FACTOR_OF_THREE = math.log(3)


@dataclass(frozen=True)
class Coefficient:
    """An unknown of an equation, and where it is searched.

    Attributes:
      name: as in the paper.
      meaning: in words.
      kind: `exponent` of its variable; `amplitude`, to which one term of the equation's sum is proportional; or
        `reference`, a value of its variable.
      low: the least value that a fit may find; of an amplitude, of its term at the median of the data, as a part of the
        median target; of a reference, as a part of its variable's median.
      high: the largest, likewise.
      starts: between which the values are drawn that searches begin from, likewise; (low, high) where None.
      positive: it is searched in its logarithm.
      variable: whose spread in the data tells it; None where that is no single one.
      stands_with: the coefficient without which this one means nothing, as an amplitude without its exponent.
      widest: of an interval with which it still counts as identified, in logarithms for a positive one.
    """

    name: str
    meaning: str
    kind: Literal["exponent", "amplitude", "reference"]
    low: float
    high: float
    starts: tuple[float, float] | None = None
    positive: bool = True
    variable: str | None = None
    stands_with: str | None = None
    widest: float = FACTOR_OF_THREE


def exponent(name: str, variable: str, meaning: str = "") -> Coefficient:
    """Return the positive exponent of a variable."""
    meaning = meaning or f"exponent of {variable.replace('_', ' ')}"
    return Coefficient(name, meaning, "exponent", 1e-3, 20, (0.05, 1.5), variable=variable)


def amplitude(name: str, meaning: str, stands_with: str | None = None) -> Coefficient:
    """Return what a term is proportional to."""
    return Coefficient(name, meaning, "amplitude", 1e-6, 1e3, (1e-2, 1), stands_with=stands_with)


def reference(name: str, variable: str, meaning: str, stands_with: str) -> Coefficient:
    """Return the value of a variable at which a power of it is one."""
    starts = (1.0, 1e9)
    return Coefficient(
        name, meaning, "reference", 1e-9, 1e60, starts, variable=variable, stands_with=stands_with, widest=math.inf
    )


@dataclass(frozen=True)
class Form:
    """A parametric scaling law.

    Attributes:
      name: of the registry.
      citation: paper and equation.
      equation: maps (coefficients, variables) to the target by `+ - * / **` alone, of which derivatives
        are known.
      text: the equation, to be read.
      coefficients: the unknowns.
      takes: names of the equation's variables, see `rows.VARIABLES`.
      rows: maps measurements to bool [rows], those that the paper fits, or the nearest to them.
      target: maps measurements to float64 [rows], what the equation gives; positive.
      least_spread: by which factor a variable must vary for its exponent to be told; within a factor of two any smooth
        curve is nearly as straight as a power law.
    """

    name: str
    citation: str
    equation: Equation
    text: str
    coefficients: tuple[Coefficient, ...]
    takes: tuple[str, ...]
    rows: Callable[[Measurements], NDArray[np.bool_]]
    target: Callable[[Measurements], NDArray[np.float64]] = lambda measurements: measurements.loss
    least_spread: float = 2.0

    @property
    def names(self) -> tuple[str, ...]:
        """The coefficients' names."""
        return tuple(coefficient.name for coefficient in self.coefficients)

    def variables(self, measurements: Measurements) -> dict[str, NDArray[np.float64]]:
        """Make the equation's variables of measurements, each float64 [rows]."""
        return {name: VARIABLES[name](measurements) for name in self.takes}

    def predict(self, values: Mapping[str, float], data: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
        """Evaluate the equation at values of its coefficients, on variables that broadcast with each other.

        Raises ConfigurationError where a coefficient has no value.
        """
        if missing := [name for name in self.names if name not in values]:
            raise ConfigurationError(
                f"{self.name}: found no value of {', '.join(missing)}, expected one of each of "
                f"{', '.join(self.names)}. Fit the form to measurements with `fedlm laws fit`."
            )
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            found = self.equation(values, {name: np.asarray(column, np.float64) for name, column in data.items()})
        return np.asarray(found, np.float64)
