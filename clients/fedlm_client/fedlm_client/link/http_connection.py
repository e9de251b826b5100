"""A connection over HTTP/1.1 as a client has it: one request and its answer after another, each within a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from http import HTTPStatus
from typing import TypeVar

import h11

from ..errors import RefusedError, TransportError, UnknownArtifactError, WrongServerError, printable

Fields = list[tuple[str, str]]
"""Of a head: names and values."""

AT_ONCE = 1 << 18
"""Bytes that are read at once."""

_LONGEST_MESSAGE = 1 << 22
_FOR_GOOD = range(400, 408)
_Waited = TypeVar("_Waited")


class Connection:
    """A connection: one request and its answer after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, always: Fields):
        self._reader, self._writer, self._always = reader, writer, always
        self._until = 0.0
        self._parser = h11.Connection(h11.CLIENT)
        self._answer: h11.Response | None = None

    @property
    def lost(self) -> bool:
        """Whether the server has hung up."""
        return self._reader.at_eof() or self._writer.is_closing()

    def expect_within(self, seconds: float) -> None:
        """Bound how long the other side may take from now on, also where it sends something now and then."""
        self._until = asyncio.get_running_loop().time() + seconds

    async def begin(self, method: str, target: str, fields: Fields) -> None:
        """Send the head of a request."""
        self._answer = None
        await self._write(h11.Request(method=method, target=target, headers=[*self._always, *fields]))

    async def send(self, body: bytes) -> None:
        """Send the body of a request."""
        if body:
            await self._write(h11.Data(data=body))
        await self._write(h11.EndOfMessage())

    async def wanted(self) -> bool:
        """Wait until the server wants the body, or answers without it."""
        event = await self._next()
        if isinstance(event, h11.Response):
            self._answer = event
            return False
        return True

    async def send_while_wanted(self, pieces: AsyncIterator[bytes]) -> None:
        """Send a body in pieces, until the server answers before it has all of them."""
        early = asyncio.create_task(self._reader.read(1))
        try:
            async for piece in pieces:
                if early.done():
                    return
                await self._write(h11.Data(data=piece))
            await self._write(h11.EndOfMessage())
        except (ConnectionError, h11.LocalProtocolError):
            # What was cut short is not a request; but the server may have said why before it hung up.
            if not early.done():
                raise
        finally:
            early.cancel()
            await asyncio.wait({early})
            if not early.cancelled():
                self._parser.receive_data(early.result())

    async def answer(self) -> h11.Response:
        """Wait for the head of the answer.

        Raises:
          UnknownArtifactError, RefusedError, TransportError: it says that the call failed.
        """
        while self._answer is None:
            event = await self._next()
            if isinstance(event, h11.Response):
                self._answer = event
        answer = self._answer
        if answer.status_code == HTTPStatus.OK:
            return answer
        why = printable((await self.body(answer)).decode(errors="replace"))
        what = f"{answer.status_code} {answer.reason.decode('ascii', 'replace')}: {why}"
        if answer.status_code == HTTPStatus.NOT_FOUND:
            raise UnknownArtifactError(what)
        raise (RefusedError if answer.status_code in _FOR_GOOD else TransportError)(what)

    async def body(self, answer: h11.Response) -> bytes:
        """Receive all of an answer's body."""
        body = bytearray()
        async for piece in self.pieces():
            body += piece
            if len(body) > _LONGEST_MESSAGE:
                raise TransportError(f"the server sends more than {_LONGEST_MESSAGE} bytes where a message belongs")
        return bytes(body)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Receive an answer's body."""
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)

    def reusable(self) -> bool:
        """Make ready for another request; whether that is possible."""
        if self.lost or self._parser.our_state is not h11.DONE or self._parser.their_state is not h11.DONE:
            return False
        self._parser.start_next_cycle()
        return True

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    def abort(self) -> None:
        """Hang up at once, whatever the server has not read yet."""
        self._writer.transport.abort()

    async def _write(self, event: h11.Event) -> None:
        data = self._parser.send(event)
        if data:
            self._writer.write(data)
            await self._soon(self._writer.drain(), "read")

    async def _next(self) -> h11.Event:
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            data = await self._soon(self._reader.read(AT_ONCE), "answer")
            _check_speech(data)
            self._parser.receive_data(data)
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise TransportError("the connection ended before the answer did")
        return event

    async def _soon(self, waiting: Awaitable[_Waited], what: str) -> _Waited:
        try:
            async with asyncio.timeout_at(self._until):
                return await waiting
        except TimeoutError as error:
            raise TransportError(f"the server took too long to {what}") from error


def _check_speech(begins: bytes) -> None:
    """Refuse what begins as TLS does, and no answer over HTTP/1.1."""
    if begins[:2] == b"\x15\x03":
        raise WrongServerError("the server speaks TLS at this port, and this client plain text; give it credentials")
