"""What every source of text yields, and the tally of what it left out."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class ClientText(NamedTuple):
    """Some text of one client; a source may yield many of these for one client, in any order.

    Attributes:
      client_id: unique among the source's clients.
      sentences: in their original order, case kept. Each becomes one example.
      split: train, heldout or test, where the source says to which the text belongs; None where it does not.
      order: a client's texts are put in this order, a time say; those of equal order keep the source's.
    """

    client_id: str
    sentences: list[str]
    split: str | None = None
    order: int = 0


@dataclass(slots=True)
class SkippedCounts:
    """How many inputs were left out, by reason, and where the first of each was: nothing is dropped silently."""

    _counts: Counter[str] = field(default_factory=Counter)
    _first: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, count: int = 1, place: str = "") -> None:
        """Count `count` more inputs skipped for `reason`.

        Args:
          reason: in the words that the user will read.
          count: how many.
          place: where it was: file and line, row or client. That of a reason's first input is kept.
        """
        if count:
            self._counts[reason] += count
            if place:
                self._first.setdefault(reason, place)

    def merge(self, counts: dict[str, int], first: dict[str, str]) -> None:
        """Add the counts of inputs that come after those counted so far.

        Args:
          counts: as `as_dict` gives them.
          first: as `first_places` gives them.
        """
        for reason, count in counts.items():
            self.add(reason, count, first.get(reason, ""))

    def items(self) -> Iterator[tuple[str, int]]:
        """Yield (reason, count) in the order of the reasons' names."""
        yield from sorted(self._counts.items())

    def as_dict(self) -> dict[str, int]:
        """Return the counts by reason, sorted by reason."""
        return dict(self.items())

    def first_places(self) -> dict[str, str]:
        """Return where the first input of each reason was, where that is known, sorted by reason."""
        return dict(sorted(self._first.items()))
