"""The operators' listener: HTTP, apart from the clients' one. Probes of a service manager need no token."""

import asyncio
import secrets
import ssl
from collections.abc import Callable
from http import HTTPStatus
from importlib import resources
from typing import Any

from prometheus_client.exposition import choose_encoder

from fedlm.fedlm_client.errors import RefusedError
from fedlm.fl_core.deployment.operations.call_metrics import CallMetrics
from fedlm.fl_core.deployment.operations.overview import Shown
from fedlm.fl_core.deployment.security.operator_access import CHALLENGE, OperatorAccess
from fedlm.fl_core.deployment.state.state import StateError
from fedlm.fl_core.deployment.transport.connection_limits import ConnectionLimits
from fedlm.fl_core.deployment.transport.http_connections import PLAIN, ServedCall
from fedlm.fl_core.deployment.transport.http_listener import HttpListener
from fedlm.fl_core.errors import UserError
from fedlm.fl_core.json_text import json_text

Answer = tuple[HTTPStatus, dict[str, str], bytes]
"""Status, fields and body of an answer."""

_LIMITS = ConnectionLimits(in_all=200, of_address=100)
_OPERATOR = "operator"
_AT_ONCE = 4
_KEEP_NOTHING = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_JSON = {"Content-Type": "application/json"}
_REFUSED: Answer = (
    HTTPStatus.UNAUTHORIZED,
    PLAIN | {"WWW-Authenticate": CHALLENGE},
    b"the operators' token is needed\n",
)


class OperatorApplication:
    """The page at `/`, `/status.json` and `/metrics`, for operators, and `/healthz` and `/readyz`, for anybody."""

    def __init__(self, shown: Shown, metrics: CallMetrics, access: OperatorAccess | None = None):
        """Name what is shown.

        Args:
          shown: what is shown of this process.
          metrics: of this process, which those of `shown` join.
          access: the operators' token; None shows everything to everybody.
        """
        metrics.registry.register(shown)
        self._shown, self._metrics, self._access = shown, metrics.registry, access
        self._page = resources.files(__package__).joinpath(shown.page).read_text(encoding="utf-8")

    @property
    def wants_token(self) -> bool:
        """Whether operators are known by a token."""
        return self._access is not None

    def allows(self, fields: dict[str, str]) -> bool:
        """Say whether an operator asks, by the fields of a request's head, whose names are in lower case."""
        return self._access is None or self._access.allows(fields.get("authorization"))

    def answer(self, method: str, path: str, fields: dict[str, str], body: bytes = b"") -> Answer:
        """Answer an operator's request that is no probe, in any thread; `fields` are those of its head."""
        if found := self._called(method, path, fields, body):
            return found
        if method != "GET":
            only = "only GET" if self._shown.calls is None else "only GET there; POST is for /runs/NAME"
            return HTTPStatus.METHOD_NOT_ALLOWED, PLAIN, f"{only}\n".encode()
        if path == "/metrics":
            encode, kind = choose_encoder(fields.get("accept", ""))
            return HTTPStatus.OK, {"Content-Type": kind}, encode(self._metrics)
        if path not in ("/", "/status.json"):
            paths = (
                "/, /status.json and /metrics"
                if self._shown.calls is None
                else "/, /status.json, /runs/NAME and /metrics"
            )
            return HTTPStatus.NOT_FOUND, PLAIN, f"there are {paths}\n".encode()
        try:
            status = self._shown.read()
        except UserError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, f"{error}\n".encode()
        if status is None:
            return HTTPStatus.NOT_FOUND, PLAIN, b"here is /metrics; the coordinator has / and /status.json\n"
        if path == "/status.json":
            return HTTPStatus.OK, _JSON, json_text(status).encode()
        return self._status_page(status)

    def _called(self, method: str, path: str, fields: dict[str, str], body: bytes) -> Answer | None:
        if self._shown.calls is None:
            return None
        # A browser sends JSON for another site's page only where this one has agreed, which it does not.
        if method == "POST" and fields.get("content-type") != _JSON["Content-Type"]:
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, PLAIN, b"a call's body is application/json\n"
        try:
            found = self._shown.calls.answer(method, path, body)
        except StateError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, f"{error}\n".encode()
        except UserError as error:
            return HTTPStatus.CONFLICT, PLAIN, f"{error.for_command_line()}\n".encode()
        return None if found is None else (found[0], _JSON, json_text(found[1]).encode())

    def probe(self, method: str, path: str) -> Answer | None:
        """Say that this process is alive, or whether it serves rounds, and nothing else that is not everybody's; None
        where that was not asked. Takes no time."""
        if method != "GET" or path not in ("/healthz", "/readyz"):
            return None
        if path == "/healthz" or self._shown.ready:
            return HTTPStatus.OK, PLAIN, b"ok\n"
        return HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, b"waiting for its database, or going down\n"

    def _status_page(self, status: dict[str, Any]) -> Answer:
        nonce = secrets.token_urlsafe(16)
        # "<" could end the element that holds the JSON.
        first = json_text(status).replace("<", "\\u003c")
        body = self._page.replace("{{ nonce }}", nonce).replace("{{ status }}", first)
        inline = f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'"
        policy = f"default-src 'none'; {inline}; connect-src 'self'; img-src data:"
        fields = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy}
        return HTTPStatus.OK, fields, body.encode()


class OperatorListener(HttpListener):
    """Serves an application; what takes long, as reading the database does, in a few threads."""

    def __init__(self, application: OperatorApplication, address: str, tls: Callable[[], ssl.SSLContext] | None = None):
        """Prepare to listen on host and port, 0 for a free one; in plain text without TLS."""
        super().__init__(self._call, address, tls, limits=_LIMITS)
        self._application, self._threads = application, asyncio.Semaphore(_AT_ONCE)

    async def _call(self, call: ServedCall) -> None:
        method, path = call.head.method, call.head.target.partition("?")[0]
        answer = self._application.probe(method, path)
        if answer is None and not self._application.allows(call.head.fields):
            answer = _REFUSED
        if answer is None:
            if self._application.wants_token:
                call.identify(_OPERATOR)
            body = await call.body()
            # Probes wait for no thread: while a database hangs it may have them all, which is no reason to be killed.
            async with self._threads:
                answer = await asyncio.to_thread(self._application.answer, method, path, call.head.fields, body)
        status, fields, body = answer
        if status is HTTPStatus.UNAUTHORIZED:
            call.closes = True
            await self._refusals.note("", call.connection.address, RefusedError("the operators' token is needed"))
        await call.send(status, fields | _KEEP_NOTHING, body)
