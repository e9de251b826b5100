"""The ways in which calls travel, by name."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from fedlm.fl_core.deployment.protocol.interface import Channel, Handlers
from fedlm.fl_core.deployment.protocol.names import TransportName
from fedlm.fl_core.deployment.security.credentials import CLIENT, client_tls, read_credentials
from fedlm.fl_core.deployment.transport.grpc_client import GrpcChannel
from fedlm.fl_core.deployment.transport.grpc_server import GrpcServer
from fedlm.fl_core.deployment.transport.http_client import HttpChannel
from fedlm.fl_core.deployment.transport.http_server import HttpServer
from fedlm.fl_core.deployment.transport.listeners import Listener, ListenOptions
from fedlm.fl_core.errors import ConfigurationError, setting

Dial = Callable[[str], Channel]
"""From the name that a client gives itself to its connection."""


class MakeDial(Protocol):
    """Makes the client's end."""

    def __call__(self, server: str, credentials: Path | None, proxy: str | None = None) -> Dial:
        """Prepare to dial a server's address with the credentials in a folder, or in plain text without; by a proxy
        where one is named."""
        ...


class Transport(NamedTuple):
    """A way in which calls travel."""

    listen: Callable[[Handlers, ListenOptions], Listener]  # from handlers to the server's end
    dial: "MakeDial"


def _dial_grpc(server: str, credentials: Path | None, proxy: str | None = None) -> Dial:
    if proxy is not None:
        raise ConfigurationError(f"a proxy carries HTTP alone; give {setting('transport', 'http')}")
    tls = None if credentials is None else read_credentials(credentials, CLIENT).for_client()
    return lambda name: GrpcChannel(server, name, tls)


def _dial_http(server: str, credentials: Path | None, proxy: str | None = None) -> Dial:
    tls = None if credentials is None else client_tls(credentials)
    return lambda name: HttpChannel(server, name, tls, proxy)


TRANSPORTS: dict[TransportName, Transport] = {
    "grpc": Transport(GrpcServer, _dial_grpc),
    "http": Transport(HttpServer, _dial_http),
}
