"""What the server's ends of all transports do with those who call: their names, their messages, and refusals."""

import asyncio
import logging
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from fedlm.fedlm_client.errors import RefusedError
from fedlm.fl_core.deployment.protocol.errors import MalformedError

log = logging.getLogger("fedlm.transport")
_LONGEST_NAME = 128
_HELD_SECONDS, _MOST_HELD = 1.0, 4096
_Message = TypeVar("_Message", bound=Message)


def parse_message(kind: type[_Message], content: bytes) -> _Message:
    """Read a message that a client sent; raises `MalformedError` where the bytes are none."""
    message = kind()
    try:
        message.ParseFromString(content)
    except DecodeError as error:
        raise MalformedError(f"{len(content)} bytes that are no {kind.__name__}") from error
    return message


def check_claimed_name(name: object) -> str:
    """Check the name that a client gives itself; anybody can give any.

    Raises:
      RefusedError: there is none, or it is too long or not printable.
    """
    if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= _LONGEST_NAME):
        raise RefusedError(f"a client must name itself, in {_LONGEST_NAME} printable characters at most")
    return name


class Refusals:
    """Logs calls that are refused, and has them answered late. Used in one event loop."""

    def __init__(self) -> None:
        self._held = 0

    async def note(self, peer: str, address: str, error: Exception) -> None:
        """Log a refused call, of a client that may not be known, then wait until it may be answered."""
        log.warning("call_refused", extra={"fields": {"client": peer, "address": address, "why": str(error)}})
        await self.hold()

    async def hold(self) -> None:
        """Wait: with few calls at once on a connection, that bounds the rate of refused calls and of log lines."""
        if self._held < _MOST_HELD:
            self._held += 1
            try:
                await asyncio.sleep(_HELD_SECONDS)
            finally:
                self._held -= 1
