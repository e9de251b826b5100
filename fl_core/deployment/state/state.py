"""What the server remembers beside the model: clients, check-ins, rounds, who took part in them, and releases.

The ledger and the checkpoints say what was released; this says who took part, so that participation stays bounded
however often the server stops and starts.
"""

from typing import Literal, NamedTuple

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
      reason: why it was abandoned; empty where it was not.
      started: seconds since 1970.
      refused: reports that were not.
      declined: selected clients that answered without an update.
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
      abandoned: attempts that do not.
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
      released: seconds since 1970.
    """

    rounds: int
    digest: str
    released: float
