"""What is made of the timings of contestants that ran in turn: medians, ratios pass by pass, agreement of losses."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LOSS_TOLERANCE = 0.05
"""What the order of examples may change, as a part of the change of the loss."""


class Spread(NamedTuple):
    """The spread of a number over passes."""

    min: float
    median: float
    max: float


def spread(values: Sequence[float]) -> Spread:
    """Give the least, the median and the greatest of at least one value."""
    return Spread(min(values), statistics.median(values), max(values))


def pass_ratios(rates: Sequence[float], others: Sequence[float]) -> Spread | None:
    """Divide rates by those of another contestant, perhaps fewer, pass by pass; None where no pass has both."""
    ratios = [rate / other for rate, other in zip(rates, others, strict=False)]
    return spread(ratios) if ratios else None


def best_of(rates: Mapping[str, Sequence[float]], names: Sequence[str]) -> str | None:
    """Name the one of `names` with the highest median of its rates; None where none has a rate."""
    running = [name for name in names if rates.get(name)]
    return max(running, key=lambda name: statistics.median(rates[name]), default=None)


def loss_disagreements(
    before: float, after: Mapping[str, float | None], reference: str, tolerance: float = LOSS_TOLERANCE
) -> dict[str, float]:
    """Find contestants whose round changed the loss by another amount than the reference's did.

    Args:
      before: the loss of the parameters that all start from.
      after: of each contestant's averaged model; None for one that averages nothing.
      reference: whose change the others' must equal.
      tolerance: how much of that change they may differ by.

    Returns:
      How far off they are, as a part of the reference's change.
    """
    measured = after.get(reference)
    if measured is None:
        return {}
    expected = measured - before
    off = {name: abs(loss - measured) / abs(expected) for name, loss in after.items() if loss is not None}
    return {name: part for name, part in off.items() if not part <= tolerance}
