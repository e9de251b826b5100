"""Takes turns at the transfers that are fast enough to keep the server busy, and lets slow ones go at their own pace.

If a hundred clients send at once as fast as the server can read, each fills buffers of its own, and clients that check
in wait behind all of them. A few at a time are as fast together. A client whose network is slower than the server
costs it next to nothing, and never keeps a turn from others: a turn lasts only while bytes come fast.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator

_BYTES_A_SECOND = 100e6
_LONGEST_PAUSE_SECONDS = 0.05


class Turns:
    """Hands out turns. Make and use it in one event loop."""

    def __init__(self, count: int):
        """Begin with all turns free; so many transfers have one at once."""
        self._free = count
        self._new: deque[asyncio.Future[None]] = deque()
        self._returning: deque[asyncio.Future[None]] = deque()

    @contextlib.contextmanager
    def transfer(self) -> Iterator["Transfer"]:
        """Begin a transfer; it has no turn yet."""
        transfer = Transfer(self)
        try:
            yield transfer
        finally:
            transfer.give_up()

    async def take(self, returning: bool) -> None:
        """Wait for a turn; those that had one before come first, for they do not need it for long."""
        if self._free:
            self._free -= 1
            return
        waiting = self._returning if returning else self._new
        mine = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        """Hand a turn on to who waits for it."""
        for waiting in (self._returning, self._new):
            while waiting:
                first = waiting.popleft()
                # One that was cancelled waits no more.
                if not first.done():
                    first.set_result(None)
                    return
        self._free += 1


class Transfer:
    """One client's download or upload."""

    def __init__(self, turns: Turns):
        self._turns, self._clock = turns, asyncio.get_running_loop().time
        self._had_one, self._fast = False, True
        self._asked = self._ends = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self) -> None:
        """Wait until the next bytes may be moved: at once for a transfer that is slow, or has its turn."""
        if self._timer is not None or not self._fast:
            self._asked = self._clock()
            return
        await self._turns.take(self._had_one)
        self._had_one = True
        self._asked = self._clock()
        self._ends = self._asked + _LONGEST_PAUSE_SECONDS
        self._arm()

    def moved(self, size: int) -> None:
        """Count the bytes that were moved since the last `turn`."""
        now, worth = self._clock(), size / _BYTES_A_SECOND
        if self._timer is not None:
            self._ends = min(self._ends + worth, now + _LONGEST_PAUSE_SECONDS)
        else:
            self._fast = now - self._asked < worth

    def keep(self) -> None:
        """Keep the turn, where this has one, until the transfer ends: what has arrived is worked on."""
        if self._timer is not None:
            self._timer.cancel()

    def give_up(self) -> None:
        """Let others have the turn, where this has one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._turns.give_back()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_at(self._ends, self._look)

    def _look(self) -> None:
        if self._clock() < self._ends:
            self._arm()
        else:
            self.give_up()
