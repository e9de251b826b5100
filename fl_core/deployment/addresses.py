"""Addresses: a host and a port."""

import ipaddress

from fedlm.fl_core.errors import ConfigurationError


def host_and_port(address: str) -> tuple[str, int]:
    """Take an address apart; the host of IPv6 loses its brackets; raises `ValueError` where the port is no number."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) >= 2**16:
        raise ValueError(f"{port!r} is no port")
    return host.strip("[]"), int(port)


def check_address(address: str) -> None:
    """Refuse what is no host and port to dial; raises ConfigurationError."""
    try:
        host, port = host_and_port(address)
    except ValueError:
        host, port = "", 0
    if not host or port < 1:
        raise ConfigurationError(
            f"the address is {address!r}, but must be HOST:PORT, with a port from 1 to 65535, such as fl.org:8470"
        )


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine, by its address or as `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def loopback_only(address: str) -> None:
    """Refuse to speak plain text where others could listen.

    Raises:
      ConfigurationError: the host, to listen on or to dial, is not loopback.
    """
    if not is_loopback(address.rsplit(":", 1)[0].strip("[]")):
        raise ConfigurationError(
            f"the address is {address}, but plain text is for loopback alone, such as 127.0.0.1. Elsewhere it takes "
            "a folder of keys or credentials (`fedlm keys` makes them), and no --insecure"
        )
