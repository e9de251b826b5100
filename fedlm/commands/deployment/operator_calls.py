"""Calls of an operator to a server's listener for operators."""

import http.client
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlm.fl_core.deployment.addresses import check_address, loopback_only
from fedlm.fl_core.deployment.security.operator_access import OPERATOR_TOKEN_FILE, read_token
from fedlm.fl_core.errors import ConfigurationError, UserError

_SECONDS = 60.0
TOKEN_VARIABLE = "FEDLM_TOKEN"
ONE_RUN = "that server trains one run (`fedlm serve`); `fedlm run` is for `fedlm server`"


@dataclass(frozen=True, kw_only=True)
class OperatorOptions:
    """Which server is asked, and who asks."""

    server: str = "127.0.0.1:8471"
    """Host and port of the operators' listener."""
    keys: Path | None = None
    """Folder with `ca.pem`, as `fedlm keys` makes it; for a server with keys."""
    token_file: Path | None = None
    """File with your token. If not given, the token is the value of FEDLM_TOKEN in the environment; without that,
    `operator.token` in --keys."""


class RefusedCallError(UserError):
    """The server answered, and refused the call."""


class OperatorCaller:
    """Calls a server, with the operators' token where it has keys."""

    def __init__(self, options: OperatorOptions):
        """Read the token. Raises UserError where there is none, or plain text would leave this machine."""
        from fedlm.fedlm_client.link.credentials import authority_tls

        check_address(options.server)
        token, tls, scheme = _token(options), None, "http"
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if options.keys is None:
            loopback_only(options.server)
        else:
            tls, scheme = authority_tls(options.keys), "https"
        # By no proxy that the environment names, which would hear plain text.
        handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
        self._opener, self._address = urllib.request.build_opener(*handlers), f"{scheme}://{options.server}"

    def get(self, path: str) -> Any:
        """Ask for what is JSON there. Raises ConfigurationError where no server answers, RefusedCallError where it
        refuses."""
        return self._call(urllib.request.Request(self._address + path, headers=self._headers))

    def post(self, path: str, content: Any = None) -> Any:
        """Ask to do something, with what is JSON-able; see `get` for errors."""
        headers = self._headers | {"Content-Type": "application/json"}
        return self._call(urllib.request.Request(self._address + path, json.dumps(content).encode(), headers))

    def _call(self, request: urllib.request.Request) -> Any:
        try:
            with self._opener.open(request, None, _SECONDS) as got:
                return json.loads(got.read())
        except urllib.error.HTTPError as error:
            raise RefusedCallError(_refusal(request, error)) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            if isinstance(why, TimeoutError):
                raise ConfigurationError(
                    f"{request.full_url}: no answer within {_SECONDS:.0f} seconds; what you asked for may have been "
                    "done, and you may repeat it"
                ) from error
            raise ConfigurationError(
                f"{request.full_url}: no server answers there ({why}); is it running, was it started with "
                "--operator-address, and are --keys those of this server (without, where it has none)?"
            ) from error


def _token(options: OperatorOptions) -> str | None:
    if options.token_file is not None:
        return read_token(options.token_file)
    if (given := os.environ.get(TOKEN_VARIABLE, "").strip()) != "":
        if not given.isascii() or not given.isprintable():
            raise ConfigurationError(f"{TOKEN_VARIABLE} in the environment holds other characters than a token has")
        return given
    return None if options.keys is None else read_token(options.keys / OPERATOR_TOKEN_FILE)


def _refusal(request: urllib.request.Request, error: urllib.error.HTTPError) -> str:
    said = error.read().decode(errors="replace").strip()
    if error.code == http.HTTPStatus.CONFLICT:
        return said
    if error.code in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.METHOD_NOT_ALLOWED) and "/runs/" in request.full_url:
        return f"{request.full_url}: {ONE_RUN}"
    if error.code == http.HTTPStatus.UNAUTHORIZED:
        said = f"{said}; is the token of --token-file, {TOKEN_VARIABLE} or --keys one of this server?"
    return f"{request.full_url}: refused with {error.code}: {said}"
