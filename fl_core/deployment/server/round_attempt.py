"""One attempt at a round: who was selected, who has answered, and when it is over. No network, no clock of its own."""

import asyncio
import math
import secrets
from dataclasses import dataclass, field
from typing import NamedTuple

from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.server.reports.streaming_sum import StreamingSum
from fedlm.fl_core.round_loop import RoundPlan

_LONGEST_WAIT = 3600.0


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
    def selected(self) -> int:
        """Clients to select."""
        return math.ceil(self.goal * self.over_selection)

    def for_cohort(self, size: int) -> "RoundRules":
        """Make the rules of a round whose clients are named: it waits for all of them.

        Args:
          size: how many they are.

        Returns:
          The rules.
        """
        return RoundRules(size, size, 1.0, self.selection_seconds, self.reporting_seconds)

    def over(self, reported: int, answered: int, selected: int, selecting: bool) -> bool:
        """Say whether a round whose time is not over waits for nothing more.

        Args:
          reported: reports that count.
          answered: selected clients from which nothing more can come.
          selected: clients.
          selecting: whether others may be selected.

        Returns:
          Whether the goal is reached, or all that were selected have answered and no other will be.
        """
        if reported >= self.goal:
            return True
        return not selecting and (answered == selected or selected < self.minimum)

    def shortfall(self, reported: int, selected: int) -> str:
        """Say why a round cannot count; empty where it can.

        Args:
          reported: reports that count.
          selected: clients.

        Returns:
          The reason in words.
        """
        if reported >= self.minimum:
            return ""
        return f"{reported} of {selected} selected clients reported, but a round needs {self.minimum}"


class Progress(NamedTuple):
    """How far an attempt is, in numbers.

    Attributes:
      round_number: of the round, counted from 0.
      open: whether reports are still taken.
      selecting: whether clients are still taken in.
      seconds: since it was opened, or, once a client is selected, since the first was.
      seconds_left: until reports are refused at the latest; None while it waits for its first client.
      goal: reports waited for.
      minimum: reports without which it does not count.
      wanted: clients to select.
      checked_in: clients that have checked in meanwhile.
      selected: clients of these that were selected.
      reported: clients of these whose reports count.
      dropped: selected clients whose reports do not, or will not, count.
      bytes_down: sent to its clients.
      bytes_up: of uploads that arrived whole.
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


@dataclass
class Participant:
    """A selected client.

    Attributes:
      receipt: the answer to its last upload, once there is one.
      upload_id: that this answer was to.
      receiving: the task that receives its upload now.
      adding: the task that adds its report, once that is whole; nothing cancels it.
      bytes_down: sent to it.
    """

    receipt: messages.UploadReply | None = None
    upload_id: bytes = b""
    receiving: asyncio.Task | None = None
    adding: asyncio.Task | None = None
    bytes_down: int = 0


@dataclass
class RoundAttempt:
    """The state of an attempt; it changes in the event loop's thread alone, but for `sum` and `taken`.

    Attributes:
      plan: of the round.
      rules: when it is over.
      parameters: what its clients download.
      sum: of the reports so far; of one worker thread alone.
      opened: when it was opened, then when its first client was selected, by the loop's clock.
      token: its name, which nobody can guess.
      participants: by number.
      checked_in: numbers of the clients that have checked in since it was opened.
      selection_ends: when no client is taken in any more; brought forward when enough are. Without any client an
        attempt waits for ever.
      taken: reports added, or being added now.
      closed: whether reports are refused from now on.
      accepted: numbers of the clients whose reports count.
      declined: selected clients that answered without an update.
      refused: reports that were refused for good.
      bytes_down: sent to its clients.
      bytes_up: of uploads that arrived whole.
      steps: local steps behind the accepted reports.
      changed: set whenever it may be over.
    """

    plan: RoundPlan
    rules: RoundRules
    parameters: ServedArtifact
    sum: StreamingSum
    opened: float
    token: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    participants: dict[int, Participant] = field(default_factory=dict)
    checked_in: set[int] = field(default_factory=set)
    selection_ends: float = math.inf
    accepted: list[int] = field(default_factory=list)
    declined: int = 0
    refused: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    steps: int = 0
    taken: int = 0
    closed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._named = {int(client) for client in self.plan.clients}

    @property
    def deadline(self) -> float:
        """When reports are refused, by the loop's clock."""
        return self.selection_ends + self.rules.reporting_seconds

    def wants(self, client: int, now: float) -> bool:
        """Say whether a client would be selected, were it to check in now.

        Args:
          client: its number.
          now: by the loop's clock.

        Returns:
          Whether it would. A client that was selected before, and has not answered, is told the same again.
        """
        if self.closed or now >= self.deadline:
            return False
        if client in self.participants:
            return self.participants[client].receipt is None
        if now >= self.selection_ends or (self._named and client not in self._named):
            return False
        return len(self.participants) - self.declined - self.refused < self.rules.selected

    def select(self, client: int, now: float) -> None:
        """Take a client in.

        Args:
          client: its number; the attempt `wants` it.
          now: by the loop's clock.
        """
        if not self.participants:
            self.opened, self.selection_ends = now, now + self.rules.selection_seconds
            self.changed.set()
        self.participants.setdefault(client, Participant())
        if len(self.participants) - self.declined - self.refused >= self.rules.selected:
            self.selection_ends = min(self.selection_ends, now)
            self.changed.set()

    def claim(self, client: int, upload_id: bytes) -> messages.UploadReply | None:
        """Take one of the places of the goal for a report that is whole. Called where reports are added.

        Args:
          client: its number.
          upload_id: of its upload.

        Returns:
          None where the report may be added; else the answer to the client.
        """
        if self.closed or self.taken >= self.rules.goal:
            return messages.UploadReply(
                status=messages.UploadReply.LATE, reason="the round has all the reports that it wanted"
            )
        self.taken += 1
        return None

    def give_back(self, client: int) -> None:
        """Give a place back: the report that it was for cannot be added.

        Args:
          client: its number.
        """
        self.taken -= 1

    def answer(self, client: int, upload_id: bytes, receipt: messages.UploadReply) -> None:
        """Note the final answer to a client.

        Args:
          client: its number.
          upload_id: of what it sent.
          receipt: the answer.
        """
        participant = self.participants[client]
        participant.receipt, participant.upload_id = receipt, upload_id
        self.changed.set()

    def finished(self, now: float) -> bool:
        """Say whether nothing more is waited for.

        Args:
          now: by the loop's clock.

        Returns:
          Whether the goal is reached, time is over, or all that were selected have answered and no other will be.
        """
        if now >= self.deadline:
            return True
        answered = sum(one.receipt is not None for one in self.participants.values())
        selecting = now < self.selection_ends
        return self.rules.over(len(self.accepted), answered, len(self.participants), selecting)

    def next_moment(self, now: float) -> float:
        """Say how long nothing can change unless a client does something.

        Args:
          now: by the loop's clock.

        Returns:
          Seconds.
        """
        return min((self.selection_ends if now < self.selection_ends else self.deadline) - now, _LONGEST_WAIT)

    def progress(self, now: float) -> Progress:
        """Say how far it is.

        Args:
          now: by the loop's clock.

        Returns:
          Numbers that do not change any more.
        """
        selected, reported = len(self.participants), len(self.accepted)
        return Progress(
            round_number=self.plan.round_number,
            open=not self.closed,
            selecting=not self.closed and now < self.selection_ends,
            seconds=now - self.opened,
            seconds_left=None if math.isinf(self.deadline) else max(self.deadline - now, 0.0),
            goal=self.rules.goal,
            minimum=self.rules.minimum,
            wanted=self.rules.selected,
            checked_in=len(self.checked_in),
            selected=selected,
            reported=reported,
            dropped=selected - reported if self.closed else self.declined + self.refused,
            bytes_down=self.bytes_down,
            bytes_up=self.bytes_up,
        )

    def shortfall(self) -> str:
        """Say why the attempt cannot count; empty where it can."""
        return self.rules.shortfall(len(self.accepted), len(self.participants))
