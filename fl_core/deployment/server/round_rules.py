"""When a round is over and when it counts, and how far one is."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

_RANDOM = random.SystemRandom()


class DrainedError(Exception):
    """The server is going down, and no round was under way that could still count."""


@dataclass(frozen=True)
class RoundRules:
    """When a round is over, and when it counts."""

    goal: int  # reports that it is to have, and that a private sum is divided by
    minimum: int  # reports without which it is abandoned
    over_selection: float  # clients selected for each report waited for
    selection_seconds: float  # how long it takes clients in at most, from the first one on
    reporting_seconds: float  # how long it waits for reports after that
    window_seconds: float = 0.0  # how long clients check in before a draw, from the first on
    drain_seconds: float = 60.0  # how long it goes on at most once the server is going down

    @property
    def to_select(self) -> int:
        """Clients to select."""
        return math.ceil(self.goal * self.over_selection)

    @property
    def patience_seconds(self) -> float:
        """How long after the selection the selected clients may be silent before others are taken in beside them."""
        return self.reporting_seconds / 2

    @property
    def most_reports(self) -> int:
        """Reports that count at most: of all selected, and of as many that were taken in beside them."""
        return 2 * self.to_select

    def replacements(self, reported: int, silent: int) -> int:
        """Say how many clients to take in beside so many that are silent."""
        return max(0, min(silent, math.ceil((self.goal - reported) * self.over_selection)))

    def draw(self, prompt: Sequence[int], late: Sequence[int], active: int, most: int) -> list[int]:
        """Draw the clients that take part, uniformly among those that checked in, beside `active` ones, `most` in all.

        Those of them who were silent of late are drawn only where a round could not count without them.
        """
        chosen = _RANDOM.sample(prompt, min(len(prompt), max(most - active, 0)))
        return chosen + _RANDOM.sample(late, min(len(late), max(self.minimum - active - len(chosen), 0)))

    def for_cohort(self, size: int) -> "RoundRules":
        """Make the rules of a round whose clients are named: it waits for all of them."""
        return replace(self, goal=size, minimum=size, over_selection=1.0, window_seconds=0.0)

    def over(self, reported: int, answered: int, selected: int, selecting: bool) -> bool:
        """Say whether a round whose time is not over waits for nothing more.

        That is so when all that were selected have answered, and no other will be selected or the goal is reached. It
        does not end at the goal alone: who answers at once would count more often than who takes longer.
        """
        if selecting:
            return reported >= self.goal and answered == selected
        return answered == selected or selected < self.minimum

    def shortfall(self, reported: int, selected: int, **others: int) -> str:
        """Say why a round with so many reports that count cannot count itself; empty where it can.

        `others` are the selected clients that answered otherwise, by what became of them, as in `declined=1`.
        """
        if reported >= self.minimum:
            return ""
        became = ", ".join(f"{count} {what}" for what, count in others.items() if count)
        otherwise = f" ({became})" if became else ""
        return f"{reported} of {selected} selected clients reported{otherwise}, but a round needs {self.minimum}"


class RoundProgress(NamedTuple):
    """How far an attempt at a round is, in numbers."""

    round_number: int  # of the round, counted from 0
    open: bool
    selecting: bool  # whether clients are still taken in
    seconds: float  # since it was opened, or, once a client is selected, since the first was
    seconds_left: float | None  # until reports are refused at the latest; None while it waits for its first client
    goal: int  # reports that it is to have
    minimum: int  # reports without which it does not count
    wanted: int
    checked_in: int  # clients that have checked in meanwhile
    selected: int  # clients of these that were selected
    reported: int  # clients of these whose reports count
    dropped: int  # selected clients whose reports do not, or will not, count
    declined: int  # of these, the clients that answered without an update, as a device may
    bytes_down: int
    bytes_up: int

    @property
    def working(self) -> int:
        """Selected clients that may still report."""
        return self.selected - self.reported - self.dropped
