"""Strangers who say nothing hold no place that anybody else needs: probes, operators and devices are answered."""

import asyncio
import contextlib
import socket
import ssl
import threading
import urllib.request

import pytest

from fedlm.clients.device.enrolment import enrol
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.credentials import client_tls
from fedlm.fedlm_client.link.http_channel import HttpChannel
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fl_core.deployment.security.certificates import make_request, new_key
from fedlm.fl_core.deployment.security.credentials import reloading_tls
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.security.operator_access import OPERATOR_TOKEN_FILE, OperatorAccess, write_operator_token
from fedlm.fl_core.deployment.transport.connection_limits import ConnectionLimits
from fedlm.fl_core.deployment.transport.http_enrolment import EnrolmentServer
from tests.deployment.test_operations import listening
from tests.support.serving import Handlers, serving

MORE_THAN_A_LISTENER_KEEPS = 220
CALL = messages.CheckInRequest(protocol=PROTOCOL)


@pytest.fixture
def keys(tmp_path):
    Authority.create(tmp_path / "keys").make_server(["127.0.0.1"])
    write_operator_token(tmp_path / "keys" / OPERATOR_TOKEN_FILE)
    return tmp_path / "keys"


@contextlib.contextmanager
def silent(count, port, begun=b""):
    """Connections of the address that everybody has who calls below, which say nothing more than they have begun."""
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(socket.create_connection(("127.0.0.1", port), 20)).sendall(begun)
        yield


@contextlib.contextmanager
def coming(port, rounds):
    """Ever new silent connections, beside what is inside; each is left open."""
    over, opened = threading.Event(), contextlib.ExitStack()

    def come():
        while not over.wait(0.005):
            for _ in range(rounds):
                opened.enter_context(socket.create_connection(("127.0.0.1", port), 20))

    thread = threading.Thread(target=come)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        opened.close()


def ask(address, path, tls=None, token=None, **fields):
    headers = fields | ({} if token is None else {"Authorization": f"Bearer {token}"})
    asked = urllib.request.Request(f"{'http' if tls is None else 'https'}://{address}{path}", headers=headers)
    with urllib.request.urlopen(asked, timeout=60, context=tls) as answer:
        return answer.status


@pytest.mark.parametrize("with_keys", [False, True])
def test_silent_connections_do_not_lock_the_operators_port(keys, with_keys):
    trust = ssl.create_default_context(cafile=keys / "ca.pem") if with_keys else None
    access = OperatorAccess(keys / OPERATOR_TOKEN_FILE) if with_keys else None
    token = None if access is None else access.token()

    def act(address):
        port = int(address.rpartition(":")[2])
        before = threading.active_count()
        with silent(MORE_THAN_A_LISTENER_KEEPS, port, b"" if with_keys else b"GET / HT"), coming(port, 2):
            answers = [ask(address, path, trust, token) for path in 5 * ["/healthz", "/readyz", "/status.json"]]
            return answers, threading.active_count() - before

    answers, threads = listening(act, access, reloading_tls(keys) if with_keys else None)
    assert answers == 15 * [200]
    assert threads <= 8


def test_requests_without_the_token_do_not_lock_the_operators_port(keys):
    access, trust = OperatorAccess(keys / OPERATOR_TOKEN_FILE), ssl.create_default_context(cafile=keys / "ca.pem")

    def act(address):
        port = int(address.rpartition(":")[2])
        with contextlib.ExitStack() as opened:
            for _ in range(40):
                plain = opened.enter_context(socket.create_connection(("127.0.0.1", port), 20))
                stranger = opened.enter_context(trust.wrap_socket(plain, server_hostname="127.0.0.1"))
                stranger.sendall(b"GET /status.json HTTP/1.1\r\nHost: here\r\n\r\n")
            return [ask(address, "/healthz", trust) for _ in range(5)]

    assert listening(act, access, reloading_tls(keys)) == 5 * [200]


@contextlib.asynccontextmanager
async def dialled(server, credentials):
    """Channels of clients to a server."""
    channels = [HttpChannel(f"127.0.0.1:{server.port}", "", client_tls(one)) for one in credentials]
    try:
        yield channels
    finally:
        for channel in channels:
            await channel.close()


async def test_silent_connections_do_not_keep_a_client_out(keys):
    names, limits = [Authority(keys).make_client(name) for name in ("ann", "bob")], ConnectionLimits(40, 20)
    async with (
        asyncio.timeout(30),
        serving(Handlers(), keys, limits=limits) as server,
        dialled(server, names) as (ann, bob),
    ):
        assert (await ann.check_in(CALL)).come_back.reason == "ann"
        ((task, _),) = [(one, one.get_name()) for one in server._serving]
        with contextlib.ExitStack() as opened:
            await asyncio.to_thread(opened.enter_context, silent(60, server.port))
            assert (await bob.check_in(CALL)).come_back.reason == "bob"
            # Who is known has a place that no stranger takes.
            assert (await ann.check_in(CALL)).come_back.reason == "ann"
            assert not task.done()


async def test_silent_connections_do_not_keep_a_device_from_enrolling(keys):
    authority = Authority(keys)
    server = EnrolmentServer(authority.enrol, "127.0.0.1:0", keys)
    await server.start()
    try:
        with contextlib.ExitStack() as opened:
            await asyncio.to_thread(opened.enter_context, silent(600, server.port))
            asked = (authority.make_token("ann"), make_request(new_key()))
            given = await enrol(f"127.0.0.1:{server.port}", (keys / "ca.pem").read_bytes(), *asked)
            assert given.startswith(b"-----BEGIN CERTIFICATE-----")
    finally:
        await server.stop(0)
