"""A server's end of a connection, in plain text or over TLS: bytes move when somebody waits for them, and not before.

TLS works on the socket itself. With asyncio's, bytes pass two more buffers, 32 KiB at a time, which takes half as long
again for large models. Nothing waits in memory but the record that OpenSSL has begun.
"""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

from fedlm.fl_core.deployment.protocol.artifacts import ServedChunk

_ENCRYPTED_AT_ONCE, _COPIED_AT_ONCE, _RECEIVED_AT_ONCE = 1 << 18, 1 << 20, 1 << 18
_UNSENT_BYTES = 1 << 18

_Done = TypeVar("_Done")


class ServedSocket:
    """An accepted socket. Use it in one event loop, one call at a time.

    Attributes:
      address: of who has dialled, as host and port.
      of_proxy: whether a proxy has dialled by a socket that nobody else can open.
    """

    def __init__(
        self, accepted: socket.socket, address: str, scratch: memoryview | None = None, of_proxy: bool = False
    ):
        """Take a socket that is connected.

        Args:
          accepted: the socket, which this closes.
          address: see above.
          scratch: memory in which all connections of an event loop read what they encrypt next.
          of_proxy: see above.
        """
        self.of_proxy = of_proxy
        self._socket, self.address, self._scratch = accepted, address, scratch or scratch_memory()
        accepted.setblocking(False)
        self._number = accepted.fileno()
        self._over = self._aborted = False
        self._watching: asyncio.AbstractEventLoop | None = None
        self._reading: tuple[asyncio.Future[Any], Callable[[], Any]]

    async def encrypt(self, tls: ssl.SSLContext, seconds: float) -> None:
        """Speak TLS from here on; raises `OSError` where that fails, `TimeoutError` where it takes too long."""
        if hasattr(socket, "TCP_NOTSENT_LOWAT") and self._socket.family != socket.AF_UNIX:
            # The system would take megabytes at once, and a slow reader seem to stop. Plain text is for loopback.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        encrypted = tls.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
        self._socket = encrypted
        async with asyncio.timeout(seconds):
            await self._when_ready(encrypted.do_handshake)

    @property
    def certificate(self) -> dict[str, Any]:
        """What TLS has verified of who has dialled; empty where it has no certificate."""
        return (self._socket.getpeercert() or {}) if isinstance(self._socket, ssl.SSLSocket) else {}

    async def receive(self, space: memoryview, fill: bool = False) -> int:
        """Wait for bytes in a space that has room for one at least; to `fill` is to wait until it is full.

        Returns:
          How many came; fewer than were waited for where no other will.
        """
        filled, rested = 0, 0
        while not self._over and (fill or not filled) and filled < len(space):
            if filled - rested >= _RECEIVED_AT_ONCE:
                rested = filled
                await asyncio.sleep(0)
            rest = space[filled:]
            count = await self._when_ready(lambda rest=rest: self._socket.recv_into(rest))  # type: ignore[misc]
            if self._aborted:
                break
            filled += count
            self._over = not count
        return filled

    async def send(self, data: bytes, seconds: float) -> None:
        """Send all of some bytes; `TimeoutError`: they are not read in time."""
        async with asyncio.timeout(seconds):
            rest = memoryview(data)
            while rest:
                rest = rest[await self._when_ready(lambda rest=rest: self._socket.send(rest), writes=True) :]  # type: ignore[misc]

    async def send_chunk(self, chunk: ServedChunk, seconds: float) -> None:
        """Send the content of a chunk, for as long as it is offered and the client goes on reading.

        Raises:
          ConnectionError: the connection is lost, or the content is offered no more.
          TimeoutError: nothing is read for so many seconds.
        """
        encrypted = isinstance(self._socket, ssl.SSLSocket)
        at_once, act = (_ENCRYPTED_AT_ONCE, self._encrypt) if encrypted else (_COPIED_AT_ONCE, self._copy)
        left, offset = chunk.size, chunk.offset
        while left:
            if chunk.file.withdrawn:
                raise ConnectionAbortedError("this download is not offered any more")
            size = min(left, at_once)
            sent = await self._when_ready(
                lambda offset=offset, size=size: act(chunk.file.fileno(), offset, size),  # type: ignore[misc]
                writes=True,
                seconds=seconds,
            )
            if not sent:
                raise ConnectionAbortedError("the file of this download is shorter than it was")
            offset, left = offset + sent, left - sent
            await asyncio.sleep(0)

    def _encrypt(self, file: int, offset: int, size: int) -> int:
        # What could not be sent at once is read anew, so that nothing is kept for who reads slowly.
        content = self._scratch[:size]
        # A buffer that is not filled still has what others were sent.
        return self._socket.send(content) if os.preadv(file, [content], offset) == size else 0

    def _copy(self, file: int, offset: int, size: int) -> int:
        return os.sendfile(self._number, file, offset, size)

    async def _when_ready(self, act: Callable[[], _Done], writes: bool = False, seconds: float | None = None) -> _Done:
        """Do what a socket may not be ready for, once it is; `seconds`: see `send_chunk`."""
        while True:
            try:
                return act()
            except ssl.SSLWantReadError:
                to_write = False
            except ssl.SSLWantWriteError:
                to_write = True
            except BlockingIOError:
                to_write = writes
            done = self._once_writable(act) if to_write else self._once_readable(act)
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                return await (done if seconds is None else asyncio.wait_for(done, seconds))

    async def _once_writable(self, act: Callable[[], _Done]) -> _Done:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_writer(self._number, _wake, ready)
        try:
            await ready
        finally:
            loop.remove_writer(self._number)
        return act()

    async def _once_readable(self, act: Callable[[], _Done]) -> _Done:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Done] = loop.create_future()
        self._reading = done, act
        if self._watching is None:
            loop.add_reader(self._number, self._read)
            self._watching = loop
        return await done

    def _read(self) -> None:
        # The event loop goes on watching while each read is waited for: to begin and to end it are system calls.
        done, act = self._reading
        if done.done():
            self._watch_no_more()
            return
        try:
            done.set_result(act())
        except Exception as error:
            done.set_exception(error)

    def _watch_no_more(self) -> None:
        if self._watching is not None:
            self._watching.remove_reader(self._number)
            self._watching = None

    def abort(self) -> None:
        """Hang up, whatever is still to be sent; whoever waits for bytes is told that no other will come."""
        self._over = self._aborted = True
        with contextlib.suppress(OSError):
            # `SSLSocket.shutdown` would read and write in plain text from here on.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    async def end(self, seconds: float) -> None:
        """Say over TLS that nothing more comes, and wait so many seconds at most for the other side to say so too."""
        if isinstance(self._socket, ssl.SSLSocket) and not self._aborted:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._when_ready(self._socket.unwrap)

    def close(self) -> None:
        """Hang up."""
        self._watch_no_more()
        self._socket.close()


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def scratch_memory() -> memoryview:
    """Make what `ServedSocket` reads into."""
    return memoryview(bytearray(_ENCRYPTED_AT_ONCE))
