"""What every source of text yields, and the tally of what it left out."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class OrderForm(NamedTuple):
    """How a source writes what puts a text in order, and where."""

    name: str  # in words
    field: str
    value: str  # as the source has it


class ClientText(NamedTuple):
    """Some text of one client; a source may yield many of these for one client, in any order."""

    client_id: str  # unique among the source's clients
    sentences: list[str]  # in their original order, case kept; each becomes one example
    split: str | None = None  # train, heldout or test, where the source says to which the text belongs
    order: int = 0  # a client's texts are put in this order, a time say; those of equal order keep the source's
    completions: list[str] | None = None  # what completes each sentence, where these are prompts
    order_form: OrderForm | None = None  # how the source writes the order, where that must be one form for all texts
    place: str = ""  # where the source has it, file and line or row

    @property
    def text(self) -> list[str]:
        """All of it."""
        return [*self.sentences, *(self.completions or ())]


@dataclass(slots=True)
class SkippedCounts:
    """How many inputs were left out, by reason, and where the first of each was: nothing is dropped silently."""

    _counts: Counter[str] = field(default_factory=Counter)
    _first: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, count: int = 1, place: str = "") -> None:
        """Count inputs skipped for a reason, in the words that the user will read; the reason's first place is kept."""
        if count:
            self._counts[reason] += count
            if place:
                self._first.setdefault(reason, place)

    def merge(self, counts: dict[str, int], first: dict[str, str]) -> None:
        """Add the counts of inputs that come after those counted so far, as `as_dict` and `first_places` give them."""
        for reason, count in counts.items():
            self.add(reason, count, first.get(reason, ""))

    def as_dict(self) -> dict[str, int]:
        """Return the counts by reason, sorted by reason."""
        return dict(sorted(self._counts.items()))

    def first_places(self) -> dict[str, str]:
        """Return where the first input of each reason was (file and line, row or client), where that is known."""
        return dict(sorted(self._first.items()))
