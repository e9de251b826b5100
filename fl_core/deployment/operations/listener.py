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
from fedlm.fl_core.deployment.operations.gate import Asked, Gate, NotPermittedError
from fedlm.fl_core.deployment.operations.operator_calls import Call, FoundCall
from fedlm.fl_core.deployment.operations.overview import Shown
from fedlm.fl_core.deployment.security.operator_access import CHALLENGE
from fedlm.fl_core.deployment.security.people import Access, Person
from fedlm.fl_core.deployment.state.state import StateError
from fedlm.fl_core.deployment.transport.connection_limits import ConnectionLimits
from fedlm.fl_core.deployment.transport.http_connections import PLAIN, ServedCall
from fedlm.fl_core.deployment.transport.http_listener import HttpListener
from fedlm.fl_core.errors import DiskError, UserError
from fedlm.fl_core.json_text import json_text

Answer = tuple[HTTPStatus, dict[str, str], bytes]
"""Status, fields and body of an answer."""

_LIMITS = ConnectionLimits(in_all=200, of_address=100)
_AT_ONCE = 4
_KEEP_NOTHING = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_JSON = {"Content-Type": "application/json"}


class OperatorApplication:
    """The page at `/`, `/status.json` and `/metrics`, and the calls of what is shown, for those who may; `/healthz` and
    `/readyz`, for anybody."""

    def __init__(self, shown: Shown, metrics: CallMetrics, access: Access | None = None):
        """Name what is shown.

        Args:
          shown: what is shown of this process.
          metrics: of this process, which those of `shown` join.
          access: knows who calls; None lets everybody do everything.
        """
        metrics.registry.register(shown)
        self._shown, self._metrics = shown, metrics.registry
        self._gate = Gate(access, None if shown.calls is None else shown.calls.audit)
        self._page = resources.files(__package__).joinpath(shown.page).read_text(encoding="utf-8")
        self.wants_token = access is not None

    def who(self, asked: Asked) -> Person:
        """Find who asks, in any thread. Raises RefusedError where that is nobody who is known."""
        return self._gate.who(asked)

    def answer(self, person: Person, asked: Asked) -> Answer:
        """Answer a person's request that is no probe, in any thread."""
        calls = self._shown.calls
        found = None if calls is None else calls.find(asked.method, asked.path)
        # A browser sends JSON for another site's page only where this one has agreed, which it does not.
        if calls is not None and asked.method == "POST" and asked.fields.get("content-type") != _JSON["Content-Type"]:
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, PLAIN, b"a call's body is application/json\n"
        if found is not None:
            return self._passed(person, asked, found, lambda told: (HTTPStatus.OK, _JSON, json_text(told).encode()))
        if asked.method != "GET":
            only = "only GET" if calls is None else "only GET there; POST is for /runs/NAME"
            return HTTPStatus.METHOD_NOT_ALLOWED, PLAIN, f"{only}\n".encode()
        if asked.path == "/metrics":
            encode, kind = choose_encoder(asked.fields.get("accept", ""))
            show = FoundCall(Call.SHOW_METRICS, "", lambda *_: encode(self._metrics))
            return self._passed(person, asked, show, lambda told: (HTTPStatus.OK, {"Content-Type": kind}, told))
        if asked.path not in ("/", "/status.json"):
            paths = "/, /status.json and /metrics" if calls is None else "/, /status.json, /runs/NAME and /metrics"
            return HTTPStatus.NOT_FOUND, PLAIN, f"there are {paths}\n".encode()
        show = FoundCall(Call.SHOW_STATUS, "", lambda *_: self._shown.read())
        return self._passed(person, asked, show, lambda told: self._status(asked.path, told))

    def _passed(self, person: Person, asked: Asked, found: FoundCall, answer: Callable[[Any], Answer]) -> Answer:
        try:
            return answer(self._gate.through(person, asked, found))
        except NotPermittedError as error:
            return HTTPStatus.FORBIDDEN, PLAIN, f"{error}\n".encode()
        except (StateError, DiskError) as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, f"{error}\n".encode()
        except UserError as error:
            refused = found.call is not Call.SHOW_STATUS
            status = HTTPStatus.CONFLICT if refused else HTTPStatus.SERVICE_UNAVAILABLE
            return status, PLAIN, f"{error.for_command_line()}\n".encode()

    def _status(self, path: str, status: dict[str, Any] | None) -> Answer:
        if status is None:
            return HTTPStatus.NOT_FOUND, PLAIN, b"here is /metrics; the coordinator has / and /status.json\n"
        if path == "/status.json":
            return HTTPStatus.OK, _JSON, json_text(status).encode()
        return self._status_page(status)

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
        # No other site puts the page, whose buttons act, into a frame of its own.
        policy += "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
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
        if answer is None:
            answer = await self._answered(call, Asked(method, path, call.head.fields, call.connection.address))
        status, fields, body = answer
        await call.send(status, fields | _KEEP_NOTHING, body)

    async def _answered(self, call: ServedCall, asked: Asked) -> Answer:
        try:
            async with self._threads:
                person = await asyncio.to_thread(self._application.who, asked)
        except RefusedError as error:
            call.closes = True
            await self._refusals.note("", call.connection.address, error)
            fields = PLAIN | {"WWW-Authenticate": CHALLENGE}
            return HTTPStatus.UNAUTHORIZED, fields, f"{error}\n".encode(errors="replace")
        if self._application.wants_token:
            call.identify(person.name)
        body = await call.body()
        # Probes wait for no thread: while a database hangs it may have them all, which is no reason to be killed.
        async with self._threads:
            return await asyncio.to_thread(self._application.answer, person, asked._replace(body=body))
