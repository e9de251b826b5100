"""The server's end of the gRPC transport."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import lru_cache
from urllib.parse import unquote

import grpc
from cryptography import x509
from cryptography.x509.oid import NameOID

from fedlm.fl_core.deployment.host_and_port import AddressError, read_address
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.errors import (
    MalformedError,
    RefusedError,
    TooManyCallsError,
    UnknownArtifactError,
)
from fedlm.fl_core.deployment.protocol.interface import Handlers
from fedlm.fl_core.deployment.protocol.names import CLIENT_NAME
from fedlm.fl_core.deployment.protocol.uploads import UploadInParts
from fedlm.fl_core.deployment.security.callers import Refusals, check_claimed_name, parse_message
from fedlm.fl_core.deployment.security.credentials import CertifiedNames, ClientCertificate, reloading_grpc
from fedlm.fl_core.deployment.transport.crowds import Crowd
from fedlm.fl_core.deployment.transport.grpc_names import (
    CHECK_IN,
    DOWNLOAD,
    SERVICE,
    UPLOAD,
    WANTED,
    flow_options,
    message_limits,
)
from fedlm.fl_core.deployment.transport.listeners import ListenOptions
from fedlm.fl_core.errors import ConfigurationError

_CALLS_AT_ONCE = 16
_HANDSHAKE_SECONDS, _IDLE_SECONDS = 10, 900
_CERTIFICATES = 1 << 14
_STALLED_SECONDS = 60.0
_READ_BUFFER = 1 << 16


class GrpcServer:
    """Serves `Handlers` to clients that dial in.

    Attributes:
      port: that it listens on, once started.
    """

    def __init__(self, handlers: Handlers, options: ListenOptions):
        """Prepare to listen."""
        self._handlers, self._address = handlers, options.address
        self._credentials = self._names = None
        if options.keys is not None:
            self._credentials = reloading_grpc(options.keys)
            self._names = CertifiedNames(options.keys)
        limits = options.limits.that_fit()
        self._calls = Crowd(limits, "call_refused")
        channel_options = [
            *message_limits(options.chunk_bytes),
            *flow_options(),
            ("grpc.max_concurrent_streams", _CALLS_AT_ONCE),
            ("grpc.server_handshake_timeout_ms", 1000 * _HANDSHAKE_SECONDS),
            # gRPC does not say whose connections these are, so that there is no limit for an address. Calls it tells.
            ("grpc.max_allowed_incoming_connections", limits.in_all),
            # Else a connection keeps room for as much as an upload last brought at once, 0.2 MB, as long as it is open.
            ("grpc.experimental.tcp_max_read_buffer_size", _READ_BUFFER),
            ("grpc.max_connection_idle_ms", 1000 * _IDLE_SECONDS),
            ("grpc.so_reuseport", int(options.share_port)),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ]
        self._server = grpc.aio.server(options=channel_options)
        self._server.add_generic_rpc_handlers([self._routes()])
        self.port, self._refusals = 0, Refusals()

    def _routes(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                # Requests are parsed below, where a client is known and what is no message can be answered.
                CHECK_IN: grpc.unary_unary_rpc_method_handler(
                    self._check_in, response_serializer=messages.CheckInReply.SerializeToString
                ),
                # Chunks are serialized once, not once a client.
                DOWNLOAD: grpc.unary_stream_rpc_method_handler(self._download),
                UPLOAD: grpc.stream_unary_rpc_method_handler(
                    self._upload, response_serializer=messages.UploadReply.SerializeToString
                ),
            },
        )

    async def start(self) -> None:
        try:
            read_address(self._address, listens=True)  # gRPC listens on another port where there is none of this number
            if self._credentials is None:
                self.port = self._server.add_insecure_port(self._address)
            else:
                self.port = self._server.add_secure_port(self._address, self._credentials)
        except AddressError as error:
            raise ConfigurationError(str(error)) from error
        except RuntimeError as error:
            raise ConfigurationError(
                f"cannot listen on {self._address} ({error}); is another server running there?"
            ) from error
        await self._server.start()

    async def stop(self, grace: float) -> None:
        await self._server.stop(grace)

    async def _check_in(self, content: bytes, context: grpc.aio.ServicerContext) -> messages.CheckInReply:
        async with self._call(context) as peer:
            return await self._handlers.check_in(peer, parse_message(messages.CheckInRequest, content))

    async def _download(self, content: bytes, context: grpc.aio.ServicerContext) -> None:
        async with self._call(context) as peer:
            download = self._handlers.download(peer, parse_message(messages.DownloadRequest, content))
            async with contextlib.aclosing(download) as chunks:
                async for chunk in chunks:
                    try:
                        async with asyncio.timeout(_STALLED_SECONDS):
                            await context.write(chunk.message())
                    except TimeoutError:
                        raise RefusedError(f"nothing was read for {_STALLED_SECONDS:g} seconds") from None
                    except grpc.aio.InternalError as error:
                        # So gRPC says that the client has hung up, and it would log a traceback of it.
                        raise asyncio.CancelledError("the client has hung up") from error

    async def _upload(self, parts: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> messages.UploadReply:
        async with self._call(context) as peer:
            return await self._handlers.upload(peer, UploadInParts(_parse_all(parts, context)))

    @contextlib.asynccontextmanager
    async def _call(self, context: grpc.aio.ServicerContext) -> AsyncIterator[str]:
        """Find out who calls, and turn refusals into the statuses of gRPC."""
        peer = ""
        try:
            try:
                peer = self._identity_of(context)
            except RefusedError as error:
                await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, _certified_name(context), error)
            with self._calls.connected(_host_of(context.peer())) as one, self._calls.identified(peer) as two:
                if not (one and two):
                    raise TooManyCallsError("too many calls are under way; come back later")
                yield peer
        except RefusedError as error:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, peer, error)
        except MalformedError as error:
            await self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, peer, error)
        except UnknownArtifactError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except TooManyCallsError as error:
            await self._refusals.hold()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    def _identity_of(self, context: grpc.aio.ServicerContext) -> str:
        if self._names is None:
            return check_claimed_name(dict(context.invocation_metadata() or ()).get(CLIENT_NAME))
        certificates = context.auth_context().get("x509_pem_cert")
        return self._names.check(_read_certificate(certificates[0]) if certificates else None)

    async def _refuse(
        self, context: grpc.aio.ServicerContext, status: grpc.StatusCode, peer: str, error: Exception
    ) -> None:
        await self._refusals.note(peer, context.peer(), error)
        await context.abort(status, str(error))


def _certified_name(context: grpc.aio.ServicerContext) -> str:
    """Give the name in a client's certificate, which may have been revoked; empty where there is none."""
    certificates = context.auth_context().get("x509_pem_cert")
    return next(iter(_read_certificate(certificates[0]).names), "") if certificates else ""


def _host_of(peer: str) -> str:
    """Take the host from what gRPC calls a peer, as in `ipv4:192.0.2.1:5000` or `ipv6:%5B2001:db8::1%5D:5000`."""
    return unquote(peer.partition(":")[2]).rpartition(":")[0].strip("[]")


@lru_cache(_CERTIFICATES)
def _read_certificate(pem: bytes) -> ClientCertificate:
    found = x509.load_pem_x509_certificate(pem)
    names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return ClientCertificate(
        tuple(str(name.value) for name in names), found.not_valid_after_utc.timestamp(), found.serial_number
    )


async def _parse_all(
    parts: AsyncIterator[bytes], context: grpc.aio.ServicerContext
) -> AsyncIterator[messages.UploadPart]:
    asked = False
    async for part in parts:
        yield parse_message(messages.UploadPart, part)
        if not asked:
            # The first part is read, and more is wanted: clients send no other before they see this.
            await context.send_initial_metadata(((WANTED, "1"),))
            asked = True
