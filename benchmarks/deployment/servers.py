"""The servers that are measured: fedlm's, and a plain copy over sockets."""

import asyncio
import contextlib
import json
import os
import random
import socket
import tempfile
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.deployment.shapes import CHUNK, Shape, deployment_of, model_of
from fedlm.fl_core.deployment.security.credentials import server_tls

LOOPBACK = "127.0.0.1"


def fedlm(
    connection: Connection,
    shape: Shape,
    check_in_seconds: float = 0.2,
    keys: Path | None = None,
) -> None:
    """Serve rounds of a shape; sends the port, and the memory before the model was made."""
    import jax

    from fedlm.fl_core.deployment.endpoints import Endpoints
    from fedlm.fl_core.deployment.roles import serve
    from fedlm.fl_core.deployment.server.task import Task
    from fedlm.fl_core.process_memory import return_freed_memory

    return_freed_memory()
    deployment = deployment_of(shape, check_in_seconds)
    task = Task(deployment, model_of(shape.parameters), json.dumps({"none": True}).encode(), "none")
    # What JAX itself takes does not count as the model's.
    jax.jit(lambda values: values + 1)(jax.numpy.zeros(1)).block_until_ready()
    before = psutil.Process().memory_info().rss

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            await serve(task, Path(folder), Endpoints(telling(connection, before, keys)), lambda row: None)

    until_closed(connection)
    asyncio.run(run())


def telling(connection: Connection, memory: int, keys: Path | None = None) -> Any:
    """Make what listens to clients on a free port, and then tells it, and the memory before."""
    from fedlm.fl_core.deployment.transport.connection_limits import ConnectionLimits
    from fedlm.fl_core.deployment.transport.http_server import HttpServer
    from fedlm.fl_core.deployment.transport.listeners import Listener, ListenOptions

    class Telling(NamedTuple):
        inner: Listener

        @property
        def port(self) -> int:
            return self.inner.port

        async def start(self) -> None:
            await self.inner.start()
            connection.send({"port": self.port, "memory": memory})

        async def stop(self, grace: float) -> None:
            await self.inner.stop(grace)

    def listen(handlers: Any) -> Telling:
        # All clients come from one address.
        limits = ConnectionLimits(of_address=ConnectionLimits().in_all)
        return Telling(HttpServer(handlers, ListenOptions(f"{LOOPBACK}:0", keys, limits=limits)))

    return listen


def until_closed(connection: Connection) -> None:
    """End this process once who started it has gone or says so."""
    threading.Thread(target=_until_closed, args=(connection,), daemon=True).start()


def _until_closed(connection: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    os._exit(0)


def raw(connection: Connection, down: int, up: int, keys: Path | None = None) -> None:
    """Copy as many bytes over sockets, with a thread a connection, which is as fast as it goes."""
    model = memoryview(random.randbytes(down))
    listener = socket.create_server((LOOPBACK, 0), backlog=1024)
    connection.send({"port": listener.getsockname()[1], "memory": psutil.Process().memory_info().rss})
    until_closed(connection)

    tls = None if keys is None else server_tls(keys, certified=True)

    def answer(accepted: socket.socket) -> None:
        with contextlib.suppress(OSError), accepted if tls is None else tls.wrap_socket(accepted, True) as client:
            while client.recv(1):
                client.sendall(model)
                if not receive(client, up):
                    return
                client.sendall(b"k")

    while True:
        client, _ = listener.accept()
        threading.Thread(target=answer, args=(client,), daemon=True).start()


def receive(client: socket.socket, size: int) -> bool:
    """Receive so many bytes and forget them; returns whether they came."""
    buffer = bytearray(min(size, CHUNK))
    while size:
        got = client.recv_into(buffer, min(size, len(buffer)))
        if not got:
            return False
        size -= got
    return True
