"""What the server remembers beside the model: clients, check-ins, rounds, who took part in them, and releases.

The ledger and the checkpoints say what was released; this says who took part, so that participation stays bounded
however often the server stops and starts.
"""

from typing import Literal, NamedTuple

from fedlm.fl_core.errors import UserError

Outcome = Literal["finished", "abandoned"]
LATE_ROUNDS = 8
"""For how many rounds a client comes last that was selected and silent twice, without a report in between."""
SILENT_ONCE = -1
"""In place of the first round for which a client does not come last: it was silent when it was selected last. Who
drops out now and then would else be drawn less often than who never does."""


class StateError(UserError):
    """The state cannot be read or written, or is not that of this run."""


class OtherStateError(StateError):
    """The state does not belong to this run, or is an older copy."""


class UnreachableError(StateError):
    """The database cannot be reached now. It is waited for, and logs so itself."""


class NotLeadingError(UserError):
    """Another process has taken the lead, so that this one may write nothing more."""


class ClientRecord(NamedTuple):
    """A client that has checked in before."""

    number: int  # of the client in this run, counted from 0; its random streams follow from it
    identity: str  # its name, or that of its certificate
    last_round: int | None  # the last round that it took part in; None where it has in none
    participations: int  # how many rounds it took part in
    late_until: int = 0  # the first round for which it does not come last, or `SILENT_ONCE`; 0 after a report


class SeenClient(NamedTuple):
    """Check-ins of a client that are not in the state yet."""

    number: int  # of the client in this run
    identity: str  # its name, or that of its certificate
    version: str
    check_ins: int
    last_seen: float  # seconds since 1970 of the last
    rest: float = 0.0  # seconds that it was asked to stay away, from when this is written


class AttemptRecord(NamedTuple):
    """One attempt at a round, once it is over."""

    token: str  # that named it, in hex
    round_number: int  # of the round, counted from 0
    outcome: Outcome
    reason: str  # why it was abandoned; empty where it was not
    started: float  # seconds since 1970
    seconds: float
    selected: int
    reported: int
    refused: int  # reports that were not
    declined: int  # selected clients that answered without an update
    bytes_down: int
    bytes_up: int
    lost: int = 0  # reports that were accepted, but lost with the process that had added them up

    @property
    def counts(self) -> dict[str, int | str]:
        """How it ended, and with how many clients, for a span."""
        told = ("outcome", "selected", "reported", "refused", "declined", "lost")
        return {name: getattr(self, name) for name in told}


class Totals(NamedTuple):
    """Sums over all attempts that are over."""

    finished: int
    abandoned: int  # attempts that do not
    selected: int
    reported: int
    bytes_down: int
    bytes_up: int


class ReleaseRecord(NamedTuple):
    """A model that was made durable."""

    rounds: int  # how many rounds it has seen
    digest: str
    released: float  # seconds since 1970
