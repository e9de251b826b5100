"""Notices that aggregators have fallen silent."""

import time

LEASE_SECONDS = 5.0
"""How long an aggregator may be silent before its reports count as lost."""


class Silence:
    """Which aggregators have fallen silent, by a clock that does not step."""

    def __init__(self) -> None:
        """Know of no aggregator yet."""
        self._heard: dict[str, tuple[int, float]] = {}
        self._looked = time.monotonic()

    def silent(self, beats: dict[str, int], now: float) -> list[str]:
        """Find those whose beats stand still at a moment in seconds."""
        # Where nobody looked for a while, as when the database was gone, nobody could be heard.
        unheard = now - self._looked > LEASE_SECONDS / 2
        before, self._looked = {} if unheard else self._heard, now
        self._heard = {
            name: before[name] if name in before and before[name][0] == count else (count, now)
            for name, count in beats.items()
        }
        return [name for name, (_, since) in self._heard.items() if now - since > LEASE_SECONDS]
