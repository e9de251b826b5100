"""What listens for HTTP/1.1, over TLS or on loopback: to clients, to devices that enrol, to operators.

It keeps as many connections as `connection_limits` allows, one call at a time on each, and never trusts a byte of them.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

from fedlm.fedlm_client.errors import RefusedError, UnknownArtifactError
from fedlm.fedlm_client.link.host_and_port import is_loopback
from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.protocol.errors import BrokenUploadError, MalformedError, TooManyCallsError
from fedlm.fl_core.deployment.security.callers import Refusals
from fedlm.fl_core.deployment.security.credentials import read_verified
from fedlm.fl_core.deployment.transport.connection_limits import ConnectionLimits, Connections, Place
from fedlm.fl_core.deployment.transport.http_connections import (
    CLOSE,
    PLAIN,
    BadRequestError,
    Head,
    ServedCall,
    ServedConnection,
)
from fedlm.fl_core.deployment.transport.listening_sockets import listen_at, listen_to_proxy, socket_path
from fedlm.fl_core.deployment.transport.proxy_heads import ProxyHeadError, read_proxy_head
from fedlm.fl_core.deployment.transport.served_sockets import ServedSocket, scratch_memory
from fedlm.fl_core.errors import ConfigurationError, setting

Answer = Callable[[ServedCall], Awaitable[None]]
"""Answers a call, and sets who makes it; may raise what `HttpListener` turns into a refusal."""

log = logging.getLogger("fedlm.transport")
_HANDSHAKE_SECONDS, _CLOSING_SECONDS = 10.0, 2.0
_IDLE_SECONDS, _BODY_SECONDS, _STRANGERS_SECONDS = 900.0, 60.0, 10.0
_RETRY_SECONDS = 0.5


class HttpListener:
    """Listens at an address; a `fedlm.fl_core.deployment.transport.listeners.Listener`.

    Attributes:
      port: that it listens on, once started.
    """

    def __init__(
        self,
        answer: Answer,
        address: str,
        tls: Callable[[], ssl.SSLContext] | None = None,
        *,
        limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008
        share_port: bool = False,
        balancers: Sequence[str] = (),
        tls_proxy: str | None = None,
    ):
        """Prepare to listen.

        Args:
          answer: see `Answer`.
          address: host and port; port 0 takes a free one.
          tls: gives what the next connection is to be encrypted with; plain text where None.
          limits: how many connections there may be.
          share_port: whether other processes may listen there too.
          balancers: addresses, or networks, of whom each connection begins with a head of the PROXY protocol.
          tls_proxy: a proxy, whose connections are those of many clients: the name in its certificate, or `unix:PATH`
            of a socket at which this listens to it, in plain text.

        Raises:
          ConfigurationError: a balancer is no address or network, or the proxy is neither.
        """
        self._answer_call, self._address, self._tls = answer, address, tls
        self._limits, self._share_port = limits, share_port
        self._balancers, self._proxy_socket = [_network(one) for one in balancers], socket_path(tls_proxy)
        self._proxy_name = tls_proxy if self._proxy_socket is None else None
        self._connections, self._refusals = Connections(limits), Refusals()
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task] = []
        self._serving: set[asyncio.Task] = set()
        self._idle: set[asyncio.Task] = set()
        self._scratch = scratch_memory()
        self.port = 0

    async def start(self) -> None:
        self._connections = Connections(self._limits.that_fit())
        self._listening = await listen_at(self._address, self._share_port)
        if self._proxy_socket is not None:
            self._listening.append(listen_to_proxy(self._proxy_socket))
        self.port = self._listening[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept(one)) for one in self._listening]

    async def stop(self, grace: float) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for one in self._listening:
            one.close()
        if self._proxy_socket is not None and self._listening:
            self._proxy_socket.unlink(missing_ok=True)
        for task in self._idle:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving, timeout=grace)
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                # Too many files are open, or there is no memory for another: what waits is not lost.
                warn("cannot_accept", why=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            of_proxy = listening.family == socket.AF_UNIX
            host, port = ("unix", 0) if of_proxy else address[:2]
            whence = str(self._proxy_socket) if of_proxy else f"{host}:{port}"
            served = ServedSocket(accepted, whence, self._scratch, of_proxy)
            task = loop.create_task(self._welcome(served, host, port))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            # A flood of connections keeps nobody waiting who is let in already.
            await asyncio.sleep(0)

    async def _welcome(self, served: ServedSocket, host: str, port: int) -> None:
        task = asyncio.current_task()
        assert task is not None

        def leave() -> None:
            served.abort()
            task.cancel()

        try:
            if not served.of_proxy and self._passes_on(host):
                with self._connections.connected(host, leave) as place:
                    passed = None if place is None else await self._passed_on(served, (host, port))
                if passed is None:
                    return
                host, port = passed
                served.address = f"{host}:{port}"
            with self._connections.connected(host, leave) as place:
                if place is not None and await self._encrypt(served, host):
                    with contextlib.ExitStack() as counted:
                        connection = ServedConnection(served, read_verified(served.certificate))
                        name = connection.certified_name
                        if name in ("", self._proxy_name) or counted.enter_context(self._connections.identified(name)):
                            await self._serve(connection, place)
                        await served.end(_CLOSING_SECONDS)
        except Exception:
            log.exception("connection_failed")
        finally:
            served.close()

    def _passes_on(self, host: str) -> bool:
        """Whether who has dialled is a balancer, which passes on who has dialled it."""
        if not self._balancers:
            return False
        found = ipaddress.ip_address(host.partition("%")[0])
        found = getattr(found, "ipv4_mapped", None) or found
        return any(found in one for one in self._balancers)

    async def _passed_on(self, served: ServedSocket, balancer: tuple[str, int]) -> tuple[str, int] | None:
        """Give host and port of whom a balancer passes on, itself where it speaks for itself; None: it does not say."""

        async def receive(size: int) -> bytes:
            space = memoryview(bytearray(size))
            return bytes(space[: await served.receive(space, fill=True)])

        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                return await read_proxy_head(receive) or balancer
        except (ProxyHeadError, OSError, TimeoutError) as error:
            warn("proxy_head_refused", address=balancer[0], why=str(error) or "it comes too slowly")
            return None

    async def _encrypt(self, served: ServedSocket, host: str) -> bool:
        """Speak TLS where this listener does; returns whether that came to anything."""
        if self._tls is None or served.of_proxy:
            return True
        try:
            await served.encrypt(self._tls(), _HANDSHAKE_SECONDS)
        except (OSError, TimeoutError) as error:
            warn("handshake_failed", address=host, why=str(error))
            return False
        return True

    async def _serve(self, connection: ServedConnection, place: Place) -> None:
        try:
            # Where a handshake takes no certificate, a stranger may have made it.
            known = self._tls is None or connection.of_proxy or connection.certificate is not None
            if connection.certified_name or connection.of_proxy:
                self._connections.know(place)
            idle_seconds = _IDLE_SECONDS if known else _STRANGERS_SECONDS
            body_seconds = _BODY_SECONDS if known else _STRANGERS_SECONDS
            while (head := await self._next_head(connection, idle_seconds)) is not None:
                call = ServedCall(connection, head, body_seconds, lambda: self._connections.know(place))
                await self._answer(call)
                if call.closes:
                    await connection.linger()
                    break
        except TimeoutError:
            warn("too_slow", client=connection.certified_name, address=connection.address)
        except (OSError, BrokenUploadError):
            # The client has gone.
            pass

    async def _next_head(self, connection: ServedConnection, idle_seconds: float) -> Head | None:
        """Wait for a request; None where no other is to be answered."""
        task = asyncio.current_task()
        assert task is not None
        self._idle.add(task)
        try:
            return await connection.head(idle_seconds)
        except BadRequestError as error:
            await self._refusals.note(connection.certified_name, connection.address, error)
            await connection.send(error.status, PLAIN | CLOSE, str(error).encode(errors="replace"))
            await connection.linger()
            return None
        finally:
            self._idle.discard(task)

    async def _answer(self, call: ServedCall) -> None:
        try:
            if self._tls is None:
                _check_host(call.head)
            await self._answer_call(call)
        except (RefusedError, MalformedError, BadRequestError) as error:
            # Who is not known has no connection to keep.
            call.closes = call.closes or not call.peer
            await self._refusals.note(call.peer or call.connection.certified_name, call.connection.address, error)
            await call.say(_status_of(error, call.peer), str(error))
        except UnknownArtifactError as error:
            await call.say(HTTPStatus.NOT_FOUND, str(error))
        except TooManyCallsError as error:
            await self._refusals.hold()
            await call.say(HTTPStatus.TOO_MANY_REQUESTS, str(error))


def _check_host(head: Head) -> None:
    """Refuse, with `BadRequestError`, what a page asks for whose name was made to lead to this machine (DNS rebinding).

    Plain text is for loopback, where nothing but the name tells such a page from the server's own.
    """
    host = head.fields.get("host")
    if host is not None:
        name, _, port = host.rpartition(":")
        if not is_loopback((name if port.isdigit() else host).strip("[]").lower()):
            raise BadRequestError(
                HTTPStatus.FORBIDDEN, f"{host[:100]} does not name this machine's loopback, such as 127.0.0.1:8470"
            )


def _status_of(error: Exception, peer: str) -> HTTPStatus:
    if isinstance(error, BadRequestError):
        return error.status
    if isinstance(error, MalformedError):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.FORBIDDEN if peer else HTTPStatus.UNAUTHORIZED


def _network(balancer: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(balancer)
    except ValueError as error:
        raise ConfigurationError(
            f"{setting('balancers')} has {balancer!r}, but must be addresses or networks, such as 10.0.0.5 or "
            "10.0.0.0/28"
        ) from error
