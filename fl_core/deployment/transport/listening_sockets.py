"""The sockets that a server listens on: at host and port, and at a path for a proxy where the TLS of clients ends.

Whoever can open the latter speaks for every client, so few can.
"""

import asyncio
import contextlib
import errno
import socket
import stat
from pathlib import Path

from fedlm.fedlm_client.errors import KeysError
from fedlm.fedlm_client.link.host_and_port import AddressError, read_address
from fedlm.fl_core.deployment.security.certificates import check_name
from fedlm.fl_core.errors import ConfigurationError, setting

_WAITING_CONNECTIONS = 1024
_FORM = "unix:"
_OF_OWNER, _OF_OWNER_AND_GROUP = 0o600, 0o660


async def listen_at(address: str, share_port: bool) -> list[socket.socket]:
    """Listen at host and port, on each address that the host has; raises `ConfigurationError` where that fails."""
    try:
        return await _listen_at(*read_address(address, listens=True), share_port)
    except AddressError as error:
        raise ConfigurationError(str(error)) from error
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {address} ({error}); is another server running there?") from error


async def _listen_at(host: str, port: int, share_port: bool) -> list[socket.socket]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as opened:
        listening = []
        for family, where in dict.fromkeys((info[0], info[4]) for info in found):
            try:
                one = socket.create_server(
                    (str(where[0]), port), family=family, backlog=_WAITING_CONNECTIONS, reuse_port=share_port
                )
            except OSError as error:
                # A machine may know a name by an address of a family that it does not speak.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) or len(found) == 1:
                    raise
                continue
            listening.append(opened.enter_context(contextlib.closing(one)))
            one.setblocking(False)
        if not listening:
            raise OSError(f"{host} is not an address of this machine")
        opened.pop_all()
        return listening


def socket_path(tls_proxy: str | None) -> Path | None:
    """Give the path in `unix:PATH`; None where a proxy is named by its certificate, or there is none.

    Raises:
      ConfigurationError: it is neither a socket nor a name.
    """
    if tls_proxy is None:
        return None
    if tls_proxy.startswith(_FORM) and tls_proxy != _FORM:
        return Path(tls_proxy.removeprefix(_FORM))
    try:
        check_name(tls_proxy)
    except KeysError as error:
        raise ConfigurationError(
            f"{setting('tls_proxy')} is {tls_proxy!r}, but must be unix:PATH of a socket, or the name in a proxy's "
            "certificate, which `fedlm keys client` makes"
        ) from error
    return None


def listen_to_proxy(path: Path) -> socket.socket:
    """Listen at a path, where a server that was killed may have left its socket.

    Processes of this one's user can connect, and those of the folder's group where the folder has the set-group-ID bit.

    Raises:
      ConfigurationError: everybody can write to the folder, another server listens, or the path cannot be had.
    """
    with contextlib.ExitStack() as opened:
        listening = opened.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)))
        try:
            mode = path.parent.stat().st_mode
            if mode & stat.S_IWOTH:
                raise ConfigurationError(
                    f"{path.parent}: everybody can write there, and could take the proxy's calls in place of this "
                    "server; chmod o-w it, or name a socket in another folder"
                )
            _remove_unused(path)
            listening.bind(str(path))
            # Nobody can connect before it listens.
            path.chmod(_OF_OWNER_AND_GROUP if mode & stat.S_ISGID else _OF_OWNER)
            listening.listen(_WAITING_CONNECTIONS)
        except OSError as error:
            raise ConfigurationError(f"cannot listen at the proxy's socket {path} ({error})") from error
        listening.setblocking(False)
        opened.pop_all()
        return listening


def _remove_unused(path: Path) -> None:
    """Remove a socket at which nobody listens; raises `OSError` where somebody does."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise OSError("another server listens there")
