"""The ways in which calls travel, by name."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedlm.fl_core.deployment.protocol.interface import Channel, Handlers
from fedlm.fl_core.deployment.protocol.names import TransportName
from fedlm.fl_core.deployment.security.credentials import (
    CLIENT,
    SERVER,
    CertifiedNames,
    client_tls,
    read_credentials,
    server_tls,
)
from fedlm.fl_core.deployment.transport.grpc_client import GrpcChannel
from fedlm.fl_core.deployment.transport.grpc_server import GrpcServer
from fedlm.fl_core.deployment.transport.http_client import HttpChannel
from fedlm.fl_core.deployment.transport.http_server import HttpServer

Dial = Callable[[str], Channel]
"""From the name that a client gives itself to its connection."""


class Transport(NamedTuple):
    """A way in which calls travel.

    Attributes:
      listen: from handlers, an address, the bytes of the largest chunk, the folder of keys (None for plain text) and
        whether processes share the port, to the server's end.
      dial: from a server's address and the folder of a client's credentials (None for plain text) to its end.
    """

    listen: Callable[[Handlers, str, int, Path | None, bool], GrpcServer | HttpServer]
    dial: Callable[[str, Path | None], Dial]


def _listen_grpc(handlers: Handlers, address: str, chunk_bytes: int, keys: Path | None, share_port: bool) -> GrpcServer:
    if keys is None:
        return GrpcServer(handlers, address, chunk_bytes, share_port=share_port)
    credentials = read_credentials(keys, SERVER).for_server()
    return GrpcServer(handlers, address, chunk_bytes, credentials, CertifiedNames(keys), share_port)


def _dial_grpc(server: str, credentials: Path | None) -> Dial:
    tls = None if credentials is None else read_credentials(credentials, CLIENT).for_client()
    return lambda name: GrpcChannel(server, name, tls)


def _listen_http(handlers: Handlers, address: str, chunk_bytes: int, keys: Path | None, share_port: bool) -> HttpServer:
    if keys is None:
        return HttpServer(handlers, address, share_port=share_port)
    return HttpServer(handlers, address, server_tls(keys, certified=True), CertifiedNames(keys).check, share_port)


def _dial_http(server: str, credentials: Path | None) -> Dial:
    tls = None if credentials is None else client_tls(credentials)
    return lambda name: HttpChannel(server, name, tls)


TRANSPORTS: dict[TransportName, Transport] = {
    "grpc": Transport(_listen_grpc, _dial_grpc),
    "http": Transport(_listen_http, _dial_http),
}
