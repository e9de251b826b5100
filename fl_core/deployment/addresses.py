"""Refusals of addresses, names of runs and keys, for those who typed them."""

import re
from pathlib import Path

from fedlm.fedlm_client.link.host_and_port import AddressError, is_loopback, read_address
from fedlm.fl_core.errors import ConfigurationError, setting

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_address(address: str) -> None:
    """Refuse what is no host and port to dial; raises ConfigurationError."""
    try:
        read_address(address)
    except AddressError as error:
        raise ConfigurationError(str(error)) from error


def check_run_name(name: str) -> None:
    """Refuse what is no name of a run, which is a part of addresses; raises ConfigurationError."""
    if not _RUN_NAME.fullmatch(name):
        raise ConfigurationError(
            f"{setting('name')} is {name!r}, but must have 1 to 64 letters, digits, - and _, and begin with a letter "
            "or digit"
        )


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


def check_keys(keys: Path | None, insecure: bool, plain_text: str) -> None:
    """Refuse keys beside plain text, and neither; `plain_text` says what would be spoken. Raises ConfigurationError."""
    if insecure and keys is not None:
        raise ConfigurationError(f"{setting('insecure')} does without {setting('keys')}; leave one of them out")
    if not insecure and keys is None:
        raise ConfigurationError(
            "there are no keys; make them with `fedlm keys` and give their folder as --keys, or give --insecure to "
            f"speak {plain_text}"
        )
