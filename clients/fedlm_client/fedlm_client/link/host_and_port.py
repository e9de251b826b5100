"""Addresses, as all that dial or listen read them: a host and a port.

The clients of plans share this file by a link: it imports nothing but the standard library.
"""

import functools
import ipaddress
import re

_MOST_LETTERS = 253
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_PORT = re.compile(r"[0-9]{1,5}")


class AddressError(ValueError):
    """What is no address; the message says what one is."""


def read_address(address: str, listens: bool = False) -> tuple[str, int]:
    """Take an address apart; the host of IPv6 loses its brackets.

    To listen on it, the port may be 0, for a free one, and the host 0.0.0.0 or [::], for all that the machine has.

    Raises:
      AddressError: it has another form, or cannot be dialled.
    """
    host, _, port = address.rpartition(":")
    bare = _host(host)
    known = bare is not None and _PORT.fullmatch(port) is not None and int(port) < 1 << 16
    if bare is None or not known or not (listens or (int(port) > 0 and _can_be_dialled(bare))):
        raise AddressError(
            f"the address is {address!r}, but must be HOST:PORT, with a port from {0 if listens else 1} to 65535, such "
            "as fl.example.org:8470, 127.0.0.1:8470 or [::1]:8470, and nothing before or after it"
        )
    return bare, int(port)


def written(host: str, port: int) -> str:
    """Put an address together."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@functools.lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Say whether a host is this machine, by its address or as `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host(host: str) -> str | None:
    """Read a host, without brackets; None where it is none."""
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1])) if "%" not in host else None
        except ValueError:
            return None
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        # Resolvers take such a name for an address, each in its own way.
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            return None
    return host if len(host) <= _MOST_LETTERS and all(map(_LABEL.fullmatch, labels)) else None


def _can_be_dialled(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return True
    return not (address.is_multicast or address.is_unspecified or host == "255.255.255.255")
