"""The record every text source yields, and the tally of what it left out."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClientText:
    """The text of one client.

    Args:
      client_id: unique within its source.
      sentences: the client's sentences in their original order, case kept.
    """

    client_id: str
    sentences: list[str]


@dataclass(slots=True)
class SkippedCounts:
    """How many inputs a source left out, by reason, so that nothing is dropped silently."""

    _counts: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str, count: int = 1) -> None:
        """Count `count` more inputs skipped for `reason`."""
        if count:
            self._counts[reason] += count

    def items(self) -> Iterator[tuple[str, int]]:
        """Yield (reason, count) in the order of the reasons' names."""
        yield from sorted(self._counts.items())

    def as_dict(self) -> dict[str, int]:
        """Return the counts by reason, sorted by reason."""
        return dict(self.items())
