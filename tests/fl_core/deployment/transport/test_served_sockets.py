"""A server's end of a connection over TLS, where it is given up, and where a file is cut off."""

import asyncio
import contextlib
import socket
import ssl
from types import SimpleNamespace

import pytest

from fedlm.fedlm_client.link.credentials import client_tls
from fedlm.fl_core.deployment.security.credentials import reloading_tls
from fedlm.fl_core.deployment.security.keys import Authority
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


def test_who_waits_on_a_connection_that_is_given_up_gets_nothing_of_what_comes(tmp_path):
    async def go():
        async with connected(tmp_path) as (served, client):
            space = memoryview(bytearray(100))
            waiting = asyncio.create_task(served.receive(space))
            await asyncio.sleep(0.1)
            client.sendall(b"too late")
            served.abort()
            return await waiting

    assert asyncio.run(go()) == 0


def test_nothing_of_others_is_sent_where_a_file_is_shorter_than_it_was(tmp_path):
    scratch = scratch_memory()
    scratch[:6] = b"others"

    async def go():
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

    asyncio.run(go())
