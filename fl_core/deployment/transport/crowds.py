"""How many connections a server keeps: in all, of one address and of one client. Beyond that the newest is shut."""

import contextlib
import ipaddress
import resource
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from fedlm.fl_core.deployment.event_log import warn

_FILES_OF_THE_REST = 256


class ConnectionLimits(NamedTuple):
    """How many connections there may be at once."""

    in_all: int = 10_000
    of_address: int = 5_000  # of one address; of IPv6, where a house has many, of one network of 64 bits
    of_identity: int = 32  # of one client's certificate

    def that_fit(self) -> "ConnectionLimits":
        """Let this process open as many files as it may, and lower the limits to what leaves some for the rest."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            # The system may refuse, for one where the hard limit is infinite.
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                soft = hard
        if soft == resource.RLIM_INFINITY:
            return self
        # Of each connection there is a socket, and a file where what it uploads has no room in memory.
        fit = max(1, (soft - _FILES_OF_THE_REST) // 2)
        if fit >= self.in_all:
            return self
        warn("fewer_connections", wanted=self.in_all, allowed=fit, open_files=soft)
        return self._replace(in_all=fit, of_address=max(1, self.of_address * fit // self.in_all))


class Crowd:
    """Counts connections, or calls under way where a transport does not tell connections. Used in one event loop."""

    def __init__(self, limits: ConnectionLimits, warning: str = "connection_shut"):
        """Begin with none; `warning` is the event of the log that says that there are too many."""
        self._limits, self._warning = limits, warning
        self._count: Counter[str] = Counter()

    @contextlib.contextmanager
    def connected(self, host: str) -> Iterator[bool]:
        """Count a connection of an address for as long as the context lasts; yields whether it may stay."""
        limits = self._limits
        with (
            self._counted("all", "", limits.in_all) as one,
            self._counted("address", network_of(host), limits.of_address) as two,
        ):
            yield one and two

    def identified(self, identity: str) -> contextlib.AbstractContextManager[bool]:
        """Count a connection of a client by name; see `connected`."""
        return self._counted("client", identity, self._limits.of_identity)

    @contextlib.contextmanager
    def _counted(self, of: str, which: str, most: int) -> Iterator[bool]:
        key = f"{of} {which}"
        self._count[key] += 1
        try:
            if self._count[key] > most:
                warn(self._warning, too_many_of=of, most=most, **({of: which} if which else {}))
            yield self._count[key] <= most
        finally:
            self._count[key] -= 1
            if not self._count[key]:
                del self._count[key]


def network_of(host: str) -> str:
    """Give what counts as one address: the host itself, or of IPv6 its network of 64 bits."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host
