"""The server's end of the HTTP transport: HTTP/1.1 over TLS or on loopback, one call at a time on a connection.

In plain text it moves large models at little more than what a plain copy costs; `http_connections` says how.
"""

import contextlib
from http import HTTPStatus
from urllib.parse import SplitResult, parse_qs, urlsplit

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import RefusedError, UnknownArtifactError
from fedlm.fedlm_client.link.calls import DownloadRequest
from fedlm.fedlm_client.link.protocol import (
    ARTIFACTS,
    CHECK_IN,
    CHUNK_BYTES,
    CLIENT_CERTIFICATE,
    CLIENT_NAME,
    FIRST_CHUNK,
    LOG,
    SECURE_SUM,
    UPLOAD,
)
from fedlm.fl_core.deployment.protocol.errors import TooManyCallsError
from fedlm.fl_core.deployment.protocol.interface import Handlers
from fedlm.fl_core.deployment.security.callers import check_claimed_name, parse_message
from fedlm.fl_core.deployment.security.credentials import CertifiedNames, reloading_tls
from fedlm.fl_core.deployment.security.forwarded_certificates import ForwardedCertificates
from fedlm.fl_core.deployment.transport.http_connections import BadRequestError, ServedCall
from fedlm.fl_core.deployment.transport.http_listener import HttpListener
from fedlm.fl_core.deployment.transport.http_page import Page, check_origin
from fedlm.fl_core.deployment.transport.listeners import ListenOptions

_BYTES_AT_ONCE = 1 << 22


class HttpServer(HttpListener):
    """Serves `Handlers` to clients that dial in."""

    def __init__(self, handlers: Handlers, options: ListenOptions):
        """Prepare to listen."""
        self._handlers, self._names, tls = handlers, None, None
        if options.keys is not None:
            self._names, tls = CertifiedNames(options.keys), reloading_tls(options.keys, certified=True)
        self._forwarded = None
        if options.keys is not None and options.tls_proxy is not None:
            self._forwarded = ForwardedCertificates(options.keys)
        self._page = None if options.page is None else Page(options.page)
        super().__init__(
            self._call,
            options.address,
            tls,
            limits=options.limits,
            share_port=options.share_port,
            balancers=options.balancers,
            tls_proxy=options.tls_proxy,
        )

    async def _call(self, call: ServedCall) -> None:
        if self._page is not None and self._page.has(call.head):
            # In plain text, a browser that opens the page has no name yet.
            call.identify("" if self._names is None else self._name_of(call))
            await self._page.send(call)
            return
        call.identify(self._name_of(call))
        check_origin(call.head)
        await self._route(call, call.peer)

    def _name_of(self, call: ServedCall) -> str:
        field = call.head.fields.get(CLIENT_CERTIFICATE)
        if call.connection.of_proxy:
            return self._forwarded_name(field)
        if self._names is None:
            name = check_claimed_name(call.head.fields.get(CLIENT_NAME))
        else:
            name = self._names.check(call.connection.certificate)
            if name == self._proxy_name:
                return self._forwarded_name(field)
        if field is not None:
            raise RefusedError(f"{name} is not a proxy, so it may not pass on a certificate")
        return name

    def _forwarded_name(self, field: str | None) -> str:
        assert self._names is not None
        assert self._forwarded is not None
        return self._names.check(self._forwarded.read(field))

    async def _route(self, call: ServedCall, peer: str) -> None:
        path, method = _target_of(call).path, call.head.method
        if (method, path) == ("POST", CHECK_IN):
            request = parse_message(messages.CheckInRequest, await call.body())
            await call.reply(await self._handlers.check_in(peer, request))
        elif (method, path) == ("POST", SECURE_SUM):
            asked = parse_message(messages.SecureRequest, await call.body())
            await call.reply(await self._handlers.secure_sum(peer, asked))
        elif (method, path) == ("POST", LOG):
            named = parse_message(messages.LogRequest, await call.body())
            await call.reply(await self._handlers.log(peer, named))
        elif (method, path) in (("PUT", UPLOAD), ("POST", UPLOAD)):
            await call.reply(await self._handlers.upload(peer, call))
        elif method == "GET" and path.startswith(ARTIFACTS):
            await self._send_artifact(call, peer)
        else:
            raise BadRequestError(HTTPStatus.NOT_FOUND, f"there is no {method} of {path[:100]}")

    async def _send_artifact(self, call: ServedCall, peer: str) -> None:
        begun = False
        download = self._handlers.download(peer, _request_of(call), _BYTES_AT_ONCE)
        async with contextlib.aclosing(download) as chunks:
            try:
                async for chunk in chunks:
                    if not begun:
                        begun = True
                        fields = {CHUNK_BYTES: str(chunk.file.chunk_bytes), "Content-Type": "application/octet-stream"}
                        await call.send(HTTPStatus.OK, fields, length=chunk.file.size - chunk.offset)
                    await call.connection.send_chunk(chunk)
            except (UnknownArtifactError, TooManyCallsError, RefusedError) as error:
                if begun:
                    # What was announced cannot be sent; the client asks again, and is told why.
                    raise ConnectionAbortedError(str(error)) from error
                raise
        if not begun:
            raise UnknownArtifactError("there is no such chunk of this download")


def _target_of(call: ServedCall) -> SplitResult:
    try:
        return urlsplit(call.head.target)
    except ValueError as error:
        raise BadRequestError(HTTPStatus.BAD_REQUEST, f"{call.head.target[:100]} is not an address: {error}") from error


def _request_of(call: ServedCall) -> DownloadRequest:
    parts = _target_of(call)
    try:
        digest = bytes.fromhex(parts.path.removeprefix(ARTIFACTS))
        (first,) = parse_qs(parts.query).get(FIRST_CHUNK, ["0"])
        if (chunk := int(first)) < 0:
            raise ValueError(first)
        return DownloadRequest(digest, chunk)
    except ValueError as error:
        raise BadRequestError(
            HTTPStatus.BAD_REQUEST,
            f"{call.head.target[:100]} names no artifact by its digest in hex, or no chunk of it",
        ) from error
