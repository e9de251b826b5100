"""What a server listens with: where, and to whom."""

from pathlib import Path
from typing import NamedTuple, Protocol

from fedlm.fl_core.deployment.transport.connection_limits import ConnectionLimits


class ListenOptions(NamedTuple):
    """Where a server listens to clients, and to whom."""

    address: str  # host and port; port 0 takes a free one
    # folder of the server's credentials and the list of revoked clients, for mutual TLS: a client is who its
    # certificate says. Plain text where None, for loopback alone: a client is who it says.
    keys: Path | None = None
    # whether other processes may listen on the same port; the operating system spreads connections
    share_port: bool = False
    # connections at once
    limits: ConnectionLimits = ConnectionLimits()
    # addresses or networks of balancers, which say with the PROXY protocol whom they pass on
    balancers: tuple[str, ...] = ()
    # a proxy at which the TLS of clients ends, and which passes their certificates on: the name in its certificate, or
    # `unix:PATH` of its socket
    tls_proxy: str | None = None
    # folder of the client for browsers, which is served beside calls
    page: Path | None = None


class Listener(Protocol):
    """What carries calls to handlers; `fedlm.fl_core.deployment.transport.http_server.HttpServer` is one."""

    @property
    def port(self) -> int:
        """The port that it listens on, once started."""
        ...

    async def start(self) -> None:
        """Begin to listen; raises `ConfigurationError` where the address cannot be had."""
        ...

    async def stop(self, grace: float) -> None:
        """Take no new call, and end those that last longer than a grace in seconds."""
        ...
