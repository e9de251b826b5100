"""A client's connection to a server: HTTP/1.1 with TLS and certificates on both sides, one call at a time."""

import base64
import contextlib
import datetime
import math
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import h11
from cryptography import x509
from cryptography.x509.oid import NameOID
from google.protobuf.message import DecodeError, Message

from fedlm_client import messages_pb2 as messages
from fedlm_client.artifacts import Assembly
from fedlm_client.errors import ClientError, GoneError, TransportError, WrongServerError
from fedlm_client.host_and_port import AddressError, is_loopback, read_address, written
from fedlm_client.wrong_servers import wrong_server

_ANSWER_SECONDS, _TRANSFER_SECONDS = 30.0, 3600.0
_LONGEST_MESSAGE = 1 << 22
_AT_ONCE = 1 << 17
_OK, _NOT_FOUND = 200, 404
_CLAIMED = re.compile(r"[!-~][ -~]{0,127}")
_FOR_GOOD = (*range(400, 404), *range(405, 408))
_LONGEST_HEAD, _CONNECTED = 1 << 14, re.compile(rb"HTTP/1\.[01] 200 ")
_Answer = TypeVar("_Answer", bound=Message)


class Channel:
    """Calls a server; each call may raise TransportError, and ClientError where the server refuses for good."""

    def __init__(
        self, address: str, credentials: Path | None = None, name: str | None = None, proxy: str | None = None
    ):
        """Prepare to dial.

        Args:
          address: host and port.
          credentials: folder with `ca.pem`, `client.pem` and `client.key`; None for plain text, on loopback alone.
          name: what the client calls itself where it has no certificate.
          proxy: host and port of a proxy that carries what is encrypted (`CONNECT`); no other is ever used.

        Raises:
          ClientError: the address or a credential is none, or others would hear plain text.
        """
        if proxy is not None and credentials is None:
            raise ClientError("a proxy would hear and could change plain text; give --credentials, or no --proxy")
        try:
            self._host, self._port = read_address(address)
            self._proxy = None if proxy is None else read_address(proxy)
        except AddressError as error:
            raise ClientError(str(error)) from error
        self._tls = None if credentials is None else _tls(credentials)
        if credentials is None and not (name and is_loopback(self._host)):
            raise ClientError("without credentials a client needs a name, and speaks to a server on loopback alone")
        if name is not None and credentials is None and not _CLAIMED.fullmatch(name):
            raise ClientError(f"the name {name!r} is none of 1 to 128 printable characters of ASCII")
        self.name = name if credentials is None else _name(credentials / "client.pem")
        self._open: tuple[socket.socket, h11.Connection] | None = None

    def check_in(self, request: "messages.CheckInRequest") -> "messages.CheckInReply":
        """Say that the device is ready."""
        body = request.SerializeToString()
        fields = [("Content-Type", "application/x-protobuf"), ("Content-Length", str(len(body)))]
        return self._call("POST", "/check-in", fields, lambda: iter((body,)), messages.CheckInReply)

    def download(self, assembly: Assembly) -> None:
        """Fetch what is missing of an artifact; raises GoneError where it is not offered any more."""
        target = f"/artifacts/{assembly.digest.hex()}?first_chunk={assembly.next_chunk}"
        assembly.begin()
        with self._connected() as connection:
            connection.begin("GET", target, [])
            connection.send(b"")
            connection.check_answer()
            connection.expect_within(_TRANSFER_SECONDS)
            for piece in connection.pieces():
                assembly.add(piece)
        if not assembly.complete:
            raise TransportError("a download ended before its last chunk")

    def upload(
        self, header: "messages.UploadHeader", body: bytes, before_bytes: Callable[[], None]
    ) -> "messages.UploadReply":
        """Send a report; `before_bytes` is called once the server wants the bytes, before the first."""
        encoded = base64.b64encode(header.SerializeToString()).decode("ascii")
        fields = [("fedlm-upload", encoded), ("Content-Length", str(len(body)))]
        if body:
            fields.append(("Expect", "100-continue"))

        def wanted() -> Iterator[bytes]:
            if body:
                before_bytes()
            for start in range(0, len(body), _AT_ONCE):
                yield body[start : start + _AT_ONCE]

        return self._call("PUT", "/upload", fields, wanted, messages.UploadReply)

    def close(self) -> None:
        """Hang up."""
        if self._open is not None:
            self._open[0].close()
            self._open = None

    def _call(
        self,
        method: str,
        target: str,
        fields: list[tuple[str, str]],
        body: Callable[[], Iterator[bytes]],
        answer: type[_Answer],
    ) -> _Answer:
        with self._connected() as connection:
            connection.begin(method, target, fields)
            if not any(name == "Expect" for name, _ in fields) or connection.wanted():
                connection.send_while_wanted(body())
            connection.check_answer()
            return answer.FromString(connection.whole())

    @contextlib.contextmanager
    def _connected(self) -> Iterator["_Exchange"]:
        try:
            if self._open is None:
                self._open = self._dial(), h11.Connection(h11.CLIENT)
            connection, parser = self._open
            always = [
                ("Host", written(self._host, self._port)),
                *([] if self._tls else [("fedlm-client", self.name or "")]),
            ]
            exchange = _Exchange(connection, parser, always)
            yield exchange
            if not exchange.reusable():
                self.close()
        except (OSError, ssl.SSLError, h11.ProtocolError, DecodeError) as error:
            self.close()
            server = written(self._host, self._port)
            if isinstance(error, ssl.SSLError) and (wrong := wrong_server(server, error)):
                raise WrongServerError(wrong) from error
            if isinstance(error, ssl.SSLCertVerificationError):
                clock = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
                raise TransportError(f"by this machine's clock, {clock}: {error}") from error
            raise TransportError(f"{type(error).__name__}: {error}") from error
        except BaseException:
            self.close()
            raise

    def _dial(self) -> socket.socket:
        where = self._proxy or (self._host, self._port)
        connection = socket.create_connection(where, timeout=_ANSWER_SECONDS)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._proxy is not None:
                self._ask_proxy(connection)
            return connection if self._tls is None else self._tls.wrap_socket(connection, server_hostname=self._host)
        except BaseException:
            connection.close()
            raise

    def _ask_proxy(self, connection: socket.socket) -> None:
        server, head = written(self._host, self._port), b""
        connection.sendall(f"CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n\r\n".encode("ascii"))
        # The server says nothing before TLS begins, so that nothing follows the head.
        while not head.endswith(b"\r\n\r\n"):
            piece = connection.recv(1 << 12)
            head += piece
            if not piece or len(head) > _LONGEST_HEAD:
                raise TransportError("what answers at the proxy's address is no proxy")
        if not _CONNECTED.match(head):
            said = head[:100].split(b"\r\n")[0].decode("ascii", "replace")
            raise TransportError(f"the proxy carries nothing to {server}: {said!r}")


class _Exchange:
    """A request on a connection, and its answer."""

    def __init__(self, connection: socket.socket, parser: h11.Connection, always: list[tuple[str, str]]):
        self._connection, self._parser, self._always = connection, parser, always
        self._answer: h11.Response | None = None
        self._deadline = math.inf

    def expect_within(self, seconds: float) -> None:
        """Bound how long the other side may take from now on, also where it sends something now and then."""
        self._deadline = time.monotonic() + seconds

    def begin(self, method: str, target: str, fields: list[tuple[str, str]]) -> None:
        """Send the head."""
        self._write(h11.Request(method=method, target=target, headers=[*self._always, *fields]))

    def send(self, body: bytes) -> None:
        """Send the body."""
        if body:
            self._write(h11.Data(data=body))
        self._write(h11.EndOfMessage())

    def wanted(self) -> bool:
        """Wait until the server wants the body, or answers without it."""
        self.expect_within(_ANSWER_SECONDS)
        event = self._next()
        if isinstance(event, h11.Response):
            self._answer = event
            return False
        return True

    def send_while_wanted(self, pieces: Iterator[bytes]) -> None:
        """Send a body in pieces; where the server hangs up meanwhile, what it said before is the answer."""
        self.expect_within(_TRANSFER_SECONDS)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                if time.monotonic() > self._deadline:
                    raise TransportError("the server took too long to read")
                self._write(h11.Data(data=piece))
            self._write(h11.EndOfMessage())

    def check_answer(self) -> None:
        """Wait for the head of the answer, and raise what it says where the call failed."""
        self.expect_within(_ANSWER_SECONDS)
        while self._answer is None:
            event = self._next()
            if isinstance(event, h11.Response):
                self._answer = event
        status = self._answer.status_code
        if status == _OK:
            return
        said = self.whole().decode(errors="replace")[:500]
        why = f"{status}: {''.join(one for one in said if one.isprintable())}"
        if status == _NOT_FOUND:
            raise GoneError(why)
        if status in _FOR_GOOD:
            raise ClientError(f"the server turns this client away: {why}")
        raise TransportError(why)

    def whole(self) -> bytes:
        """Receive all of the answer's body, which is a message."""
        body = bytearray()
        for piece in self.pieces():
            body += piece
            if len(body) > _LONGEST_MESSAGE:
                raise TransportError(f"the server sends more than {_LONGEST_MESSAGE} bytes where a message belongs")
        return bytes(body)

    def pieces(self) -> Iterator[bytes]:
        """Receive the answer's body."""
        while not isinstance(event := self._next(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)

    def reusable(self) -> bool:
        """Make ready for another request; whether that is possible."""
        if self._parser.our_state is not h11.DONE or self._parser.their_state is not h11.DONE:
            return False
        self._parser.start_next_cycle()
        return True

    def _write(self, event: h11.Event) -> None:
        data = self._parser.send(event)
        if data:
            self._connection.sendall(data)

    def _next(self) -> h11.Event:
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            if time.monotonic() > self._deadline:
                raise TransportError("the server took too long to answer")
            data = self._connection.recv(_AT_ONCE)
            _check_speech(data)
            self._parser.receive_data(data)
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise TransportError("the connection ended before the answer did")
        return event


def _check_speech(begins: bytes) -> None:
    """Refuse what begins as TLS does, and no answer over HTTP/1.1."""
    if begins[:2] == b"\x15\x03":
        raise WrongServerError("the server speaks TLS at this port, and this client plain text; give --credentials")


def _tls(folder: Path) -> ssl.SSLContext:
    try:
        key = folder / "client.key"
        if key.stat().st_mode & 0o077:
            raise ClientError(f"{key}: others than its owner can read this private key; chmod 600 it")
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(folder / "ca.pem"))
        context.load_cert_chain(folder / "client.pem", key)
    except (OSError, ssl.SSLError) as error:
        raise ClientError(
            f"{folder}: has no credentials that can be read ({error}); enrol this device again"
        ) from error
    return context


def _name(path: Path) -> str:
    """Give the name in a certificate."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        (found,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (OSError, ValueError) as error:
        raise ClientError(f"{path}: no certificate can be read ({error}); enrol this device again") from error
    return str(found.value)
