"""Which numbers a setting takes: a part of its type, which whoever reads settings checks.

A field of type `Count` or `Positive | None` says it all. `fedlm.fl_core.composed_settings` refuses what does not lie
there, nan and infinity among it, before anything runs. What an option takes is written down nowhere else.
"""

import math
import types
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

_SMALLEST, _LARGEST = 1e-30, 1e30  # float32 holds their products with what models have
_MOST_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Range:
    """An interval of numbers. Infinity is in none that does not say so, nan in none.

    Attributes:
      least: the smallest number in it.
      above: what all are larger than; those above 0 are at least 1e-30.
      most: the largest number in it.
      below: what all are smaller than.
      infinite: whether infinity is taken too.
      cap: the largest number that can be computed with, where nothing else ends the interval.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    infinite: bool = False
    cap: float = _LARGEST

    def refusal(self, value: float) -> str | None:
        """Say what a number must be that is not in the interval; None where it is."""
        if math.isnan(value) or self._is_low(value):
            return f"must {self._words()}"
        if value == math.inf and self.infinite:
            return None
        if (self.most is not None and value > self.most) or (self.below is not None and value >= self.below):
            return f"must {self._words()}"
        if math.isinf(value):
            return f"must {self._words()}"
        if abs(value) > self.cap:
            return f"must be at most {_text(self.cap)}" if value > 0 else f"must be at least {_text(-self.cap)}"
        return f"must be at least {_SMALLEST}" if self.above == 0 and value < _SMALLEST else None

    def some(self) -> float:
        """Give any number of the interval."""
        ends = [end for end in (self.least, self.most) if end is not None]
        return next(value for value in (1, 0.25, 0, *ends) if self.refusal(value) is None)

    def _is_low(self, value: float) -> bool:
        return (self.least is not None and value < self.least) or (self.above is not None and value <= self.above)

    def _words(self) -> str:
        if self.least is not None and self.most is not None:
            return f"lie between {_text(self.least)} and {_text(self.most)}"
        low = [f"at least {_text(self.least)}"] if self.least is not None else []
        low += [] if self.above is None else ["positive" if self.above == 0 else f"above {_text(self.above)}"]
        high = [f"at most {_text(self.most)}"] if self.most is not None else []
        high += [f"below {_text(self.below)}"] if self.below is not None else []
        finite = [] if self.infinite or high or self.cap not in (_LARGEST, math.inf) else ["finite"]
        return f"be {' and '.join([*low, *high, *finite])}"


def _text(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


Count = Annotated[int, Range(least=1, cap=_MOST_INT32)]
CountOrZero = Annotated[int, Range(least=0, cap=_MOST_INT32)]
LargeCount = Annotated[int, Range(least=1, cap=2**53)]
"""A number of people or examples that is only computed with, in float64."""
Seed = Annotated[int, Range(least=0, most=2**32 - 1)]
"""What every random number generator takes."""
Positive = Annotated[float, Range(above=0)]
PositiveOrInfinite = Annotated[float, Range(above=0, infinite=True)]
AtLeastOne = Annotated[float, Range(least=1)]
NotNegative = Annotated[float, Range(least=0)]
Decay = Annotated[float, Range(least=0, below=1)]
"""A share that is not all: of activations that are dropped, or of a moment that is kept."""
Share = Annotated[float, Range(least=0, most=1)]
Probability = Annotated[float, Range(above=0, most=1)]
Inside = Annotated[float, Range(above=0, below=1)]
"""A share that is neither nothing nor all."""


def range_of(hint: Any) -> Range | None:
    """Find the interval in a type such as `Count`, `Positive | None` or `tuple[Seed, ...]`; None where it has none."""
    if get_origin(hint) is Annotated:
        own = next((extra for extra in hint.__metadata__ if isinstance(extra, Range)), None)
        return own or range_of(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType, tuple):
        return next((found for part in get_args(hint) if (found := range_of(part)) is not None), None)
    return None


def refusal(value: Any, interval: Range) -> str | None:
    """Say why a number, or one of several, does not lie in an interval; None where all do, and of what is no number."""
    several = isinstance(value, tuple)
    for number in value if several else (value,):
        if isinstance(number, int | float) and (why := interval.refusal(number)) is not None:
            return f"has {number}, but each {why}" if several else f"is {number}, but {why}"
    return None
