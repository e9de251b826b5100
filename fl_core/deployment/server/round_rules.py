"""When a round is over and when it counts, and how far one is."""

import math
from dataclasses import dataclass
from typing import NamedTuple


class DrainedError(Exception):
    """The server is going down, and no round was under way that could still count."""


@dataclass(frozen=True)
class RoundRules:
    """When a round is over, and when it counts.

    Attributes:
      goal: reports that it waits for.
      minimum: reports without which it is abandoned.
      over_selection: clients selected for each report waited for.
      selection_seconds: how long it takes clients in at most, from the first one on.
      reporting_seconds: how long it waits for reports after that.
    """

    goal: int
    minimum: int
    over_selection: float
    selection_seconds: float
    reporting_seconds: float

    @property
    def to_select(self) -> int:
        """Clients to select."""
        return math.ceil(self.goal * self.over_selection)

    def for_cohort(self, size: int) -> "RoundRules":
        """Make the rules of a round whose clients are named: it waits for all of them."""
        return RoundRules(size, size, 1.0, self.selection_seconds, self.reporting_seconds)

    def over(self, reported: int, answered: int, selected: int, selecting: bool) -> bool:
        """Say whether a round whose time is not over waits for nothing more.

        That is so when the goal is reached, or all that were selected have answered, so that nothing more can come from
        them, and no other will be selected.
        """
        if reported >= self.goal:
            return True
        return not selecting and (answered == selected or selected < self.minimum)

    def shortfall(self, reported: int, selected: int) -> str:
        """Say why a round with so many reports that count cannot count itself; empty where it can."""
        if reported >= self.minimum:
            return ""
        return f"{reported} of {selected} selected clients reported, but a round needs {self.minimum}"


class RoundProgress(NamedTuple):
    """How far an attempt at a round is, in numbers.

    Attributes:
      round_number: of the round, counted from 0.
      selecting: whether clients are still taken in.
      seconds: since it was opened, or, once a client is selected, since the first was.
      seconds_left: until reports are refused at the latest; None while it waits for its first client.
      goal: reports waited for.
      minimum: reports without which it does not count.
      checked_in: clients that have checked in meanwhile.
      selected: clients of these that were selected.
      reported: clients of these whose reports count.
      dropped: selected clients whose reports do not, or will not, count.
    """

    round_number: int
    open: bool
    selecting: bool
    seconds: float
    seconds_left: float | None
    goal: int
    minimum: int
    wanted: int
    checked_in: int
    selected: int
    reported: int
    dropped: int
    bytes_down: int
    bytes_up: int

    @property
    def working(self) -> int:
        """Selected clients that may still report."""
        return self.selected - self.reported - self.dropped
