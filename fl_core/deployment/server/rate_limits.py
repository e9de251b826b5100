"""How much one client may ask of the server, so that none keeps it from the others: token buckets for each identity.

A bucket fills at a steady rate up to a size, and each call takes out of it what it costs; where too little is left,
the call is refused. There are two for each client: of calls, and of bytes in both directions. Memory is bounded.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.protocol.errors import TooManyCallsError

_REMEMBERED = 1 << 16
_SECONDS_BETWEEN_WARNINGS = 10.0
_CALLS_AT_ONCE, _CALLS_A_CHECK_IN, _CALLS_A_SECOND = 20.0, 8.0, 1.0
_ROUNDS_AT_ONCE, _ROUNDS_A_CHECK_IN = 8.0, 2.0


@dataclass(frozen=True)
class RateLimits:
    """What one client may ask for at once, and a second in the long run; bytes are those up and down together."""

    calls: float
    calls_per_second: float
    bytes: float
    bytes_per_second: float

    @classmethod
    def for_rounds(cls, round_bytes: int, check_in_seconds: float) -> "RateLimits":
        """Make limits that no client reaches which does what it is told, even over a bad network.

        A client receives and sends `round_bytes` in a round, and waits `check_in_seconds` at least between check-ins.
        """
        return cls(
            calls=_CALLS_AT_ONCE,
            calls_per_second=_CALLS_A_SECOND + _CALLS_A_CHECK_IN / check_in_seconds,
            bytes=_ROUNDS_AT_ONCE * round_bytes,
            bytes_per_second=_ROUNDS_A_CHECK_IN * round_bytes / check_in_seconds,
        )


class _Account:
    __slots__ = ("bytes", "calls", "refused", "updated", "warned")

    def __init__(self, limits: RateLimits, now: float):
        self.calls, self.bytes, self.updated = limits.calls, limits.bytes, now
        self.refused, self.warned = 0, float("-inf")


class RateLimiter:
    """The buckets of all clients. Used in one thread."""

    def __init__(self, limits: RateLimits, remembered: int = _REMEMBERED, clock: Callable[[], float] = time.monotonic):
        """Begin with full buckets; of more clients than are remembered, those silent for longest get full ones."""
        self._limits, self._remembered, self._clock = limits, remembered, clock
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def call(self, identity: str) -> None:
        """Count a call of a client; raises `TooManyCallsError` where it makes too many."""
        account = self._account(identity)
        if account.calls < 1:
            self._refuse(identity, account, "calls")
        account.calls -= 1

    def carry(self, identity: str, size: int) -> None:
        """Count bytes that a client sends or receives; raises `TooManyCallsError` where they are too many."""
        account = self._account(identity)
        if account.bytes < size:
            self._refuse(identity, account, "bytes")
        account.bytes -= size

    def owe(self, identity: str, size: int) -> None:
        """Count bytes of an answer that is made already: `carry` refuses the client's next ones until they are paid."""
        self._account(identity).bytes -= size

    def __len__(self) -> int:
        return len(self._accounts)

    def _account(self, identity: str) -> _Account:
        now, limits = self._clock(), self._limits
        account = self._accounts.get(identity)
        if account is None:
            account = self._accounts[identity] = _Account(limits, now)
            if len(self._accounts) > self._remembered:
                self._accounts.popitem(last=False)
            return account
        self._accounts.move_to_end(identity)
        passed = max(0.0, now - account.updated)
        account.calls = min(limits.calls, account.calls + passed * limits.calls_per_second)
        account.bytes = min(limits.bytes, account.bytes + passed * limits.bytes_per_second)
        account.updated = now
        return account

    def _refuse(self, identity: str, account: _Account, what: str) -> None:
        account.refused += 1
        if account.updated - account.warned >= _SECONDS_BETWEEN_WARNINGS:
            # A line for every refused call would be a burden by itself.
            warn("too_many_calls", client=identity, of=what, refused=account.refused)
            account.warned, account.refused = account.updated, 0
        raise TooManyCallsError(f"too many {what}; come back later")
