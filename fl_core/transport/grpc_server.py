"""The server's end of the gRPC transport."""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from fl_core.errors import ConfigurationError
from fl_core.transport import messages_pb2 as messages
from fl_core.transport.grpc_names import CHECK_IN, CLIENT_NAME, DOWNLOAD, SERVICE, UPLOAD, message_limits
from fl_core.transport.interface import Handlers, RefusedError, UnknownArtifactError

log = logging.getLogger("fedlm.transport")
_LONGEST_NAME = 128

Identify = Callable[[grpc.aio.ServicerContext], str]
"""From a call to the identity of its client; raises `RefusedError` where there is none."""


class GrpcServer:
    """Serves `Handlers` to clients that dial in.

    Attributes:
      port: that it listens on, once started.
    """

    def __init__(
        self,
        handlers: Handlers,
        address: str,
        chunk_bytes: int,
        credentials: grpc.ServerCredentials | None = None,
        identify: Identify | None = None,
    ):
        """Prepare to listen.

        Args:
          handlers: what to serve.
          address: host and port; port 0 takes a free one.
          chunk_bytes: largest chunk in either direction; longer messages are refused unread.
          credentials: of TLS; plain text where None, which is for loopback alone.
          identify: finds out who calls; the name that a client claims where None.
        """
        self._handlers, self._address, self._credentials = handlers, address, credentials
        self._identify = identify or claimed_name
        options = [
            *message_limits(chunk_bytes),
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers([self._routes()])
        self.port = 0

    def _routes(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                CHECK_IN: grpc.unary_unary_rpc_method_handler(
                    self._check_in,
                    request_deserializer=messages.CheckInRequest.FromString,
                    response_serializer=messages.CheckInReply.SerializeToString,
                ),
                # Chunks are serialized once, not once a client.
                DOWNLOAD: grpc.unary_stream_rpc_method_handler(
                    self._download, request_deserializer=messages.DownloadRequest.FromString
                ),
                UPLOAD: grpc.stream_unary_rpc_method_handler(
                    self._upload,
                    request_deserializer=messages.UploadPart.FromString,
                    response_serializer=messages.UploadReply.SerializeToString,
                ),
            },
        )

    async def start(self) -> None:
        """Begin to listen.

        Raises:
          ConfigurationError: the address cannot be listened on.
        """
        try:
            if self._credentials is None:
                self.port = self._server.add_insecure_port(self._address)
            else:
                self.port = self._server.add_secure_port(self._address, self._credentials)
        except RuntimeError as error:
            raise ConfigurationError(
                f"cannot listen on {self._address} ({error}); is another server running there?"
            ) from error
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Take no new call, and end those that last longer than a grace.

        Args:
          grace: in seconds.
        """
        await self._server.stop(grace)

    async def _check_in(
        self, request: messages.CheckInRequest, context: grpc.aio.ServicerContext
    ) -> messages.CheckInReply:
        peer = await self._peer(context)
        return await self._handlers.check_in(peer, request)

    async def _download(
        self, request: messages.DownloadRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        peer = await self._peer(context)
        try:
            async for chunk in self._handlers.download(peer, request):
                yield chunk
        except UnknownArtifactError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))

    async def _upload(
        self, parts: AsyncIterator[messages.UploadPart], context: grpc.aio.ServicerContext
    ) -> messages.UploadReply:
        peer = await self._peer(context)
        return await self._handlers.upload(peer, parts)

    async def _peer(self, context: grpc.aio.ServicerContext) -> str:
        try:
            return self._identify(context)
        except RefusedError as error:
            log.warning("call refused: %s", error)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
            raise


def claimed_name(context: Any) -> str:
    """Take the name that a client gives itself; anybody can give any.

    Args:
      context: of the call.

    Returns:
      The name.

    Raises:
      RefusedError: there is none, or it is too long or not printable.
    """
    name = dict(context.invocation_metadata() or ()).get(CLIENT_NAME, "")
    if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= _LONGEST_NAME):
        raise RefusedError(f"a client must name itself, in {_LONGEST_NAME} printable characters at most")
    return name
