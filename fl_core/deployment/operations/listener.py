"""The operators' listener: HTTP, apart from the clients' one."""

import asyncio
import json
import secrets
import ssl
import threading
from collections.abc import Callable, Iterable
from importlib import resources
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import make_wsgi_app

from fedlm.fl_core.deployment.addresses import host_and_port
from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.operations.call_metrics import CallMetrics
from fedlm.fl_core.deployment.operations.overview import Overview
from fedlm.fl_core.deployment.security.operator_access import CHALLENGE, OperatorAccess
from fedlm.fl_core.errors import ConfigurationError

Answer = tuple[str, list[tuple[str, str]], bytes]
"""Status, headers and body of an answer."""

Admit = Callable[[WSGIEnvironment], Answer | None]
"""From a request to None where it may be answered, else to the refusal."""

_SILENT_SECONDS = 10.0
_PLAIN = [("Content-Type", "text/plain; charset=utf-8")]
_KEEP_NOTHING = [
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
]


def token_needed(access: OperatorAccess) -> Admit:
    """Admit whoever has the operators' token."""

    def admit(environ: WSGIEnvironment) -> Answer | None:
        if access.allows(environ.get("HTTP_AUTHORIZATION")):
            return None
        warn("operator_refused", address=environ.get("REMOTE_ADDR"))
        return "401 Unauthorized", [*_PLAIN, ("WWW-Authenticate", CHALLENGE)], b"the operators' token is needed\n"

    return admit


class OperatorApplication:
    """A WSGI application: the page at `/`, `/status.json` and `/metrics`."""

    def __init__(self, overview: Overview | None, metrics: CallMetrics, admit: Admit | None = None):
        """Name what is shown.

        Args:
          overview: None where another process has it, and only the metrics are here.
          metrics: of this process, which the overview joins.
          admit: checks who asks; None admits everybody.
        """
        if overview is not None:
            metrics.registry.register(overview)
        self._overview, self._admit = overview, admit
        self._metrics = make_wsgi_app(metrics.registry)
        self._page = resources.files(__package__).joinpath("status.html").read_text(encoding="utf-8")

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        refused = self._admit(environ) if self._admit is not None else None
        if refused is None and environ.get("PATH_INFO") == "/metrics" and environ["REQUEST_METHOD"] == "GET":
            return self._metrics(environ, start_response)
        status, headers, body = refused or self._answer(environ)
        start_response(status, [*headers, *_KEEP_NOTHING, ("Content-Length", str(len(body)))])
        return [body]

    def _answer(self, environ: WSGIEnvironment) -> Answer:
        if environ["REQUEST_METHOD"] != "GET":
            return "405 Method Not Allowed", _PLAIN, b"only GET\n"
        path = environ.get("PATH_INFO", "/")
        if self._overview is None:
            return "404 Not Found", _PLAIN, b"here is /metrics; the coordinator has / and /status.json\n"
        if path == "/status.json":
            return "200 OK", [("Content-Type", "application/json")], json.dumps(self._overview.read()).encode()
        if path == "/":
            return self._status_page(self._overview.read())
        return "404 Not Found", _PLAIN, b"there are /, /status.json and /metrics\n"

    def _status_page(self, status: dict[str, Any]) -> Answer:
        nonce = secrets.token_urlsafe(16)
        # "<" could end the element that holds the JSON.
        first = json.dumps(status).replace("<", "\\u003c")
        body = self._page.replace("{{ nonce }}", nonce).replace("{{ status }}", first)
        inline = f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'"
        policy = f"default-src 'none'; {inline}; connect-src 'self'; img-src data:"
        headers = [("Content-Type", "text/html; charset=utf-8"), ("Content-Security-Policy", policy)]
        return "200 OK", headers, body.encode()


class OperatorListener:
    """Serves an application in threads of its own; a `fedlm.fl_core.deployment.transport.listeners.Listener`.

    Attributes:
      port: that it listens on, once started.
    """

    def __init__(self, application: OperatorApplication, address: str, tls: ssl.SSLContext | None = None):
        """Prepare to listen on host and port, 0 for a free one; in plain text without TLS."""
        self._application, self._address, self._tls = application, address, tls
        self._server: WSGIServer | None = None
        self.port = 0

    async def start(self) -> None:
        try:
            self._server = _Server(host_and_port(self._address), _Requests)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigurationError(
                f"operators cannot be listened to on {self._address} ({error}); expected a host of this machine and a "
                "free port, such as 127.0.0.1:8471"
            ) from error
        self._server.tls = self._tls
        self._server.set_app(self._application)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="operators", daemon=True).start()

    async def stop(self, grace: float) -> None:
        """Listen no more; what is being answered goes on, and is not waited for."""
        if self._server is not None:
            await asyncio.to_thread(self._server.shutdown)
            self._server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    tls: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        # In the thread of the request, so that a silent client keeps nobody else waiting.
        request.settimeout(_SILENT_SECONDS)
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        with self.tls.wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)

    def server_bind(self) -> None:
        # The direct parent looks the host's name up, which may take long and is not needed.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "operators", self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        warn("operator_request_failed")


class _Requests(WSGIRequestHandler):
    timeout = _SILENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a token may be in the line."""
