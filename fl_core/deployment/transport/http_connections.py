"""A server's connection of the HTTP transport: heads are parsed by h11, bodies arrive where they are wanted.

A body always declares its length, so nobody parses its bytes. An upload goes from the socket to its place, and a
download from a file to the socket, without another copy.
"""

import asyncio
import base64
import contextlib
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

import h11
from google.protobuf.message import Message

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.protocol import CLIENT_CERTIFICATE, MESSAGE, UPLOAD_HEADER
from fedlm.fl_core.deployment.protocol.artifacts import ServedChunk
from fedlm.fl_core.deployment.protocol.errors import BrokenUploadError, MalformedError
from fedlm.fl_core.deployment.security.callers import parse_message
from fedlm.fl_core.deployment.security.credentials import ClientCertificate
from fedlm.fl_core.deployment.transport.served_sockets import ServedSocket

_LINGERING_SECONDS, _LINGERING_BYTES = 2.0, 1 << 16
PLAIN, BYTES = {"Content-Type": "text/plain; charset=utf-8"}, {"Content-Type": "application/octet-stream"}
CLOSE = {"Connection": "close"}
"""Fields of answers: of those in words, those in bytes, and the last of a connection."""

_LONGEST_HEAD, _AT_ONCE, _LONGEST_MESSAGE = 1 << 14, 1 << 11, 1 << 16
_HEAD_SECONDS, _STALLED_SECONDS = 10.0, 60.0


class BadRequestError(Exception):
    """What arrived is no request that this server understands."""

    def __init__(self, status: HTTPStatus, why: str):
        super().__init__(why)
        self.status = status


class Head(NamedTuple):
    """What precedes a request's body."""

    method: str
    target: str
    fields: dict[str, str]  # by lower-case name; of those that were given twice, the last
    length: int
    waits: bool  # whether the client sends the body only when it is told to
    close: bool  # whether it wants no other answer on this connection
    begun: bytes  # what has arrived of the body


class ServedConnection:
    """A connection of a client: one request after another."""

    def __init__(self, served: ServedSocket, certificate: ClientCertificate | None = None):
        """Serve on a socket, whoever has dialled with a certificate or without."""
        self._served, self.certificate, self.of_proxy = served, certificate, served.of_proxy
        self.receive = served.receive

    async def head(self, idle_seconds: float) -> Head | None:
        """Wait for a request; None where none began to come in so many seconds.

        Raises:
          BadRequestError: something else came.
          TimeoutError: it came too slowly.
        """
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=_LONGEST_HEAD)
        space = memoryview(bytearray(_AT_ONCE))
        try:
            async with asyncio.timeout(idle_seconds):
                count = await self.receive(space)
        except TimeoutError:
            return None
        async with asyncio.timeout(_HEAD_SECONDS):
            while count:
                try:
                    parser.receive_data(bytes(space[:count]))
                    event = parser.next_event()
                except h11.RemoteProtocolError as error:
                    raise BadRequestError(HTTPStatus(error.error_status_hint), str(error)) from error
                if isinstance(event, h11.Request):
                    return _head_of(event, parser.trailing_data[0])
                count = await self.receive(space)
        return None

    async def send(
        self, status: HTTPStatus, fields: dict[str, str], body: bytes = b"", length: int | None = None
    ) -> None:
        """Send an answer, with the length of the whole body if that is another; `TimeoutError`: it is not read."""
        lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
        if status >= HTTPStatus.OK:
            lines.append(f"Content-Length: {len(body) if length is None else length}")
        lines += [f"{name}: {value}" for name, value in fields.items()]
        await self._served.send("\r\n".join([*lines, "", ""]).encode("ascii") + body, _STALLED_SECONDS)

    async def send_chunk(self, chunk: ServedChunk) -> None:
        """Send the content of a chunk; see `ServedSocket.send_chunk`."""
        await self._served.send_chunk(chunk, _STALLED_SECONDS)

    async def linger(self) -> None:
        """Take no notice of what still arrives, for a moment: hanging up on it could cost the client its answer."""
        space = memoryview(bytearray(_LINGERING_BYTES))
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(loop.time() + _LINGERING_SECONDS):
                while await self.receive(space):
                    pass

    @property
    def certified_name(self) -> str:
        """The name in the certificate of the client, which may have been revoked; empty where there is none."""
        return self.certificate.names[0] if self.certificate and self.certificate.names else ""

    @property
    def address(self) -> str:
        """The address of the client."""
        return self._served.address


def _head_of(request: h11.Request, begun: bytes) -> Head:
    fields = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
    if request.http_version not in (b"1.0", b"1.1"):
        raise BadRequestError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "this server speaks HTTP/1.1")
    if [name for name, _ in request.headers].count(CLIENT_CERTIFICATE.encode()) > 1:
        raise BadRequestError(HTTPStatus.BAD_REQUEST, f"there are several fields {CLIENT_CERTIFICATE}")
    if "transfer-encoding" in fields:
        raise BadRequestError(HTTPStatus.LENGTH_REQUIRED, "a body must declare its length")
    return Head(
        method=request.method.decode("ascii"),
        target=request.target.decode("ascii"),
        fields=fields,
        length=int(fields.get("content-length", "0")),
        waits=fields.get("expect", "").lower() == "100-continue",
        close=request.http_version < b"1.1" or "close" in fields.get("connection", "").lower(),
        begun=begun,
    )


class ServedCall:
    """A request and its answer; a `fedlm.fl_core.deployment.protocol.interface.Upload` where it is one.

    Attributes:
      closes: whether no other may follow on the connection.
      peer: who calls; empty until `identify`.
    """

    def __init__(
        self,
        connection: ServedConnection,
        head: Head,
        body_seconds: float = _STALLED_SECONDS,
        know: Callable[[], None] = lambda: None,
    ):
        """Prepare to read the body.

        Args:
          connection: that it came on.
          head: of the request.
          body_seconds: how long the body may take where it is a message.
          know: notes that it is no stranger who calls; see `connection_limits.Connections.know`.
        """
        self.connection, self.head, self.closes = connection, head, head.close
        self._body_seconds, self._know = body_seconds, know
        self.peer = ""
        self._begun, self._left, self._waits = memoryview(head.begun), head.length, head.waits

    def identify(self, peer: str) -> None:
        """Note who calls; nobody where that is empty."""
        self.peer = peer
        if peer:
            self._know()

    async def header(self) -> messages.UploadHeader | None:
        field = self.head.fields.get(UPLOAD_HEADER)
        if field is None:
            return None
        try:
            header = parse_message(messages.UploadHeader, base64.b64decode(field, validate=True))
        except ValueError as error:
            raise MalformedError(f"{len(field)} characters that are no base64") from error
        follow = 0 if header.asks else header.size - header.offset
        if header.outcome == messages.UploadHeader.TRAINED and follow != self._left:
            raise MalformedError(f"{self._left} bytes follow, but {follow} are declared")
        return header

    async def read_into(self, space: memoryview) -> int:
        if not self._left:
            return 0
        if self._waits:
            self._waits = False
            await self.connection.send(HTTPStatus.CONTINUE, {})
        most = min(len(space), self._left)
        if self._begun:
            count = min(most, len(self._begun))
            space[:count], self._begun = self._begun[:count], self._begun[count:]
        elif not (count := await self.connection.receive(space[:most], fill=True)):
            raise BrokenUploadError(f"the connection ended {self._left} bytes before the upload did")
        self._left -= count
        return count

    async def body(self) -> bytes:
        """Receive a message.

        Raises:
          BadRequestError: it is too long.
          BrokenUploadError: not all of it came.
          TimeoutError: it comes too slowly.
        """
        if self._left > _LONGEST_MESSAGE:
            raise BadRequestError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{self._left} bytes are more than any message has"
            )
        body, end = memoryview(bytearray(self._left)), 0
        async with asyncio.timeout(self._body_seconds):
            while self._left:
                end += await self.read_into(body[end:])
        return bytes(body)

    async def send(
        self, status: HTTPStatus, fields: dict[str, str], body: bytes = b"", length: int | None = None
    ) -> None:
        """Answer; see `ServedConnection.send`."""
        # What has not been received yet would be taken for the next request.
        self.closes = self.closes or bool(self._left) or len(self._begun) > 0
        if self.closes:
            fields = fields | CLOSE
        await self.connection.send(status, fields, body, length)

    async def reply(self, message: Message) -> None:
        """Answer with a message."""
        await self.send(HTTPStatus.OK, {"Content-Type": MESSAGE}, message.SerializeToString())

    async def say(self, status: HTTPStatus, why: str) -> None:
        """Answer that a call fails, and why."""
        await self.send(status, PLAIN, why.encode(errors="replace"))
