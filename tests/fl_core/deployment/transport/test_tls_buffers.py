"""TLS takes no more of what a client sends than is wanted."""

import asyncio
import socket

from fedlm.fedlm_client.link.credentials import client_tls
from fedlm.fl_core.deployment.security.credentials import reloading_tls
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.transport.http_listener import HttpListener

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


def test_what_is_not_wanted_yet_stays_with_the_client(tmp_path):
    authority = Authority.create(tmp_path)
    authority.make_server(["127.0.0.1"])
    ann = authority.make_client("ann")

    async def go():
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
        return sent

    assert asyncio.run(go()) < LONG
