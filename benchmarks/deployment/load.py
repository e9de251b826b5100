"""The load: clients that train nothing, and do as little else as they can, so that the server is what is measured."""

import asyncio
import base64
import contextlib
import gc
import random
import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.deployment.servers import LOOPBACK, receive
from benchmarks.deployment.shapes import Shape
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.credentials import client_tls
from fedlm.fedlm_client.link.protocol import ARTIFACTS, CLIENT_NAME, PROTOCOL, UPLOAD_HEADER
from fedlm.fedlm_client.link.protocol import CHECK_IN as CHECK_IN_PATH
from fedlm.fedlm_client.link.protocol import UPLOAD as UPLOAD_PATH

CLIENTS = "clients"
"""In a folder of keys, those of clients."""
_CHECK_IN = messages.CheckInRequest(protocol=PROTOCOL, client_version="load").SerializeToString()


def _header_of(round_: messages.RoundConfiguration, size: int) -> messages.UploadHeader:
    return messages.UploadHeader(
        attempt=round_.attempt,
        upload_id=secrets.token_bytes(16),
        outcome=messages.UploadHeader.TRAINED,
        size=size,
        num_examples=1,
        loss=1.0,
        tokens=1.0,
        gradient_norm=1.0,
    )


def raw_rounds(connection: Connection, port: int, shape: Shape, down: int, up: int, keys: Path | None = None) -> None:
    """Take part in a round of `benchmarks.deployment.servers.raw` for each request; answers with its seconds."""
    update = memoryview(random.randbytes(up))

    def take_part(client: socket.socket, name: str) -> bool:
        client.sendall(b"g")
        if not receive(client, down):
            return False
        client.sendall(update)
        return bool(client.recv(1))

    _answer_rounds_in_threads(connection, port, shape, take_part, keys)


def _answer_rounds_in_threads(
    connection: Connection,
    port: int,
    shape: Shape,
    take_part: Callable[[socket.socket, str], bool],
    keys: Path | None = None,
) -> None:
    names = [f"client{number}" for number in range(shape.selected)]
    contexts = [None if keys is None else client_tls(keys / CLIENTS / name) for name in names]
    connection.send("ready")
    while connection.recv():
        done = threading.Semaphore(0)

        def run(name: str, client: socket.socket, done: threading.Semaphore = done) -> None:
            with contextlib.suppress(OSError):
                if take_part(client, name):
                    done.release()

        clients = [_connected(port, tls) for tls in contexts]
        started = time.perf_counter()
        threads = [threading.Thread(target=run, args=one) for one in zip(names, clients, strict=True)]
        for thread in threads:
            thread.start()
        for _ in range(shape.selected):
            done.acquire()
        seconds = time.perf_counter() - started
        for client in clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            client.close()
        for thread in threads:
            thread.join()
        connection.send({"seconds": seconds, "accepted": shape.selected})


def _connected(port: int, tls: ssl.SSLContext | None) -> socket.socket:
    client = socket.create_connection((LOOPBACK, port))
    return client if tls is None else tls.wrap_socket(client, server_hostname=LOOPBACK)


class Repeated(NamedTuple):
    """A large upload of few bytes of its own: float32 values of a block, again and again.

    Attributes:
      head: what it begins with.
      block: its values.
      values: bytes of these in all.
      tail: its checksum.
    """

    head: bytes
    block: bytes
    values: int
    tail: bytes

    def pieces(self) -> Iterator[bytes]:
        yield self.head
        for start in range(0, self.values, len(self.block)):
            yield self.block[: self.values - start]
        yield self.tail


def rounds(connection: Connection, port: int, shape: Shape, upload: bytes | Repeated, keys: Path | None = None) -> None:
    """The same with fedlm's server; seconds count from the first check-in."""
    pieces = (lambda: iter([upload])) if isinstance(upload, bytes) else upload.pieces
    size_up = sum(map(len, pieces()))

    def take_part(client: socket.socket, name: str) -> bool:
        reply = messages.CheckInReply()
        while reply.WhichOneof("answer") != "selected":
            time.sleep(0.05 if reply.WhichOneof("answer") else 0.0)
            reply = messages.CheckInReply.FromString(_ask(client, "POST", CHECK_IN_PATH, name, _CHECK_IN))
        round_ = reply.selected
        _send_head(client, "GET", f"{ARTIFACTS}{round_.parameters.digest.hex()}", name)
        size, begun = _receive_head(client)
        if not receive(client, size - len(begun)):
            return False
        header = _header_of(round_, size_up).SerializeToString()
        fields = {UPLOAD_HEADER: base64.b64encode(header).decode(), "Expect": "100-continue"}
        _send_head(client, "PUT", UPLOAD_PATH, name, size_up, fields)
        size, begun = _receive_head(client)
        if size < 0:
            for piece in pieces():
                client.sendall(piece)
            size, begun = _receive_head(client)
        body = begun + _receive_exactly(client, size - len(begun))
        return messages.UploadReply.FromString(body).status == messages.UploadReply.ACCEPTED

    _answer_rounds_in_threads(connection, port, shape, take_part, keys)


def _send_head(
    client: socket.socket, method: str, path: str, name: str, length: int = 0, fields: dict[str, str] | None = None
) -> None:
    client.sendall(_head(method, path, name, length, fields))


def _head(method: str, path: str, name: str, length: int, fields: dict[str, str] | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {LOOPBACK}", f"{CLIENT_NAME}: {name}", f"Content-Length: {length}"]
    lines += [f"{key}: {value}" for key, value in (fields or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode()


def _length(head: bytes) -> int:
    found = re.search(rb"content-length: (\d+)", head.lower())
    return int(found[1]) if found else -1


def _receive_head(client: socket.socket) -> tuple[int, bytes]:
    """Returns the length of the body, -1 where it is to be sent by the client, and what has arrived of it."""
    received = b""
    while b"\r\n\r\n" not in received:
        data = client.recv(1 << 16)
        if not data:
            raise OSError("the server has hung up")
        received += data
    head, _, body = received.partition(b"\r\n\r\n")
    return _length(head), body


def _receive_exactly(client: socket.socket, size: int) -> bytes:
    body = b""
    while len(body) < size:
        data = client.recv(size - len(body))
        if not data:
            raise OSError("the server has hung up")
        body += data
    return body


def _ask(client: socket.socket, method: str, path: str, name: str, body: bytes) -> bytes:
    _send_head(client, method, path, name, len(body))
    client.sendall(body)
    size, begun = _receive_head(client)
    return begun + _receive_exactly(client, size - len(begun))


def check_ins(connection: Connection, port: int, connections: int, identities: int) -> None:
    """Check in; a request is (seconds, check-ins a second or None for as many as go, at once) and the answer latencies.

    Every connection has a call under way at most, and calls go by turns in the names of all identities.
    """

    async def run() -> None:
        calls: list[list[Any]] = []
        for start in range(0, connections, 200):
            firsts = range(start, min(start + 200, connections))
            dialled = await asyncio.gather(*(_dial(port) for _ in firsts))
            for first, call in zip(firsts, dialled, strict=True):
                calls.append([call(f"idle{number}") for number in range(first, identities, connections)])
        # Collections of garbage here would count as time of the server.
        gc.disable()
        connection.send("ready")
        while request := await asyncio.to_thread(connection.recv):
            seconds, rate = request
            connection.send(await _check_in_for(calls, seconds, rate))

    asyncio.run(run())


async def _dial(port: int) -> Callable[[str], Any]:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    return lambda name: _CheckIns(reader, writer, name)


class _CheckIns:
    """A client that checks in over a connection, which it may share with others."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str):
        self._reader, self._writer = reader, writer
        self._request = _head("POST", CHECK_IN_PATH, name, len(_CHECK_IN)) + _CHECK_IN

    async def check_in(self) -> messages.CheckInReply:
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        return messages.CheckInReply.FromString(await self._reader.readexactly(_length(head)))


async def _check_in_for(calls: list[list[_CheckIns]], seconds: float, rate: float | None) -> dict[str, Any]:
    latencies: list[float] = []
    started = time.perf_counter()

    async def keep_checking_in(number: int, of_connection: list[_CheckIns]) -> None:
        turn, every = 0, 0.0 if rate is None else len(calls) / rate
        begin = started + every * number / len(calls)
        while (planned := begin + every * turn) < started + seconds and time.perf_counter() < started + seconds:
            if rate is not None:
                await asyncio.sleep(max(0.0, planned - time.perf_counter()))
            called = time.perf_counter()
            await of_connection[turn % len(of_connection)].check_in()
            latencies.append(time.perf_counter() - called)
            turn += 1

    await asyncio.gather(*(keep_checking_in(number, found) for number, found in enumerate(calls)))
    return {"seconds": time.perf_counter() - started, "latencies": latencies}
