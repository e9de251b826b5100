"""Sends an upload over connections that may break, from the byte on that the server lacks, so that it counts once."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from . import messages_pb2 as messages
from .errors import TransportError, UnknownArtifactError
from .link.calls import in_pieces
from .training import Channel
from .waits import Waits

_Reply = messages.UploadReply


async def send_upload(
    channel: Channel,
    header: messages.UploadHeader,
    pieces: Callable[[int], AsyncIterator[bytes]],
    deadline: float,
    *,
    waits: Waits,
    notice: Callable[[str], None],
) -> messages.UploadReply:
    """Upload until the server has all of it; under one id.

    Args:
      channel: to the server.
      header: of the upload.
      pieces: gives its bytes from a place on.
      deadline: by `time.monotonic`, after which no other try begins.
      waits: between tries.
      notice: told of each that broke off.

    Raises:
      TransportError: the deadline came first.
    """
    broke = False
    while True:
        try:
            header.offset = 0
            reply = await _ask(channel, header) if broke and header.size else None
            if reply is None or reply.status == _Reply.DAMAGED:
                received = 0 if reply is None else reply.received
                header.offset = received if received < header.size else 0
                reply = await channel.upload(header, pieces(header.offset))
            if reply.status != _Reply.DAMAGED:
                waits.worked()
                return reply
        except TransportError as error:
            notice(f"the upload broke off: {error}")
        broke, wait = True, waits.after_failure()
        if time.monotonic() + wait > deadline:
            raise TransportError("the upload did not get through while the round was open")
        await asyncio.sleep(wait)


async def _ask(channel: Channel, header: messages.UploadHeader) -> messages.UploadReply | None:
    """Ask how much of an upload there is; None where the server is of a version that does not say."""
    asking = messages.UploadHeader()
    asking.CopyFrom(header)
    asking.asks = True
    try:
        return await channel.upload(asking, in_pieces(b"", lambda: None))
    except UnknownArtifactError:
        return None
