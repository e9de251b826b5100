"""Addresses: a host and a port."""

import ipaddress

from fedlm.fl_core.errors import ConfigurationError


def host_and_port(address: str) -> tuple[str, int]:
    """Take an address apart; the host of IPv6 loses its brackets; raises `ValueError` where the port is no number."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) >= 2**16:
        raise ValueError(f"{port!r} is no port")
    return host.strip("[]"), int(port)


def loopback_only(address: str) -> None:
    """Refuse to speak plain text where others could listen.

    Raises:
      ConfigurationError: the host, to listen on or to dial, is not loopback.
    """
    host = address.rsplit(":", 1)[0].strip("[]")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise ConfigurationError(
            f"the address is {address}, but plain text is for loopback alone, such as 127.0.0.1. Leave --insecure out, "
            "and give the folder of keys"
        )
