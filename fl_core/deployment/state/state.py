"""What the server remembers beside the model: clients, check-ins, rounds, who took part in them, and releases.

The ledger and the checkpoints say what was released; this says who took part, so that participation stays bounded
however often the server stops and starts.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from fedlm.fl_core.errors import UserError

Outcome = Literal["finished", "abandoned"]


class StateError(UserError):
    """The state does not belong to this run, is an older copy, or cannot be read or written."""


class ClientRecord(NamedTuple):
    """A client that has checked in before.

    Attributes:
      number: of the client in this run, counted from 0; its random streams follow from it.
      identity: its name, or that of its certificate.
      last_round: the last round that it took part in; None where it has in none.
      participations: how many rounds it took part in.
    """

    number: int
    identity: str
    last_round: int | None
    participations: int


class SeenClient(NamedTuple):
    """Check-ins of a client that are not in the state yet.

    Attributes:
      number: of the client in this run.
      identity: its name, or that of its certificate.
      version: of its software.
      check_ins: how many.
      last_seen: seconds since 1970 of the last.
    """

    number: int
    identity: str
    version: str
    check_ins: int
    last_seen: float


class AttemptRecord(NamedTuple):
    """One attempt at a round, once it is over.

    Attributes:
      token: that named it, in hex.
      round_number: of the round, counted from 0.
      outcome: whether its reports count.
      reason: why it was abandoned; empty where it was not.
      started: seconds since 1970.
      seconds: how long it took.
      selected: clients that were selected.
      reported: reports that were added.
      refused: reports that were not.
      declined: selected clients that answered without an update.
      bytes_down: sent to clients.
      bytes_up: received from them.
      lost: reports that were accepted, but lost with the process that had added them up.
    """

    token: str
    round_number: int
    outcome: Outcome
    reason: str
    started: float
    seconds: float
    selected: int
    reported: int
    refused: int
    declined: int
    bytes_down: int
    bytes_up: int
    lost: int = 0


class Totals(NamedTuple):
    """Sums over all attempts that are over.

    Attributes:
      finished: attempts that count.
      abandoned: attempts that do not.
      selected: clients that were selected.
      reported: reports that were added.
      bytes_down: sent to clients.
      bytes_up: received from them.
    """

    finished: int
    abandoned: int
    selected: int
    reported: int
    bytes_down: int
    bytes_up: int


class ReleaseRecord(NamedTuple):
    """A model that was made durable.

    Attributes:
      rounds: how many rounds it has seen.
      digest: of its parameters.
      released: seconds since 1970.
    """

    rounds: int
    digest: str
    released: float


class State(Protocol):
    """Durable: when a method that records returns, what it recorded survives a crash.

    Safe to call from any thread. Every method raises `StateError` where the database is busy or gone.
    """

    def claim(self, run: str) -> None:
        """Make sure that this state is a run's, or make it so where it is new; raises `StateError` where it is not."""
        ...

    def clients(self) -> list[ClientRecord]:
        """List all clients that have ever checked in."""
        ...

    def clients_since(self, moment: float) -> int:
        """Count the clients that have checked in since a moment in seconds since 1970; 0 counts all."""
        ...

    def record_check_ins(self, seen: Sequence[SeenClient]) -> None:
        """Record check-ins, all or none of them, one entry a client; new clients are added."""
        ...

    def record_attempt(self, attempt: AttemptRecord, participants: Sequence[int]) -> None:
        """Record, once, an attempt that is over and, in the same transaction, whose updates count."""
        ...

    def finished_rounds(self) -> int:
        """Say how many rounds are finished: one more than the last one's number."""
        ...

    def forget_rounds(self, first: int) -> None:
        """Forget that rounds were finished, and who took part: nothing of them was released, and they run again."""
        ...

    def record_release(self, release: ReleaseRecord) -> None:
        """Record a release, unless it is recorded already."""
        ...

    def attempts(self, last: int) -> list[AttemptRecord]:
        """List the latest attempts, so many at most, the oldest of them first."""
        ...

    def totals(self) -> Totals:
        """Sum all attempts up."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...
