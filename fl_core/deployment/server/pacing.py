"""Pace steering: when a client that is not needed now should check in again (Bonawitz et al. 2019, section 2.3).

A client that checks in stands by until the next draw, and is asked back soon. After a draw, or after the round that it
was drawn for, all clients rest alike. Few clients rest for a short time, so that all of them meet in the next draw.
Many rest longer: while one round lasts, about twice as many check in as a round selects. So no client is a candidate
more often than others, whenever and however often it calls. A client that may not take part for some rounds is asked
back after about so many.
"""

import math
import random

_MARGIN = 2.0
_LONGEST = 6 * 3600.0
_LEAST, _MOST = 0.75, 1.25
_WEIGHT_OF_LATEST = 0.3
_MEMBERS_A_SECOND, _ASKED_IN_A_STEP = 100.0, 8.0


def spread(seconds: float) -> float:
    """Make of the seconds until a draw a moment after it, so that not all who wait for it come back at once."""
    return seconds + random.uniform(0.01, 0.11) * max(seconds, 0.1)


class PaceSteering:
    """Suggests when to come back."""

    def __init__(
        self,
        per_round: int,
        soonest: float,
        randomness: random.Random | None = None,
        *,
        step_seconds: float = math.inf,
    ):
        """Begin without knowing how long rounds last, with the shortest wait in seconds, and the time of a step."""
        self._per_round, self._soonest = per_round, soonest
        self._random = randomness or random.SystemRandom()
        self._round_seconds, self._step_seconds = soonest, step_seconds

    def round_took(self, seconds: float) -> None:
        """Learn how many seconds a round lasted, from its opening to its end."""
        self._round_seconds += _WEIGHT_OF_LATEST * (seconds - self._round_seconds)

    def wait(self, clients: int, rounds_to_rest: int = 0) -> float:
        """Suggest a wait in seconds, random around what spreads the load of clients that check in now and then."""
        return self._about(clients, rounds_to_rest) * self._random.uniform(_LEAST, _MOST)

    def least_wait(self, clients: int) -> float:
        """Say how many seconds `wait` suggests at least."""
        return self._about(clients) * _LEAST

    def stand_by(self) -> float:
        """Suggest a wait in seconds to a client that waits for the next draw."""
        return self.wait(clients=0)

    def member_wait(self) -> float:
        """Suggest a wait in seconds to a member of a secure sum: of a cohort's, a hundred a second ask again at most.

        A step may end while they wait, so they ask several times in it.
        """
        most = max(self._soonest, self._step_seconds / _ASKED_IN_A_STEP)
        return min(max(self._soonest, self._per_round / _MEMBERS_A_SECOND), most) * self._random.uniform(_LEAST, _MOST)

    def _about(self, clients: int, rounds_to_rest: int = 0) -> float:
        spread = self._round_seconds * clients / (_MARGIN * self._per_round)
        if clients <= _MARGIN * self._per_round:
            spread = 0.0
        return min(max(self._soonest, spread, rounds_to_rest * self._round_seconds), _LONGEST)
