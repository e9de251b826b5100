"""TLS takes no more of what a client sends than is wanted."""

import asyncio
import contextlib
import socket

from fedlm.fl_core.deployment.security.credentials import client_tls, reloading_tls
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.transport.http_listener import HttpListener

LONG = 1 << 23
"""Bytes of a body, more than the buffers of an operating system hold."""


def upload(port, credentials):
    """Send until the server hangs up."""
    context = client_tls(credentials)
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), 20) as connected,
        context.wrap_socket(connected, server_hostname="127.0.0.1") as encrypted,
    ):
        encrypted.sendall(f"PUT /upload HTTP/1.1\r\nHost: h\r\nContent-Length: {LONG}\r\n\r\n".encode())
        encrypted.sendall(bytes(LONG))


def test_what_is_not_wanted_yet_stays_with_the_client(tmp_path):
    authority = Authority.create(tmp_path)
    authority.make_server(["127.0.0.1"])
    ann, held = authority.make_client("ann"), [0]

    async def watch(call):
        """Want nothing, until nothing more comes."""
        transport = call.connection.transport
        while held[-1] == 0 or held[-1] > held[-2]:
            await asyncio.sleep(0.2)
            held.append(transport.get_read_buffer_size())
        call.closes = True

    async def go():
        listener = HttpListener(watch, "127.0.0.1:0", reloading_tls(tmp_path))
        await listener.start()
        try:
            async with asyncio.timeout(30):
                await asyncio.to_thread(upload, listener.port, ann)
        finally:
            await listener.stop(0)

    asyncio.run(go())
    # A read brings 32 KiB at most, and there is none while as many wait; asyncio left to itself takes 256 KiB.
    assert 0 < held[-1] <= 1 << 16
