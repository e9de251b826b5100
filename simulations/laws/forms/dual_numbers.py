"""Numbers that carry their derivatives through `+ - * / **` (forward-mode differentiation)."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


class Dual:
    """An array and its derivatives by some unknowns.

    Attributes:
      value: float64 [...].
      slopes: the derivatives that are not zero, each [...], by the unknown's index.
    """

    __array_ufunc__ = None  # NumPy arrays leave operators to this class.

    def __init__(self, value: Any, slopes: dict[int, Any]) -> None:
        self.value = value
        self.slopes = slopes

    def __add__(self, other: Any) -> "Dual":
        return _chained(self, 1.0, other, 1.0, self.value + _value(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Dual":
        return _chained(self, 1.0, other, -1.0, self.value - _value(other))

    def __rsub__(self, other: Any) -> "Dual":
        return _chained(self, -1.0, other, 1.0, _value(other) - self.value)

    def __mul__(self, other: Any) -> "Dual":
        return _chained(self, _value(other), other, self.value, self.value * _value(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "Dual":
        inverse = 1 / _value(other)
        ratio = self.value * inverse
        return _chained(self, inverse, other, -ratio * inverse, ratio)

    def __rtruediv__(self, other: Any) -> "Dual":
        ratio = _value(other) / self.value
        return _chained(self, -ratio / self.value, other, 1 / self.value, ratio)

    def __pow__(self, other: Any) -> "Dual":
        power = self.value ** _value(other)
        by_exponent = power * np.log(self.value) if isinstance(other, Dual) else 0.0
        return _chained(self, power * _value(other) / self.value, other, by_exponent, power)

    def __rpow__(self, other: Any) -> "Dual":
        power = other**self.value
        return _chained(self, power * np.log(other), other, 0.0, power)

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


def _chained(one: Dual, one_slope: Any, other: Any, other_slope: Any, value: Any) -> Dual:
    slopes = {i: slope * one_slope for i, slope in one.slopes.items()}
    for i, slope in other.slopes.items() if isinstance(other, Dual) else ():
        slopes[i] = slope * other_slope + slopes[i] if i in slopes else slope * other_slope
    return Dual(value, slopes)
