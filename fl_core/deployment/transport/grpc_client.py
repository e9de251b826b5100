"""The client's end of the gRPC transport."""

from collections.abc import AsyncIterator
from typing import NoReturn

import grpc

from fedlm.fl_core.deployment.host_and_port import read_address, written
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.errors import (
    RefusedError,
    TransportError,
    UnknownArtifactError,
    WrongServerError,
)
from fedlm.fl_core.deployment.protocol.interface import LARGEST_CHUNK
from fedlm.fl_core.deployment.protocol.names import CLIENT_NAME
from fedlm.fl_core.deployment.transport.grpc_names import (
    CHECK_IN,
    DOWNLOAD,
    SERVICE,
    UPLOAD,
    WANTED,
    flow_options,
    message_limits,
)

_WRONG_SERVER = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "is not in peer certificate", "ALPN", "http1.x")
"""What gRPC says of another authority, name or transport, with a status that is worth another try."""

_FOR_GOOD = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
}


class GrpcChannel:
    """A connection to a server; a `Channel`. Make and use it in one event loop."""

    def __init__(self, server: str, name: str, credentials: grpc.ChannelCredentials | None = None):
        """Prepare to dial host and port, by the name that a client gives itself; plain text without credentials."""
        options = [
            *message_limits(LARGEST_CHUNK),
            *flow_options(),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            # The client's own backoff decides when to dial again.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.use_local_subchannel_pool", 1),
            # A proxy that the environment names would see plain text.
            ("grpc.enable_http_proxy", 0),
            ("grpc.address_http_proxy_enabled_addresses", ""),
        ]
        host, port = read_address(server)
        # Not as it was typed: gRPC knows other forms of addresses than `read_address`.
        target = f"dns:///{written(host, port)}"
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options)
        else:
            self._channel = grpc.aio.secure_channel(target, credentials, options)
        self._metadata = ((CLIENT_NAME, name),)
        self._check_in = self._channel.unary_unary(
            f"/{SERVICE}/{CHECK_IN}",
            request_serializer=messages.CheckInRequest.SerializeToString,
            response_deserializer=messages.CheckInReply.FromString,
        )
        self._download = self._channel.unary_stream(
            f"/{SERVICE}/{DOWNLOAD}",
            request_serializer=messages.DownloadRequest.SerializeToString,
            response_deserializer=messages.Chunk.FromString,
        )
        self._upload = self._channel.stream_unary(
            f"/{SERVICE}/{UPLOAD}",
            request_serializer=messages.UploadPart.SerializeToString,
            response_deserializer=messages.UploadReply.FromString,
        )

    async def check_in(self, request: messages.CheckInRequest) -> messages.CheckInReply:
        try:
            return await self._check_in(request, metadata=self._metadata, timeout=_CHECK_IN_SECONDS)
        except grpc.aio.AioRpcError as error:
            _translate(error)

    async def download(self, request: messages.DownloadRequest) -> AsyncIterator[messages.Chunk]:
        try:
            async for chunk in self._download(request, metadata=self._metadata):
                yield chunk
        except grpc.aio.AioRpcError as error:
            _translate(error)

    async def upload(self, parts: AsyncIterator[messages.UploadPart]) -> messages.UploadReply:
        call: grpc.aio.StreamUnaryCall | None = None

        async def sent() -> AsyncIterator[messages.UploadPart]:
            yield await anext(parts)
            # What answers the first part alone, as that the round is over, spares the rest.
            assert call is not None
            if WANTED not in dict(await call.initial_metadata() or ()):
                # It is refused. Sending on before that is known for certain would hide why.
                await call.code()
                return
            async for part in parts:
                yield part

        try:
            call = self._upload(sent(), metadata=self._metadata)
            return await call
        except grpc.aio.AioRpcError as error:
            _translate(error)

    async def close(self) -> None:
        await self._channel.close()


_CHECK_IN_SECONDS = 30.0


def _translate(error: grpc.aio.AioRpcError) -> NoReturn:
    what = f"{error.code().name}: {error.details()}"
    if error.code() is grpc.StatusCode.NOT_FOUND:
        raise UnknownArtifactError(what) from error
    if any(sign in what for sign in _WRONG_SERVER):
        raise WrongServerError(f"no server of this deployment answers over gRPC ({what[:500]})") from error
    raise (RefusedError if error.code() in _FOR_GOOD else TransportError)(what) from error
