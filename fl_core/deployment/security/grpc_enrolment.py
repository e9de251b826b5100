"""Enrolment over gRPC, at a port of its own: the server proves who it is, the device has nothing but a token yet."""

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

import grpc
from google.protobuf.message import DecodeError

from fedlm.fl_core.deployment.addresses import host_and_port
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.errors import RefusedError
from fedlm.fl_core.deployment.security.certificates import KeysError
from fedlm.fl_core.errors import ConfigurationError

Enrol = Callable[[str, bytes], bytes]
"""From a token and a request, neither of them trusted, to a certificate in PEM; raises `RefusedError`. May block."""

log = logging.getLogger("fedlm.transport")
_SERVICE, _ENROL = "fedlm.Enrolment", "Enrol"
_LARGEST_MESSAGE = 1 << 14
_AT_ONCE = 64
_SECONDS = 30.0
_REFUSALS = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT)


class EnrolmentServer:
    """Gives certificates for tokens.

    Attributes:
      port: that it listens on, once started.
    """

    def __init__(self, enrol: Enrol, address: str, credentials: grpc.ServerCredentials):
        """Prepare to listen on host and port, 0 for a free one, with credentials that ask for none of the clients."""
        self._enrol, self._address, self._credentials = enrol, address, credentials
        options = [
            ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
            ("grpc.max_concurrent_streams", 1),
            ("grpc.server_handshake_timeout_ms", 10_000),
            ("grpc.max_connection_age_ms", 60_000),
            ("grpc.so_reuseport", 0),
        ]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_AT_ONCE)
        handler = grpc.unary_unary_rpc_method_handler(
            self._answer, response_serializer=messages.EnrolReply.SerializeToString
        )
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, {_ENROL: handler})])
        self.port = 0

    async def start(self) -> None:
        try:
            host_and_port(self._address)
            self.port = self._server.add_secure_port(self._address, self._credentials)
        except (RuntimeError, ValueError) as error:
            raise ConfigurationError(
                f"cannot listen on {self._address} for enrolment ({error}); is another server running there?"
            ) from error
        await self._server.start()
        log.info("enrolment_listening", extra={"fields": {"port": self.port}})

    async def stop(self, grace: float) -> None:
        await self._server.stop(grace)

    async def _answer(self, content: bytes, context: grpc.aio.ServicerContext) -> messages.EnrolReply:
        try:
            request = messages.EnrolRequest.FromString(content)
            certificate = await asyncio.to_thread(self._enrol, request.token, request.request)
        except DecodeError:
            await self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "this is not a message of this protocol")
        except RefusedError as error:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(error))
        return messages.EnrolReply(certificate=certificate)

    async def _refuse(self, context: grpc.aio.ServicerContext, status: grpc.StatusCode, why: str) -> NoReturn:
        log.warning("enrolment_refused", extra={"fields": {"address": context.peer(), "why": why}})
        await context.abort(status, why)
        raise AssertionError("abort raises")


async def enrol(server: str, authority: bytes, token: str, request: bytes) -> bytes:
    """Ask a server's enrolment, at host and port, for a certificate in PEM.

    Args:
      authority: certificate that signed the server's, in PEM; no other server is talked to.
      request: see `fedlm.fl_core.deployment.security.certificates.make_request`.

    Raises:
      KeysError: the server cannot be reached, is another one, or refuses.
    """
    async with grpc.aio.secure_channel(server, grpc.ssl_channel_credentials(authority)) as channel:
        call = channel.unary_unary(
            f"/{_SERVICE}/{_ENROL}",
            request_serializer=messages.EnrolRequest.SerializeToString,
            response_deserializer=messages.EnrolReply.FromString,
        )
        try:
            reply = await call(messages.EnrolRequest(token=token, request=request), timeout=_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() in _REFUSALS:
                raise KeysError(f"{server} refuses: {error.details()}") from error
            raise KeysError(
                f"{server}: cannot be reached, or is not the server that the authority signed for "
                f"({error.code().name}: {error.details()})"
            ) from error
    return reply.certificate
