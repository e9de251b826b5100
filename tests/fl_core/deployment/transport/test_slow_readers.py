"""A reader that goes on reading is sent all of it, however slow it is; one that stops is not waited for."""

import asyncio
import contextlib
import socket
import time

import pytest

from fedlm.fedlm_client.link.credentials import client_tls
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.transport import http_connections
from tests.support.serving import Handlers, serving

SIZE, STALLED_SECONDS = 12 << 20, 1.0
AT_ONCE, BYTES_A_SECOND = 1 << 16, 6e6
SLOWER, SLOWLY = 0.4e6, 1 << 20  # over TLS, of so many bytes, since a test should take no minute


class Model(Handlers):
    """Sends one artifact, whatever is asked for; so many bytes at once where that is given."""

    def __init__(self, at_once):
        super().__init__()
        self.at_once = at_once
        self.artifact = ServedArtifact([bytes(SIZE)], "test", 1 << 19)

    async def download(self, peer, request, bytes_at_once=0):
        number = 0
        while number < len(self.artifact.description.chunk_digests):
            chunk = self.artifact.chunk(number, self.at_once or bytes_at_once)
            number += chunk.count
            yield chunk


def begun(port, credentials, path):
    """A connection that has asked, of a client whose system takes little before it reads."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
    plain.settimeout(20)
    plain.connect(("127.0.0.1", port))
    asking = plain if credentials is None else client_tls(credentials).wrap_socket(plain, server_hostname="127.0.0.1")
    asking.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nfedlm-client: ann\r\n\r\n".encode())
    return asking


def read(asking, most=1 << 62, seconds=AT_ONCE / BYTES_A_SECOND):
    """Read so many bytes, at a pace; returns how many came before the end."""
    count = 0
    while count < most:
        try:
            count += (came := len(asking.recv(AT_ONCE)))
        except OSError:
            break
        if not came:
            break
        time.sleep(seconds * came / AT_ONCE)
    return count


def served(keys, act, at_once=0):
    async def go():
        handlers = Model(at_once)
        async with serving(handlers, keys) as server:
            return await asyncio.to_thread(act, server.port, handlers.artifact)

    return asyncio.run(go())


@pytest.fixture(params=["plain", "tls"])
def keys(request, tmp_path, monkeypatch):
    monkeypatch.setattr(http_connections, "_STALLED_SECONDS", STALLED_SECONDS)
    if request.param == "plain":
        return None
    Authority.create(tmp_path / "keys").make_server(["127.0.0.1"])
    return tmp_path / "keys"


def credentials_of(keys):
    return None if keys is None else Authority(keys).make_client("ann")


@pytest.mark.long
def test_a_reader_that_never_pauses_gets_all_however_long_it_takes(keys):
    ann = credentials_of(keys)

    def act(port, artifact):
        with contextlib.closing(begun(port, ann, "/artifacts/00")) as asking:
            first = 0 if keys is None else read(asking, SLOWLY, AT_ONCE / SLOWER)
            return first + read(asking, SIZE - first)

    assert served(keys, act) >= SIZE


@pytest.mark.long
def test_a_reader_that_stops_is_shut_out(keys):
    ann = credentials_of(keys)

    def act(port, artifact):
        with contextlib.closing(begun(port, ann, "/artifacts/00")) as asking:
            first = read(asking, AT_ONCE)
            time.sleep(3 * STALLED_SECONDS)
            return first + read(asking, seconds=0)

    assert served(keys, act) < SIZE


def test_a_model_that_is_offered_no_more_is_not_kept_for_slow_readers(keys):
    ann = credentials_of(keys)

    def act(port, artifact):
        with contextlib.closing(begun(port, ann, "/artifacts/00")) as asking:
            first = read(asking, AT_ONCE, 0)
            artifact.withdraw()
            return first + read(asking, seconds=0)

    # What is on its way when it is withdrawn still comes.
    assert served(keys, act, at_once=SIZE) < SIZE
