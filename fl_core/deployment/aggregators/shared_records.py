"""What the processes of a server tell each other of a round that they share."""

from typing import Literal, NamedTuple

Phase = Literal["selecting", "reporting", "closed"]
Claim = Literal["taken", "mine", "elsewhere", "answered", "late"]


class SharedRound(NamedTuple):
    """An attempt at a round, as aggregators need to know it.

    Attributes:
      token: that names it, in hex.
      round_number: counted from 0.
      clip_norm: of this round, in place of the rules'; None for theirs.
      goal: reports that it waits for.
      min_separation: see `fedlm.fl_core.privacy.participation.BoundedParticipation`.
      max_participations: see there.
      agreement: digest of the settings that coordinator and aggregators must have in common.
      parameters: digest of the model's bytes, see `SharedRounds.fetch`.
      phase: whether clients are selected, reports are taken, or neither.
      seconds_left: until no report is taken any more, when this was last written.
    """

    token: str
    round_number: int
    seed: int
    learning_rate: float
    clip_norm: float | None
    goal: int
    to_select: int
    min_separation: int
    max_participations: int | None
    agreement: str
    parameters: str
    phase: Phase
    seconds_left: float


class Tally(NamedTuple):
    """How a round stands.

    Attributes:
      phase: see `SharedRound.phase`.
      states: how many of the selected clients are in each state.
      claims: by aggregator, how many reports it may add or has added.
      beats: by aggregator that is not lost, a count that grows while it lives.
    """

    phase: Phase
    states: dict[str, int]
    claims: dict[str, int]
    delivered: set[str]
    beats: dict[str, int]


class PartialSum(NamedTuple):
    """What an aggregator has added up.

    Attributes:
      content: digest of the sum's bytes, see `SharedRounds.fetch`.
    """

    token: str
    aggregator: str
    content: str
    reports: int
    steps: int
    bytes_down: int
    bytes_up: int
