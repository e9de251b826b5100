"""What is known of one history: who has seen what, and when its process is killed."""

import os
from typing import Any, NamedTuple

import numpy as np

from benchmarks.privacy.histories.tally import Entry, Tally, Trial
from fedlm.fl_core.privacy.noise_source import SECRET_BYTES
from fedlm.fl_core.runs.checkpoints import parameters_digest

PUBLIC = "public"
"""With which the names of clients begin whose text is public."""


class Killed(BaseException):
    """The process is killed here."""


class Recorder:
    """What the seams of one history know.

    Attributes:
      tally: of all sums.
      seen: what anybody may have seen of the run that goes on; the history sets it before each command.
      people: the training clients of the run that goes on.
      moments: that are left until the process is killed; None for never.
      saves: checkpoints that are left until it is killed in writing one; None for never.
      trial: of a private selection, that the run is; None of any other.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self.seen: set[Entry] = set()
        self.people: set[str] = set()
        self.moments: int | None = None
        self.saves: int | None = None
        self.trial: Trial | None = None
        self.secrets: set[bytes] = set()
        self.batches: Any = None
        self._draws: dict[bytes, dict[tuple[int, ...], int]] = {}
        self.round: Round | None = None
        self.shown: dict[int, str] = {}

    def moment(self) -> None:
        """A moment at which a process may be killed."""
        if self.moments is not None:
            self.moments -= 1
            if self.moments < 0:
                self.moments = None
                raise Killed

    def moment_of_saving(self) -> bool:
        """Say whether the process is killed in writing this checkpoint."""
        if self.saves is not None:
            self.saves -= 1
            if self.saves < 0:
                self.saves = None
                return True
        return False

    def fresh_secret(self) -> bytes:
        """Take a secret from the operating system's entropy, in place of the product."""
        secret = os.urandom(SECRET_BYTES)
        self.secrets.add(secret)
        return secret

    def see(self, params: Any) -> None:
        """Count what parameters are made of as released."""
        self.seen |= self.tally.behind.get(parameters_digest(params), frozenset())

    def draw(self, secret: bytes, name: tuple[int, ...]) -> int:
        """Number a draw of a secret."""
        of_secret = self._draws.setdefault(secret, {})
        return of_secret.setdefault(tuple(map(int, name)), len(of_secret))


class Round(NamedTuple):
    before: str
    people: frozenset[str]
    at_risk: frozenset[str]
    probability: float
    clip_norm: float | None
    marks: np.ndarray
    signature: str
    noise: tuple[float, ...] | None = None
    count_noise: float | None = None
    secret: str = ""


def at_risk(names: list[str]) -> frozenset[str]:
    """Name those whose privacy is at stake."""
    return frozenset(name for name in names if not name.startswith(PUBLIC))
