"""Listeners with handlers of a few lines, for tests of what travels between clients and servers."""

import contextlib
import socket
import threading

import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.security import callers
from fedlm.fl_core.deployment.transport.http_server import HttpServer
from fedlm.fl_core.deployment.transport.listeners import ListenOptions
from tests.support.logged import Logged

CONTENT = bytes(range(256)) * 64
ARTIFACT = ServedArtifact([CONTENT], "test", 4096)


class Handlers:
    """Answer with what a client said; `fault` is raised in its place, in a download after a chunk."""

    def __init__(self, fault=None):
        self.fault, self.peers = fault, []

    async def check_in(self, peer, request):
        self.peers.append(peer)
        if self.fault:
            raise self.fault
        return messages.CheckInReply(come_back=messages.ComeBack(seconds=request.protocol, reason=peer))

    async def download(self, peer, request, bytes_at_once=0):
        number = request.first_chunk
        while number < len(ARTIFACT.description.chunk_digests):
            chunk = ARTIFACT.chunk(number, bytes_at_once)
            yield chunk
            number += chunk.count
            if self.fault:
                raise self.fault

    async def upload(self, peer, upload):
        if self.fault:
            raise self.fault
        header, body, space = await upload.header(), bytearray(), memoryview(bytearray(1 << 16))
        while count := await upload.read_into(space):
            body += space[:count]
        if header is None:
            return messages.UploadReply(status=messages.UploadReply.INVALID)
        return messages.UploadReply(status=messages.UploadReply.ACCEPTED, reason=f"{header.size} {hash(bytes(body))}")


@contextlib.contextmanager
def one_answer(act):
    """Have a function, in a thread, do with the one connection of a socket what it likes; yields the address."""

    def answer(listening):
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            act(connection)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer, args=(listening,))
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@contextlib.contextmanager
def refusing_at_once():
    """Answer refused calls no later than others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callers, "_HELD_SECONDS", 0.0)
        yield


@contextlib.asynccontextmanager
async def serving(handlers, keys=None, address="127.0.0.1:0", **options):
    """Listen until what is inside is over; yields the server."""
    server = HttpServer(
        handlers if isinstance(handlers, Logged) else Logged(handlers), ListenOptions(address, keys, **options)
    )
    with refusing_at_once():
        await server.start()
        try:
            yield server
        finally:
            await server.stop(0)
