"""How a device that has fedlm dials a server."""

from collections.abc import Callable
from pathlib import Path

from fedlm.fedlm_client.link.credentials import client_tls
from fedlm.fedlm_client.link.http_channel import HttpChannel

Dial = Callable[[str], HttpChannel]
"""From the name that a client gives itself to its connection."""


def dialling(server: str, credentials: Path | None, proxy: str | None = None) -> Dial:
    """Prepare to dial a server with the credentials in a folder, or in plain text without; see `HttpChannel`."""
    tls = None if credentials is None else client_tls(credentials)
    return lambda name: HttpChannel(server, name, tls, proxy)
