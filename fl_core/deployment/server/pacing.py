"""Pace steering: when a client that is not needed now should check in again (Bonawitz et al. 2019, section 2.3).

Few clients are asked back soon, so that enough of them meet in the next round. Many are asked back later, spread
evenly, so that about twice as many as a round selects check in while one round lasts. A client that may not take part
for some rounds is asked back after about so many.
"""

import random

_MARGIN = 2.0
_LONGEST = 6 * 3600.0
_WEIGHT_OF_LATEST = 0.3


def spread(seconds: float) -> float:
    """Make of the seconds until a draw a moment after it, so that not all who wait for it come back at once."""
    return seconds + random.uniform(0.01, 0.11) * max(seconds, 0.1)


class PaceSteering:
    """Suggests when to come back."""

    def __init__(self, per_round: int, soonest: float, randomness: random.Random | None = None):
        """Begin without knowing how long rounds last, with the shortest wait in seconds."""
        self._per_round, self._soonest = per_round, soonest
        self._random = randomness or random.SystemRandom()
        self._round_seconds = soonest

    def round_took(self, seconds: float) -> None:
        """Learn how many seconds a round lasted, from its opening to its end."""
        self._round_seconds += _WEIGHT_OF_LATEST * (seconds - self._round_seconds)

    def wait(self, population: int, rounds_to_rest: int = 0) -> float:
        """Suggest a wait in seconds, random around what spreads the load of clients that check in now and then."""
        spread = self._round_seconds * population / (_MARGIN * self._per_round)
        if population <= _MARGIN * self._per_round:
            spread = 0.0
        wait = max(self._soonest, spread, rounds_to_rest * self._round_seconds)
        return min(wait, _LONGEST) * self._random.uniform(0.75, 1.25)
