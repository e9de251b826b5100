"""The servers that are measured: fedlm's, a naive one over grpc.aio, and a plain copy over sockets."""

import asyncio
import contextlib
import json
import os
import random
import socket
import tempfile
import threading
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import psutil

from benchmarks.deployment.shapes import CHUNK, Shape, deployment_of, model_of
from fedlm.fl_core.deployment.protocol.names import TransportName
from fedlm.fl_core.deployment.security.credentials import reloading_grpc, server_tls

NAIVE, FETCH, SEND = "naive.Naive", "Fetch", "Send"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
LOOPBACK = "127.0.0.1"


def fedlm(
    connection: Connection,
    shape: Shape,
    check_in_seconds: float = 0.2,
    transport: TransportName = "grpc",
    keys: Path | None = None,
) -> None:
    """Serve rounds of a shape; sends the port, and the memory before the model was made."""
    import jax

    from fedlm.fl_core.deployment.roles import Endpoints, serve
    from fedlm.fl_core.deployment.server.client_service import Task
    from fedlm.fl_core.deployment.server.freed_memory import return_freed_memory
    from fedlm.fl_core.deployment.transport.crowds import ConnectionLimits
    from fedlm.fl_core.deployment.transport.listeners import Listener, ListenOptions
    from fedlm.fl_core.deployment.transport.transports import TRANSPORTS

    return_freed_memory()
    deployment = deployment_of(shape, check_in_seconds)
    task = Task(deployment, model_of(shape.parameters), json.dumps({"none": True}).encode(), "none")
    # What JAX itself takes does not count as the model's.
    jax.jit(lambda values: values + 1)(jax.numpy.zeros(1)).block_until_ready()
    before = psutil.Process().memory_info().rss

    class Telling(NamedTuple):
        """A listener that tells its port."""

        inner: Listener

        @property
        def port(self) -> int:
            return self.inner.port

        async def start(self) -> None:
            await self.inner.start()
            connection.send({"port": self.port, "memory": before})

        async def stop(self, grace: float) -> None:
            await self.inner.stop(grace)

    def listen(handlers: Any) -> Telling:
        # All clients come from one address.
        limits = ConnectionLimits(of_address=ConnectionLimits().in_all)
        options = ListenOptions(f"{LOOPBACK}:0", CHUNK, keys, limits=limits)
        return Telling(TRANSPORTS[transport].listen(handlers, options))

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            await serve(task, Path(folder), Endpoints(listen), lambda row: None)

    threading.Thread(target=_until_closed, args=(connection,), daemon=True).start()
    asyncio.run(run())


def _until_closed(connection: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    os._exit(0)


def naive(connection: Connection, down: int, keys: Path | None = None) -> None:
    """Serve a model and take updates in chunks of bytes, which nobody looks at."""
    model = random.randbytes(down)
    chunks = [model[start : start + CHUNK] for start in range(0, down, CHUNK)]

    async def fetch(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def send(parts: AsyncIterator[bytes], context: Any) -> bytes:
        async for _ in parts:
            pass
        return b"ok"

    async def run() -> None:
        server = grpc.aio.server(options=UNLIMITED)
        routes = {FETCH: grpc.unary_stream_rpc_method_handler(fetch), SEND: grpc.stream_unary_rpc_method_handler(send)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(NAIVE, routes)])
        address = f"{LOOPBACK}:0"
        port = (
            server.add_insecure_port(address) if keys is None else server.add_secure_port(address, reloading_grpc(keys))
        )
        await server.start()
        connection.send({"port": port, "memory": psutil.Process().memory_info().rss})
        await asyncio.to_thread(_until_closed, connection)

    asyncio.run(run())


def raw(connection: Connection, down: int, up: int, keys: Path | None = None) -> None:
    """Copy as many bytes over sockets, with a thread a connection, which is as fast as it goes."""
    model = memoryview(random.randbytes(down))
    listener = socket.create_server((LOOPBACK, 0), backlog=1024)
    connection.send({"port": listener.getsockname()[1], "memory": psutil.Process().memory_info().rss})
    threading.Thread(target=_until_closed, args=(connection,), daemon=True).start()

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
