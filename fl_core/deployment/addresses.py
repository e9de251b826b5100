"""Refusals of addresses, for those who typed them."""

from fedlm.fedlm_client.link.host_and_port import AddressError, is_loopback, read_address
from fedlm.fl_core.errors import ConfigurationError


def check_address(address: str) -> None:
    """Refuse what is no host and port to dial; raises ConfigurationError."""
    try:
        read_address(address)
    except AddressError as error:
        raise ConfigurationError(str(error)) from error


def loopback_only(address: str) -> None:
    """Refuse to speak plain text where others could listen.

    Raises:
      ConfigurationError: the host, to listen on or to dial, is not loopback, or the address is none.
    """
    try:
        host, _ = read_address(address, listens=True)
    except AddressError as error:
        raise ConfigurationError(str(error)) from error
    if not is_loopback(host):
        raise ConfigurationError(
            f"the address is {address}, but plain text is for loopback alone, such as 127.0.0.1. Elsewhere it takes "
            "a folder of keys or credentials (`fedlm keys` makes them), and no --insecure"
        )
