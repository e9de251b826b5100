"""What the processes of a server tell each other of a round that they share."""

from typing import Literal, NamedTuple

Phase = Literal["gathering", "selecting", "reporting", "closed"]
Claim = Literal["taken", "mine", "elsewhere", "answered", "late", "early"]


class SharedRound(NamedTuple):
    """An attempt at a round, as aggregators need to know it."""

    token: str  # that names it, in hex
    round_number: int  # counted from 0
    seed: int
    learning_rate: float
    clip_norm: float | None  # of this round; None leaves norms alone
    to_select: int
    minimum: int  # reports without which it is abandoned
    min_separation: int  # see `fedlm.fl_core.privacy.participation.limits.BoundedParticipation`
    max_participations: int | None  # see there
    agreement: str  # digest of the settings that coordinator and aggregators must have in common
    parameters: str  # digest of the model's bytes, see `SharedRounds.fetch`
    phase: Phase  # whether clients check in for the draw, are selected, reports are taken, or none of it
    seconds_left: float  # until no report is taken any more, when this was last written
    masks: bytes | None = None  # a `SecureSum` message, by which clients mask their reports; None where these are not
    sealing_key: bytes | None = None  # X25519, of the coordinator in a masked round
    masked_length: int = 0  # integers of a masked report
    masked_bits: int = 0  # b; they are added modulo 2^b


class Selection(NamedTuple):
    """What a check-in came to."""

    selected: bool
    rest: int | None = 0  # rounds that the client has to rest; None where it may never take part again
    drawn_later: bool = False  # whether it is among those that the round will draw from


class Tally(NamedTuple):
    """How a round stands."""

    phase: Phase  # see `SharedRound.phase`
    states: dict[str, int]  # how many of the selected clients are in each state
    candidates: int  # clients that have checked in for the draw, and were not drawn yet
    claims: dict[str, int]  # by aggregator, how many reports it may add or has added
    delivered: set[str]
    beats: dict[str, int]  # by aggregator that is not lost, a count that grows while it lives


class PartialSum(NamedTuple):
    """What an aggregator has added up."""

    token: str
    aggregator: str
    content: str  # digest of the sum's bytes, see `SharedRounds.fetch`
    reports: int
    steps: int
    bytes_down: int
    bytes_up: int
