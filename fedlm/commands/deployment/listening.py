"""Where a server listens to clients and to operators, and whom it lets in."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count

if TYPE_CHECKING:
    from fedlm.fl_core.deployment.operations.call_metrics import CallMetrics
    from fedlm.fl_core.deployment.operations.overview import Shown
    from fedlm.fl_core.deployment.protocol.interface import Handlers
    from fedlm.fl_core.deployment.transport.listeners import Listener


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where a server listens, and whom it lets in."""

    address: str = "127.0.0.1:8470"
    """Where to listen: host and port; port 0 takes a free one."""
    keys: Path | None = None
    """Folder of the server's credentials and the list of revoked clients, as `fedlm keys` makes it. Clients need a
    certificate of the same authority (mutual TLS), and its name is their identity."""
    plan_key: Path | None = None
    """Key of `fedlm keys plan`, `plan.key`, which signs plans for clients that have no models (`fedlm-client`). If not
    given, that of --keys, if it has one. Without a key the server turns such clients away."""
    page: Path | None = None
    """Folder of the browser client, `build/page` of clients/javascript. The server shows it at its address."""
    balancers: tuple[str, ...] = ()
    """Addresses, or networks such as 10.0.0.0/28, of balancers that pass TLS through. Each of their connections must
    begin with a head of the PROXY protocol, version 1 or 2, and counts for the address that the head names. The server
    refuses such a head from anybody else, because it is not TLS."""
    tls_proxy: str | None = None
    """A proxy at which the TLS of clients ends: the name in its certificate, as `fedlm keys client` makes one, or on
    the same machine unix:PATH of a socket. The server makes the socket, and only processes of its own user can open it
    (those of the folder's group too, where the folder has the set-group-ID bit). The proxy passes on the certificate
    of each call's client, escaped PEM, in the field fedlm-client-certificate; from anybody else that field is
    refused."""
    max_connections: Count = 10_000
    """Most connections of clients at once, if this process may open so many files. Beyond it the server closes the
    newest connections, and beyond half of it those from one address."""
    insecure: bool = False
    """Speak plain text, and believe the name that a client gives itself. Works on loopback alone."""
    operator_address: str | None = None
    """Host and port for operators: a page, `/status.json`, and `/metrics` for Prometheus. If not given, there is none.
    With keys it speaks HTTPS and needs the token of `fedlm keys operator`; insecure it speaks HTTP, for whoever can log
    in to this machine. `fedlm server` takes runs at `/runs` too, and insecure whoever can log in may stop them. An
    aggregator of `fedlm serve` has `/metrics` alone; the rest is the coordinator's."""
    access: Path | None = None
    """File that says who may do what at the operators' address, in TOML (docs/security.md). It takes the place of the
    token of `fedlm keys operator`, which may do everything. What changes in the file counts at once."""
    log: Path | None = None
    """Log file. It is put aside at 64 MiB, and four such files are kept. If not given, the log goes to standard
    error."""


def listen_to_clients(command: Listening, shared: bool = False) -> "Callable[[Handlers], Listener]":
    """Choose what listens to clients, and refuse what would let anybody in.

    Args:
      shared: whether other processes of this machine listen on the same port.
    """
    from fedlm.fedlm_client.link.credentials import SERVER, read_credentials
    from fedlm.fl_core.deployment.addresses import check_keys, loopback_only
    from fedlm.fl_core.deployment.transport.connection_limits import ConnectionLimits
    from fedlm.fl_core.deployment.transport.http_server import HttpServer
    from fedlm.fl_core.deployment.transport.listeners import ListenOptions
    from fedlm.fl_core.deployment.transport.listening_sockets import socket_path

    limits = ConnectionLimits(command.max_connections, max(1, command.max_connections // 2))
    options = ListenOptions(
        command.address, command.keys, shared, limits, command.balancers, command.tls_proxy, command.page
    )
    check_keys(command.keys, command.insecure, "plain text on loopback")
    if command.keys is None:
        for name in ("balancers", "tls_proxy"):
            if getattr(command, name):
                raise ConfigurationError(
                    f"{setting(name)} passes on clients of other machines, whose plain text others could read; give "
                    f"{setting('keys')} in place of --insecure, or leave {setting(name)} out"
                )
        loopback_only(command.address)
    else:
        read_credentials(command.keys, SERVER)
        socket_path(command.tls_proxy)
    return lambda handlers: HttpServer(handlers, options)


def listen_to_operators(command: Listening) -> "Callable[[Shown, CallMetrics], Listener] | None":
    """Choose how operators are shown the server, if at all."""
    from fedlm.fl_core.deployment.addresses import loopback_only
    from fedlm.fl_core.deployment.operations.certificate_days import CertificateDays
    from fedlm.fl_core.deployment.operations.listener import OperatorApplication, OperatorListener
    from fedlm.fl_core.deployment.security.access_file import AccessFile
    from fedlm.fl_core.deployment.security.credentials import reloading_tls
    from fedlm.fl_core.deployment.security.operator_access import OPERATOR_TOKEN_FILE, OperatorAccess
    from fedlm.fl_core.deployment.security.people import Access

    address = command.operator_address
    if address is None:
        if command.access is not None:
            raise ConfigurationError(f"{setting('access')} is for operators; give {setting('operator_address')} too")
        return None
    keys, tls = command.keys, None
    access: Access | None = None if command.access is None else AccessFile(command.access)
    if keys is None:
        loopback_only(address)
    else:
        tls, access = reloading_tls(keys), access or OperatorAccess(keys / OPERATOR_TOKEN_FILE)

    def listen(shown: "Shown", metrics: "CallMetrics") -> "Listener":
        if keys is not None:
            metrics.registry.register(CertificateDays(keys))
        return OperatorListener(OperatorApplication(shown, metrics, access), address, tls)

    return listen
