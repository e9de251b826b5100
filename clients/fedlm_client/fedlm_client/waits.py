"""How long a device waits until it calls the server again."""

import math
import random
import time

from .limits import Limits

_SOONEST_SECONDS, _LATEST_SECONDS = 0.02, 24 * 3600.0
_SOON_SECONDS, _SOON_FOR_SECONDS = 3.0, 120.0
_MOST_DOUBLINGS = 30


class Waits:
    """A device's waits in a run.

    Attributes:
      answered: whether the server has ever answered.
    """

    def __init__(self, limits: Limits):
        """Begin to wait for a server that may not be there yet."""
        self._limits, self._failures, self._began = limits, 0, time.monotonic()
        self.answered = False

    def after_failure(self) -> float:
        """Choose one that doubles with each failure, at random so that clients do not all come at once."""
        limits = self._limits
        # Who begins before the server does has it soon.
        soon = not self.answered and time.monotonic() - self._began < _SOON_FOR_SECONDS
        most = min(limits.longest_backoff, _SOON_SECONDS) if soon else limits.longest_backoff
        longest = min(limits.first_backoff * 2.0**self._failures, most)
        self._failures = min(self._failures + 1, _MOST_DOUBLINGS)
        return longest * random.uniform(0.5, 1.5)

    def worked(self) -> None:
        """Begin anew with the shortest."""
        self._failures = 0


def told_seconds(seconds: float) -> float:
    """Take seconds from a server, which may say anything, so that a device neither comes back at once without end nor
    trains without end."""
    return min(max(seconds, _SOONEST_SECONDS), _LATEST_SECONDS) if math.isfinite(seconds) else _LATEST_SECONDS
