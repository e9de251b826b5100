"""How many connections a server keeps: in all, of one address and of one client.

Beyond that the oldest stranger has to go, so that who says nothing keeps nobody out; where all are known, the newest.
"""

import contextlib
import ipaddress
import resource
from collections import Counter
from collections.abc import Callable, Iterator
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


class Place:
    """What a connection has among others."""

    def __init__(self, network: str, leave: Callable[[], None]):
        self.network, self.leave = network, leave
        self.taken = True


class Connections:
    """Counts connections. Used in one event loop."""

    def __init__(self, limits: ConnectionLimits):
        """Begin with none."""
        self._limits = limits
        self._count: Counter[str] = Counter()
        # In all and of each network, the oldest first.
        self._strangers: dict[Place, None] = {}
        self._strangers_of: dict[str, dict[Place, None]] = {}

    @contextlib.contextmanager
    def connected(self, host: str, leave: Callable[[], None]) -> Iterator[Place | None]:
        """Count a connection of an address for as long as the context lasts; yields its place, None where it has none.

        Args:
          host: the address.
          leave: shuts the connection at once. Who is connected is a stranger until it is known, who leaves when a
            newcomer needs the place.
        """
        limits, place = self._limits, Place(network_of(host), leave)
        of_network = self._strangers_of.get(place.network, {})
        # A crowd of one address makes its own strangers leave, and nobody else's.
        if not (
            self._has_room("address", place.network, limits.of_address, of_network)
            and self._has_room("all", "", limits.in_all, of_network or self._strangers)
        ):
            yield None
            return
        self._count.update([f"address {place.network}", "all "])
        self._strangers[place] = self._strangers_of.setdefault(place.network, {})[place] = None
        try:
            yield place
        finally:
            self._give_back(place)

    def know(self, place: Place) -> None:
        """Note that who has a place is no stranger, and keeps it."""
        self._strangers.pop(place, None)
        if of_network := self._strangers_of.get(place.network):
            of_network.pop(place, None)
            if not of_network:
                del self._strangers_of[place.network]

    @contextlib.contextmanager
    def identified(self, identity: str) -> Iterator[bool]:
        """Count a connection of a client by name for as long as the context lasts; yields whether it may stay."""
        stays = self._has_room("client", identity, self._limits.of_identity, {})
        self._count[f"client {identity}"] += stays
        try:
            yield stays
        finally:
            self._discount(f"client {identity}", int(stays))

    def _has_room(self, of: str, which: str, most: int, strangers: dict[Place, None]) -> bool:
        """Say whether one more fits in, after the oldest of some strangers has left where that is needed."""
        if self._count[f"{of} {which}"] < most:
            return True
        warn("connection_shut", too_many_of=of, most=most, **({of: which} if which else {}))
        if not strangers:
            return False
        oldest = next(iter(strangers))
        self._give_back(oldest)
        oldest.leave()
        return True

    def _give_back(self, place: Place) -> None:
        if place.taken:
            place.taken = False
            self.know(place)
            self._discount(f"address {place.network}", 1)
            self._discount("all ", 1)

    def _discount(self, key: str, by: int) -> None:
        self._count[key] -= by
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
