"""A server's end of a connection over TLS: it takes no more than is wanted, and is given up in the middle."""

import asyncio
import contextlib
import socket
import ssl
from types import SimpleNamespace

import pytest

from fedlm.fedlm_client.link.credentials import client_tls
from fedlm.fl_core.deployment.security.credentials import reloading_tls
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.transport.http_listener import HttpListener
from fedlm.fl_core.deployment.transport.served_sockets import ServedSocket, scratch_memory


@contextlib.asynccontextmanager
async def connected(keys, scratch=None):
    """A server's end and a client's, which has a certificate."""
    authority = Authority.create(keys)
    authority.make_server(["127.0.0.1"])
    tls = client_tls(authority.make_client("ann"))
    ours, theirs = socket.socketpair()
    served = ServedSocket(ours, "ann", scratch)
    dialling = asyncio.to_thread(tls.wrap_socket, theirs, server_hostname="127.0.0.1")
    _, client = await asyncio.gather(served.encrypt(reloading_tls(keys)(), 10), dialling)
    try:
        yield served, client
    finally:
        served.close()
        client.close()


async def test_who_waits_on_a_connection_that_is_given_up_gets_nothing_of_what_comes(tmp_path):
    async with connected(tmp_path) as (served, client):
        space = memoryview(bytearray(100))
        waiting = asyncio.create_task(served.receive(space))
        await asyncio.sleep(0.1)
        client.sendall(b"too late")
        served.abort()
        assert await waiting == 0


async def test_nothing_of_others_is_sent_where_a_file_is_shorter_than_it_was(tmp_path):
    scratch = scratch_memory()
    scratch[:6] = b"others"
    async with connected(tmp_path / "keys", scratch) as (served, client):
        with (tmp_path / "file").open("w+b") as file:
            file.write(b"ours")
            file.flush()
            chunk = SimpleNamespace(file=SimpleNamespace(fileno=file.fileno, withdrawn=False), offset=0, size=6)
            with pytest.raises(ConnectionAbortedError, match="shorter than it was"):
                await served.send_chunk(chunk, 5)
        client.setblocking(False)
        with pytest.raises(ssl.SSLWantReadError):
            client.recv(100)


LONG, AT_ONCE = 1 << 24, 1 << 14
"""Bytes of a body, more than the buffers of an operating system hold, and of one write."""


def sent_until_it_stops(port, credentials):
    """Send until the server takes no more for a while; returns how many bytes of the body went."""
    with (
        socket.create_connection(("127.0.0.1", port), 20) as connected,
        client_tls(credentials).wrap_socket(connected, server_hostname="127.0.0.1") as encrypted,
    ):
        encrypted.sendall(f"PUT /upload HTTP/1.1\r\nHost: h\r\nContent-Length: {LONG}\r\n\r\n".encode())
        encrypted.settimeout(1)
        for sent in range(0, LONG, AT_ONCE):
            try:
                encrypted.sendall(bytes(AT_ONCE))
            except TimeoutError:
                return sent
        return LONG


async def test_what_is_not_wanted_yet_stays_with_the_client(tmp_path):
    authority = Authority.create(tmp_path)
    authority.make_server(["127.0.0.1"])
    ann = authority.make_client("ann")
    asked, stopped = asyncio.Event(), asyncio.Event()

    async def want_nothing(call):
        asked.set()
        await stopped.wait()
        call.closes = True

    listener = HttpListener(want_nothing, "127.0.0.1:0", reloading_tls(tmp_path))
    await listener.start()
    try:
        async with asyncio.timeout(60):
            sent = await asyncio.to_thread(sent_until_it_stops, listener.port, ann)
            await asked.wait()
    finally:
        stopped.set()
        await listener.stop(0)
    assert sent < LONG
