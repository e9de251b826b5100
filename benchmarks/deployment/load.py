"""The load: clients that train nothing, and do as little else as they can, so that the server is what is measured."""

import asyncio
import base64
import contextlib
import random
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import grpc

from benchmarks.deployment.servers import FETCH, LOOPBACK, NAIVE, SEND, UNLIMITED, receive
from benchmarks.deployment.shapes import CHUNK, Shape
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.interface import PROTOCOL
from fedlm.fl_core.deployment.protocol.names import CLIENT_NAME
from fedlm.fl_core.deployment.transport.grpc_names import (
    CHECK_IN,
    DOWNLOAD,
    SERVICE,
    UPLOAD,
    flow_options,
    message_limits,
)
from fedlm.fl_core.deployment.transport.http_names import ARTIFACTS, UPLOAD_HEADER
from fedlm.fl_core.deployment.transport.http_names import CHECK_IN as CHECK_IN_PATH
from fedlm.fl_core.deployment.transport.http_names import UPLOAD as UPLOAD_PATH

_CHECK_IN = messages.CheckInRequest(protocol=PROTOCOL, client_version="load").SerializeToString()
_WIDE = [*message_limits(CHUNK), *flow_options(), ("grpc.use_local_subchannel_pool", 1)]


class _Calls:
    """A client's calls, with messages as bytes."""

    def __init__(self, port: int, name: str, channel: grpc.aio.Channel | None = None):
        self.channel = channel or grpc.aio.insecure_channel(f"{LOOPBACK}:{port}", _WIDE)
        self._metadata = ((CLIENT_NAME, name),)
        self._check_in = self.channel.unary_unary(
            f"/{SERVICE}/{CHECK_IN}", response_deserializer=messages.CheckInReply.FromString
        )
        self._download = self.channel.unary_stream(f"/{SERVICE}/{DOWNLOAD}")
        self._upload = self.channel.stream_unary(
            f"/{SERVICE}/{UPLOAD}", response_deserializer=messages.UploadReply.FromString
        )

    async def check_in(self) -> messages.CheckInReply:
        return await self._check_in(_CHECK_IN, metadata=self._metadata)

    async def download(self, digest: bytes) -> int:
        size, request = 0, messages.DownloadRequest(digest=digest).SerializeToString()
        async for chunk in self._download(request, metadata=self._metadata):
            size += len(chunk)
        return size

    async def upload(self, header: messages.UploadHeader, parts: list[bytes]) -> messages.UploadReply:
        async def sent() -> Any:
            yield messages.UploadPart(header=header).SerializeToString()
            await call.initial_metadata()
            for part in parts:
                yield part

        call = self._upload(sent(), metadata=self._metadata)
        return await call


def fedlm_rounds(connection: Connection, port: int, shape: Shape, upload: bytes) -> None:
    """Take part in a round for each request; answers with its seconds, counted from the first check-in."""
    pieces = [upload[start : start + CHUNK] for start in range(0, len(upload), CHUNK)]
    parts = [messages.UploadPart(data=piece).SerializeToString() for piece in pieces]

    async def take_part(calls: _Calls) -> bool:
        while (reply := await calls.check_in()).WhichOneof("answer") != "selected":
            await asyncio.sleep(0.05)
        round_ = reply.selected
        await calls.download(round_.parameters.digest)
        header = _header_of(round_, len(upload))
        return (await calls.upload(header, parts)).status == messages.UploadReply.ACCEPTED

    async def run() -> None:
        clients = [_Calls(port, f"client{number}") for number in range(shape.selected)]
        await asyncio.gather(*(client.channel.channel_ready() for client in clients))
        await _answer_rounds(connection, shape, lambda: [take_part(client) for client in clients])

    asyncio.run(run())


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


def naive_rounds(connection: Connection, port: int, shape: Shape, up: int) -> None:
    """The same with `benchmarks.deployment.servers.naive`."""
    update = random.randbytes(up)

    async def sent() -> Any:
        for start in range(0, up, CHUNK):
            yield update[start : start + CHUNK]

    async def take_part(channel: grpc.aio.Channel) -> bool:
        async for _ in channel.unary_stream(f"/{NAIVE}/{FETCH}")(b""):
            pass
        await channel.stream_unary(f"/{NAIVE}/{SEND}")(sent())
        return True

    async def run() -> None:
        options = [*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(f"{LOOPBACK}:{port}", options) for _ in range(shape.selected)]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        await _answer_rounds(connection, shape, lambda: [take_part(channel) for channel in channels])

    asyncio.run(run())


async def _answer_rounds(connection: Connection, shape: Shape, begin: Callable[[], list]) -> None:
    connection.send("ready")
    while await asyncio.to_thread(connection.recv):
        started, accepted = time.perf_counter(), 0
        tasks = [asyncio.ensure_future(one) for one in begin()]
        for one in asyncio.as_completed(tasks):
            accepted += await one
            if accepted == shape.goal:
                break
        seconds = time.perf_counter() - started
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connection.send({"seconds": seconds, "accepted": accepted})


def raw_rounds(connection: Connection, port: int, shape: Shape, down: int, up: int) -> None:
    """The same with `benchmarks.deployment.servers.raw`."""
    update = memoryview(random.randbytes(up))

    def take_part(client: socket.socket, name: str) -> bool:
        client.sendall(b"g")
        if not receive(client, down):
            return False
        client.sendall(update)
        return bool(client.recv(1))

    _answer_rounds_in_threads(connection, port, shape, take_part)


def _answer_rounds_in_threads(
    connection: Connection, port: int, shape: Shape, take_part: Callable[[socket.socket, str], bool]
) -> None:
    connection.send("ready")
    while connection.recv():
        done = threading.Semaphore(0)

        def run(number: int, client: socket.socket, done: threading.Semaphore = done) -> None:
            with contextlib.suppress(OSError):
                if take_part(client, f"client{number}"):
                    done.release()

        clients = [socket.create_connection((LOOPBACK, port)) for _ in range(shape.selected)]
        started = time.perf_counter()
        threads = [threading.Thread(target=run, args=(number, client)) for number, client in enumerate(clients)]
        for thread in threads:
            thread.start()
        for _ in range(shape.goal):
            done.acquire()
        seconds = time.perf_counter() - started
        for client in clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            client.close()
        for thread in threads:
            thread.join()
        connection.send({"seconds": seconds, "accepted": shape.goal})


def http_rounds(connection: Connection, port: int, shape: Shape, upload: bytes) -> None:
    """As `fedlm_rounds`, with fedlm's server over HTTP; over sockets in threads, as `raw_rounds`."""

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
        header = _header_of(round_, len(upload)).SerializeToString()
        fields = {UPLOAD_HEADER: base64.b64encode(header).decode(), "Expect": "100-continue"}
        _send_head(client, "PUT", UPLOAD_PATH, name, len(upload), fields)
        size, begun = _receive_head(client)
        if size < 0:
            client.sendall(upload)
            size, begun = _receive_head(client)
        body = begun + _receive_exactly(client, size - len(begun))
        return messages.UploadReply.FromString(body).status == messages.UploadReply.ACCEPTED

    _answer_rounds_in_threads(connection, port, shape, take_part)


def _send_head(
    client: socket.socket, method: str, path: str, name: str, length: int = 0, fields: dict[str, str] | None = None
) -> None:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {LOOPBACK}", f"{CLIENT_NAME}: {name}", f"Content-Length: {length}"]
    lines += [f"{key}: {value}" for key, value in (fields or {}).items()]
    client.sendall("\r\n".join([*lines, "", ""]).encode())


def _receive_head(client: socket.socket) -> tuple[int, bytes]:
    """Returns the length of the body, -1 where it is to be sent by the client, and what has arrived of it."""
    received = b""
    while b"\r\n\r\n" not in received:
        data = client.recv(1 << 16)
        if not data:
            raise OSError("the server has hung up")
        received += data
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    return int(length[1]) if length else -1, body


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
        channels = [grpc.aio.insecure_channel(f"{LOOPBACK}:{port}", _WIDE) for _ in range(connections)]
        for start in range(0, connections, 200):
            await asyncio.gather(*(channel.channel_ready() for channel in channels[start : start + 200]))
        calls = [
            [_Calls(port, f"idle{number}", channel) for number in range(first, identities, connections)]
            for first, channel in enumerate(channels)
        ]
        connection.send("ready")
        while request := await asyncio.to_thread(connection.recv):
            seconds, rate = request
            connection.send(await _check_in_for(calls, seconds, rate))

    asyncio.run(run())


async def _check_in_for(calls: list[list[_Calls]], seconds: float, rate: float | None) -> dict[str, Any]:
    latencies: list[float] = []
    started = time.perf_counter()

    async def keep_checking_in(number: int, of_connection: list[_Calls]) -> None:
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
