"""The client for browsers, as files that a server has over HTTP beside its calls, and what other pages may not do.

It comes from where its calls go, since a browser shows a certificate to no server that another page asks first (CORS).
"""

import asyncio
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from fedlm.fedlm_client.errors import RefusedError
from fedlm.fl_core.deployment.transport.http_connections import Head, ServedCall
from fedlm.fl_core.errors import ConfigurationError, setting

_FIRST = "index.html"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".gz": "application/gzip",
}
_MOST_BYTES, _BYTES_A_SECOND = 1 << 22, float(1 << 20)
# The page runs nothing that did not come with it, and speaks to nobody but this server.
_POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# What runs plans speaks to nobody, and compiles the WebAssembly that it was brought.
_RUNS_PLANS, _ITS_POLICY = "/litert.js", "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'"
_FIELDS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


class Page:
    """Files that are read once."""

    def __init__(self, folder: Path):
        """Read the HTML, scripts, styles and packed WebAssembly of a folder.

        Raises:
          ConfigurationError: there is no index.html, a file cannot be read, or together they are too large.
        """
        try:
            files = [path for path in sorted(folder.iterdir()) if path.suffix in _KINDS]
            self._files = {f"/{path.name}": (_KINDS[path.suffix], path.read_bytes()) for path in files}
        except OSError as error:
            raise ConfigurationError(f"{setting('page')} is {folder}, which cannot be read ({error})") from error
        if f"/{_FIRST}" not in self._files or sum(len(content) for _, content in self._files.values()) > _MOST_BYTES:
            raise ConfigurationError(
                f"{setting('page')} is {folder}, which has no {_FIRST}, or more than {_MOST_BYTES:,} bytes; `npm run "
                "build` in clients/javascript makes build/page"
            )
        self._files["/"] = self._files[f"/{_FIRST}"]

    def has(self, head: Head) -> bool:
        """Whether a request is for one of the files."""
        return head.method == "GET" and head.target in self._files

    async def send(self, call: ServedCall) -> None:
        """Answer with a file that there is, at a pace at which it costs calls little."""
        kind, content = self._files[call.head.target]
        await asyncio.sleep(len(content) / _BYTES_A_SECOND)
        policy = _ITS_POLICY if call.head.target == _RUNS_PLANS else _POLICY
        await call.send(HTTPStatus.OK, _FIELDS | {"Content-Security-Policy": policy, "Content-Type": kind}, content)


def check_origin(head: Head) -> None:
    """Refuse, with `RefusedError`, what a page from elsewhere asks for: a browser would show its user's certificate."""
    origin = head.fields.get("origin")
    if origin is None:
        return
    try:
        same = urlsplit(origin).netloc.lower() == head.fields.get("host", "").lower() != ""
    except ValueError:
        same = False
    if not same:
        raise RefusedError(f"a page from {origin[:100]} calls, which did not come from this server")
