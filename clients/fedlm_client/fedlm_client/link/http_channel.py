"""A client's connections to a server: HTTP/1.1, over TLS with certificates on both sides."""

import asyncio
import base64
import contextlib
import datetime
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

import h11
from google.protobuf.message import DecodeError, Message

from .. import messages_pb2 as messages
from ..errors import ClientError, TransportError, WrongServerError
from .calls import Chunk, DownloadRequest
from .host_and_port import AddressError, is_loopback, read_address, written
from .http_connection import AT_ONCE, Connection
from .protocol import (
    ARTIFACTS,
    CHECK_IN,
    CHUNK_BYTES,
    CLIENT_NAME,
    FIRST_CHUNK,
    LARGEST_CHUNK,
    LOG,
    MESSAGE,
    SECURE_SUM,
    UPLOAD,
    UPLOAD_HEADER,
)

_ANSWER_SECONDS, _TRANSFER_SECONDS = 30.0, 3600.0
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
_MOST_DIGITS = len(str(LARGEST_CHUNK))
_LONGEST_HEAD, _CONNECTED = 1 << 14, re.compile(rb"HTTP/1\.[01] 200 ")
_CLAIMED = re.compile(r"[!-~][ -~]{0,127}")
_WRONG_NAME, _WRONG_TIME = (62, 63, 64), (9, 10)  # codes of OpenSSL
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")

_Answer = TypeVar("_Answer", bound=Message)


class HttpChannel:
    """Connections to a server; a `Channel`. Make and use it in one event loop."""

    def __init__(
        self, server: str, name: str | None = None, tls: ssl.SSLContext | None = None, proxy: str | None = None
    ):
        """Prepare to dial.

        Args:
          server: host and port.
          name: what the client calls itself where it has no certificate.
          tls: credentials; None for plain text, on loopback alone.
          proxy: host and port of a proxy that carries what is encrypted (`CONNECT`); no other is ever used.

        Raises:
          ClientError: an address or the name is none, or others would hear plain text.
        """
        if proxy is not None and tls is None:
            raise ClientError("a proxy would hear and could change plain text; give credentials, or no proxy")
        try:
            self._host, self._port = read_address(server)
            self._proxy = None if proxy is None else read_address(proxy)
        except AddressError as error:
            raise ClientError(str(error)) from error
        if tls is None and not (name and is_loopback(self._host)):
            raise ClientError("without credentials a client needs a name, and speaks to a server on loopback alone")
        if tls is None and not _CLAIMED.fullmatch(name or ""):
            raise ClientError(f"the client's name is {name!r}, but must be 1 to 128 printable characters of ASCII")
        self._tls = tls
        self._always = [("Host", written(self._host, self._port))]
        if tls is None:
            self._always.append((CLIENT_NAME, name or ""))
        self._idle: list[Connection] = []

    async def check_in(self, request: messages.CheckInRequest) -> messages.CheckInReply:
        return await self.ask(CHECK_IN, request, messages.CheckInReply)

    async def secure_sum(self, request: messages.SecureRequest) -> messages.SecureReply:
        return await self.ask(SECURE_SUM, request, messages.SecureReply)

    async def log(self, request: messages.LogRequest) -> messages.LogReply:
        return await self.ask(LOG, request, messages.LogReply)

    async def ask(self, path: str, request: Message, answer: type[_Answer]) -> _Answer:
        """Send a message, and wait for the one that answers it; see `Channel.check_in` for errors."""
        body = request.SerializeToString()
        fields = [("Content-Type", MESSAGE), ("Content-Length", str(len(body)))]
        async with self._connection(_ANSWER_SECONDS) as connection:
            await connection.begin("POST", path, fields)
            await connection.send(body)
            return answer.FromString(await connection.body(await connection.answer()))

    async def download(self, request: DownloadRequest) -> AsyncIterator[Chunk]:
        target = f"{ARTIFACTS}{request.digest.hex()}?{FIRST_CHUNK}={request.first_chunk}"
        async with self._connection(_TRANSFER_SECONDS) as connection:
            await connection.begin("GET", target, [])
            await connection.send(b"")
            answer = await connection.answer()
            number, size, chunk = request.first_chunk, _chunk_bytes(answer), bytearray()
            async for data in connection.pieces():
                rest = memoryview(data)
                while rest:
                    taken = rest[: size - len(chunk)]
                    rest = rest[len(taken) :]
                    chunk += taken
                    if len(chunk) == size:
                        yield Chunk(number=number, data=bytes(chunk))
                        number, chunk = number + 1, bytearray()
            if chunk:
                yield Chunk(number=number, data=bytes(chunk))

    async def upload(self, header: messages.UploadHeader, pieces: AsyncIterator[bytes]) -> messages.UploadReply:
        encoded = base64.b64encode(header.SerializeToString()).decode("ascii")
        size = 0 if header.asks else header.size - header.offset
        fields = [(UPLOAD_HEADER, encoded), ("Content-Length", str(size))]
        if size:
            fields.append(("Expect", "100-continue"))
        async with self._connection(_TRANSFER_SECONDS if size else _ANSWER_SECONDS) as connection:
            await connection.begin("POST" if header.asks else "PUT", UPLOAD, fields)
            if not size or await connection.wanted():
                await connection.send_while_wanted(pieces)
            return messages.UploadReply.FromString(await connection.body(await connection.answer()))

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    @contextlib.asynccontextmanager
    async def _connection(self, seconds: float) -> AsyncIterator["Connection"]:
        """Use a connection for one call of so many seconds, and keep it for the next where that is possible."""
        with _translated(written(self._host, self._port)):
            connection = await self._dial()
            connection.expect_within(seconds)
            try:
                yield connection
                if connection.reusable():
                    self._idle.append(connection)
                    return
            except BaseException:
                connection.abort()
                raise
            connection.close()

    async def _dial(self) -> "Connection":
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost:
                return connection
            connection.close()
        if self._proxy is None:
            opened = asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=AT_ONCE)
        else:
            opened = self._dial_by_proxy(*self._proxy)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                reader, writer = await opened
        except TimeoutError as error:
            raise TransportError(f"no connection within {_ANSWER_SECONDS:g} seconds") from error
        _keep_alive(writer.get_extra_info("socket"))
        return Connection(reader, writer, self._always)

    async def _dial_by_proxy(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert self._tls is not None
        reader, writer = await asyncio.open_connection(host, port, limit=_LONGEST_HEAD)
        try:
            server = written(self._host, self._port)
            writer.write(f"CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n\r\n".encode("ascii"))
            head = await reader.readuntil(b"\r\n\r\n")
            status = _CONNECTED.match(head)
            if status is None:
                said = head[:100].split(b"\r\n")[0].decode("ascii", "replace")
                raise TransportError(f"the proxy {written(host, port)} carries nothing to {server}: {said!r}")
            await writer.start_tls(self._tls, server_hostname=self._host)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            writer.close()
            raise TransportError(f"the program at {written(host, port)} is not a proxy") from error
        except BaseException:
            writer.close()
            raise
        return reader, writer


def _chunk_bytes(answer: h11.Response) -> int:
    field = dict(answer.headers).get(CHUNK_BYTES.encode("ascii"), b"")
    size = int(field) if field.isdigit() and len(field) <= _MOST_DIGITS else 0
    if not 0 < size <= LARGEST_CHUNK:
        raise TransportError(f"the server's chunks have no size from 1 to {LARGEST_CHUNK} bytes")
    return size


def _keep_alive(connected: socket.socket) -> None:
    # A server that is gone without a word is noticed within a minute.
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@contextlib.contextmanager
def _translated(server: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ssl.SSLError, h11.ProtocolError, DecodeError) as error:
        if isinstance(error, ssl.SSLError) and (wrong := _wrong_server(server, error)):
            raise WrongServerError(wrong) from error
        if isinstance(error, ssl.SSLCertVerificationError):
            clock = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
            raise TransportError(f"by this machine's clock, {clock}: {error}") from error
        raise TransportError(f"{type(error).__name__}: {error}") from error


def _wrong_server(server: str, error: ssl.SSLError) -> str | None:
    """Say why TLS fails where it will fail again; None where a clock or a renewed certificate may mend it."""
    said, reason = getattr(error, "verify_message", ""), error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _WRONG_TIME:
            return None
        if error.verify_code in _WRONG_NAME:
            return f"the server at {server} has a certificate for other names ({said}); dial one that it has"
        return f"the server at {server} has a certificate of an authority that this client does not trust ({said})"
    if "UNKNOWN_CA" in reason or "CERTIFICATE_REQUIRED" in reason or "BAD_CERTIFICATE" in reason:
        return f"the server at {server} does not trust this client's certificate ({reason}); enrol with its authority"
    if reason in _NOT_TLS:
        return (
            f"the program at {server} does not speak TLS ({reason}); dial the address that the server has for clients"
        )
    return None
