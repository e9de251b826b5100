"""Enrolment over HTTP, at a port of its own: the server proves who it is, the device has nothing but a token yet."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.protocol import ENROL
from fedlm.fl_core.deployment.security.callers import parse_message
from fedlm.fl_core.deployment.security.credentials import reloading_tls
from fedlm.fl_core.deployment.transport.connection_limits import ConnectionLimits
from fedlm.fl_core.deployment.transport.http_connections import BadRequestError, ServedCall
from fedlm.fl_core.deployment.transport.http_listener import HttpListener

Enrol = Callable[[str, bytes], bytes]
"""From a token and a request, neither of them trusted, to a certificate in PEM; raises `RefusedError`. May block."""

# Nobody here is known, and everybody is soon gone.
_LIMITS = ConnectionLimits(in_all=1000, of_address=500)


class EnrolmentServer(HttpListener):
    """Gives certificates for tokens."""

    def __init__(self, enrol: Enrol, address: str, keys: Path):
        """Prepare to listen on host and port, 0 for a free one, with the server's certificate in a folder of keys."""
        self._enrol = enrol
        super().__init__(self._call, address, reloading_tls(keys), limits=_LIMITS)

    async def _call(self, call: ServedCall) -> None:
        if (call.head.method, call.head.target) != ("POST", ENROL):
            raise BadRequestError(HTTPStatus.NOT_FOUND, f"there is POST {ENROL} and nothing else")
        request = parse_message(messages.EnrolRequest, await call.body())
        certificate = await asyncio.to_thread(self._enrol, request.token, request.request)
        await call.reply(messages.EnrolReply(certificate=certificate))
