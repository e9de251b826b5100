"""The server's end of the HTTP transport: HTTP/1.1 over TLS or on loopback, one call at a time on a connection.

Beside gRPC it moves large models at little more than what a plain copy costs; `http_connections` says how.
"""

import asyncio
import contextlib
import logging
import ssl
import time
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from fedlm.fl_core.deployment.addresses import host_and_port
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.errors import (
    BrokenUploadError,
    MalformedError,
    RefusedError,
    TooManyCallsError,
    UnknownArtifactError,
)
from fedlm.fl_core.deployment.protocol.interface import Handlers
from fedlm.fl_core.deployment.protocol.names import CLIENT_NAME
from fedlm.fl_core.deployment.security.callers import Refusals, check_claimed_name, parse_message
from fedlm.fl_core.deployment.security.credentials import CertifiedNames, server_tls
from fedlm.fl_core.deployment.transport.http_connections import (
    CLOSE,
    PLAIN,
    BadRequestError,
    Head,
    ServedCall,
    ServedConnection,
)
from fedlm.fl_core.deployment.transport.http_names import ARTIFACTS, CHECK_IN, CHUNK_BYTES, FIRST_CHUNK, UPLOAD
from fedlm.fl_core.deployment.transport.listeners import ListenOptions
from fedlm.fl_core.errors import ConfigurationError

log = logging.getLogger("fedlm.transport")
_HANDSHAKE_SECONDS, _STALLED_SECONDS = 10.0, 60.0
_BYTES_AT_ONCE = 1 << 22
_SECONDS_BETWEEN_WARNINGS = 1.0
_WAITING_CONNECTIONS = 1024


class HttpServer:
    """Serves `Handlers` to clients that dial in.

    Attributes:
      port: that it listens on, once started.
    """

    def __init__(self, handlers: Handlers, options: ListenOptions):
        """Prepare to listen."""
        self._handlers, self._address, self._share_port = handlers, options.address, options.share_port
        self._tls = self._names = None
        if options.keys is not None:
            self._tls, self._names = server_tls(options.keys, certified=True), CertifiedNames(options.keys)
            self._tls.sslobject_class = _reporting_handshakes()
        self._refusals = Refusals()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task] = set()
        self._idle: set[asyncio.Task] = set()
        self.port = 0

    async def start(self) -> None:
        try:
            host, port = host_and_port(self._address)
            self._server = await asyncio.get_running_loop().create_server(
                lambda: ServedConnection(self._begin),
                host,
                port,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else _HANDSHAKE_SECONDS,
                reuse_port=self._share_port or None,
                backlog=_WAITING_CONNECTIONS,
            )
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigurationError(
                f"cannot listen on {self._address} ({error}); is another server running there?"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self, grace: float) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._idle:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving, timeout=grace)
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _begin(self, connection: ServedConnection) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, connection: ServedConnection) -> None:
        try:
            while (head := await self._next_head(connection)) is not None:
                call = ServedCall(connection, head)
                await self._answer(call)
                if call.closes:
                    await connection.linger()
                    break
        except TimeoutError:
            log.warning("too_slow", extra={"fields": {"address": connection.address}})
        except (OSError, BrokenUploadError):
            # The client has gone.
            pass
        except Exception:
            log.exception("connection_failed")
        finally:
            connection.close()

    async def _next_head(self, connection: ServedConnection) -> Head | None:
        """Wait for a request; None where no other is to be answered."""
        task = asyncio.current_task()
        assert task is not None
        self._idle.add(task)
        try:
            return await connection.head()
        except BadRequestError as error:
            await self._refusals.note("", connection.address, error)
            await connection.send(error.status, PLAIN | CLOSE, str(error).encode(errors="replace"))
            await connection.linger()
            return None
        finally:
            self._idle.discard(task)

    async def _answer(self, call: ServedCall) -> None:
        peer = ""
        try:
            peer = self._identify(call)
            await self._route(call, peer)
        except (RefusedError, MalformedError, BadRequestError) as error:
            await self._refusals.note(peer, call.connection.address, error)
            await call.say(_status_of(error, peer), str(error))
        except UnknownArtifactError as error:
            await call.say(HTTPStatus.NOT_FOUND, str(error))
        except TooManyCallsError as error:
            await self._refusals.hold()
            await call.say(HTTPStatus.TOO_MANY_REQUESTS, str(error))

    def _identify(self, call: ServedCall) -> str:
        if self._names is None:
            return check_claimed_name(call.head.fields.get(CLIENT_NAME))
        return self._names.check(call.connection.certified_names())

    async def _route(self, call: ServedCall, peer: str) -> None:
        path, method = urlsplit(call.head.target).path, call.head.method
        if (method, path) == ("POST", CHECK_IN):
            request = parse_message(messages.CheckInRequest, await call.body())
            await call.reply(await self._handlers.check_in(peer, request))
        elif (method, path) == ("PUT", UPLOAD):
            await call.reply(await self._handlers.upload(peer, call))
        elif method == "GET" and path.startswith(ARTIFACTS):
            await self._send_artifact(call, peer)
        else:
            raise BadRequestError(HTTPStatus.NOT_FOUND, f"there is no {method} of {path[:100]}")

    async def _send_artifact(self, call: ServedCall, peer: str) -> None:
        begun = False
        download = self._handlers.download(peer, _request_of(call.head.target), _BYTES_AT_ONCE)
        async with contextlib.aclosing(download) as chunks:
            try:
                async for chunk in chunks:
                    async with asyncio.timeout(_STALLED_SECONDS):
                        if not begun:
                            begun = True
                            fields = {
                                CHUNK_BYTES: str(chunk.file.chunk_bytes),
                                "Content-Type": "application/octet-stream",
                            }
                            await call.send(HTTPStatus.OK, fields, length=chunk.file.size - chunk.offset)
                        await call.connection.send_chunk(chunk)
            except (UnknownArtifactError, TooManyCallsError, RefusedError) as error:
                if begun:
                    # What was announced cannot be sent; the client asks again, and is told why.
                    raise ConnectionAbortedError(str(error)) from error
                raise
        if not begun:
            raise UnknownArtifactError("there is no such chunk of this download")


def _status_of(error: Exception, peer: str) -> HTTPStatus:
    if isinstance(error, BadRequestError):
        return error.status
    if isinstance(error, MalformedError):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.FORBIDDEN if peer else HTTPStatus.UNAUTHORIZED


def _request_of(target: str) -> messages.DownloadRequest:
    parts = urlsplit(target)
    try:
        digest = bytes.fromhex(parts.path.removeprefix(ARTIFACTS))
        (first,) = parse_qs(parts.query).get(FIRST_CHUNK, ["0"])
        return messages.DownloadRequest(digest=digest, first_chunk=int(first))
    except ValueError as error:
        raise BadRequestError(
            HTTPStatus.BAD_REQUEST, f"{target[:100]} names no artifact by its digest in hex, or no chunk of it"
        ) from error


def _reporting_handshakes() -> type[ssl.SSLObject]:
    """Make TLS connections that log why a handshake fails; of many in a second the first."""
    latest = -_SECONDS_BETWEEN_WARNINGS

    class ReportingObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            nonlocal latest
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                if (now := time.monotonic()) - latest >= _SECONDS_BETWEEN_WARNINGS:
                    latest = now
                    log.warning("handshake_failed", extra={"fields": {"why": str(error)}})
                raise

    return ReportingObject
