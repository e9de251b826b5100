"""A member's calls to a server, in turn, whatever carries them."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsafeSumError
from . import wire
from .member import Member, SpoiledSharesError

Step = Literal["keys", "shares", "vector", "survivors", "agree", "reveal", "refuse"]


class Reply(NamedTuple):
    """What a server answers."""

    state: Literal["wait", "ready", "over"]  # asked again later, answered, or the attempt goes on without this client
    content: bytes = b""
    reason: str = ""


Ask = Callable[[Step, bytes], Awaitable[Reply]]
"""Sends a step's bytes, again with each call, and gives the server's answer."""


async def _here(work: Callable[..., Any], *given: Any) -> Any:
    return work(*given)


async def take_part(
    member: Member,
    integers: NDArray[np.integer],
    ask: Ask,
    wait: Callable[[], Awaitable[None]],
    *,
    aside: Callable[..., Awaitable[Any]] = _here,
) -> None:
    """Give a vector of integers to a secure sum.

    Args:
      member: of the attempt; it was asked nothing yet.
      integers: that are added.
      ask: calls the server.
      wait: until the server may be asked again; raises what ends the waiting.
      aside: calls a function with arguments, where what takes long holds nobody up.

    Raises:
      UnsafeSumError: this client refuses, or the server goes on without it.
    """

    async def answered(step: Step, content: bytes) -> bytes:
        while (reply := await ask(step, content)).state == "wait":
            await wait()
        if reply.state == "over":
            raise UnsafeSumError(f"the server goes on without this client: {reply.reason}")
        return reply.content

    roster = wire.read_roster(await answered("keys", wire.write_advertisement(member.advertise())))
    dealt = wire.read_dealt(await answered("shares", wire.write_dealing(await aside(member.deal, roster))))
    try:
        vector = await aside(member.mask, dealt, integers)
    except SpoiledSharesError as error:
        # Who spoils others' shares is named. The server knows already whether bytes were opened that it has changed.
        await ask("refuse", wire.write_members(error.senders))
        raise
    except ValueError as error:
        raise UnsafeSumError(f"the roster's rules do not fit this client's vector: {error}") from error
    del integers
    await answered("vector", vector)
    survivors = wire.read_members(await answered("survivors", b""))
    signatures = wire.read_signatures(await answered("agree", member.agree(survivors)))
    await answered("reveal", wire.write_revealed(member.reveal(signatures)))
