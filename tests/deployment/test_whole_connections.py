"""Whole connections of any kind at listeners in a process of their own: honest clients go on, and nothing is a defect.

Hypothesis makes the connections, in plain text and within TLS; `another_language.py` and `test_hostile_messages.py` do
the same for messages.
"""

import asyncio
import base64
import contextlib
import json
import socket
import ssl
import struct
import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from fedlm.clients.device.dialling import dialling
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.credentials import client_tls
from fedlm.fedlm_client.link.protocol import UPLOAD_HEADER
from fedlm.fl_core.deployment.event_log import json_log
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.transport.http_server import HttpServer
from fedlm.fl_core.deployment.transport.listeners import ListenOptions
from tests.deployment import small_deployment as small
from tests.deployment.test_hostile_http import READY, request
from tests.fl_core.deployment.transport.test_http_calls import send
from tests.support.processes import find_free_port
from tests.support.serving import Handlers

PATIENCE = 20


def listen(ports, keys, log):
    """Listen in plain text and with TLS, until killed."""

    async def go():
        for tls, port in ports.items():
            options = ListenOptions(f"127.0.0.1:{port}", keys if tls else None)
            await HttpServer(Handlers(), options).start()
        await asyncio.Event().wait()

    with json_log(log):
        asyncio.run(go())


class Listening:
    """The process, where it listens, and how honest clients fare."""

    def __init__(self, folder):
        self.keys, self.log = folder / "keys", folder / "log"
        authority = Authority.create(self.keys)
        authority.make_server(["127.0.0.1"])
        self.ann, self.bob = authority.make_client("ann"), authority.make_client("bob")
        self.ports = {tls: find_free_port() for tls in (False, True)}
        self.process = small.in_process(listen, self.ports, self.keys, self.log)
        for port in self.ports.values():
            self._until_open(port)

    def _until_open(self, port):
        end = time.monotonic() + 120
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", port)).close()
            assert self.process.is_alive()
            assert time.monotonic() < end
            time.sleep(0.05)

    def connect(self, tls):
        """Dial, as a client with a certificate where there is TLS."""
        connected = socket.create_connection(("127.0.0.1", self.ports[tls]), PATIENCE)
        if not tls:
            return connected
        return client_tls(self.ann).wrap_socket(connected, server_hostname="127.0.0.1")

    def check(self, tls):
        """An honest client, another than who made the connections, is answered; the process lives, and its log has no
        defect."""

        async def go():
            address = f"127.0.0.1:{self.ports[tls]}"
            channel = dialling(address, self.bob if tls else None)("bob")
            async with asyncio.timeout(PATIENCE):
                assert (await channel.check_in(messages.CheckInRequest(protocol=7))).come_back.seconds == 7
                assert (await send(channel, b"x" * 3000)).reason.startswith("3000 ")
            await channel.close()

        try:
            asyncio.run(go())
        except Exception as error:
            raise AssertionError(
                f"an honest client is not answered; the log ends {self.log.read_text()[-5000:]}"
            ) from error
        assert self.process.is_alive()
        for line in self.log.read_text().splitlines():
            logged = json.loads(line)
            assert logged["level"] in ("info", "warning"), line
            assert "exception" not in logged, line
            assert "Traceback" not in line, line


@pytest.fixture(scope="module")
def listening(tmp_path_factory):
    found = Listening(tmp_path_factory.mktemp("listening"))
    yield found
    found.process.kill()


TARGETS = [
    "/check-in",
    "/upload",
    "http://[",
    "//[::1",
    "*",
    "/artifacts/00?first_chunk=0",
    "/" + "a" * 3000,
    "/%ff?a=%",
]
FIELDS = [
    f"{UPLOAD_HEADER}: \xe9\xe8",
    f"{UPLOAD_HEADER}: {base64.b64encode(b'?' * 40).decode()}",
    f"{UPLOAD_HEADER}: {base64.b64encode(messages.UploadHeader(size=9, outcome=1).SerializeToString()).decode()}",
    "Expect: 100-continue",
    "Connection: close",
    "Transfer-Encoding: chunked",
    "Upgrade: h2c",
    "x: " + "y" * 9000,
]


class Connection(RuleBasedStateMachine):
    """One connection after another."""

    listening = None

    def __init__(self):
        super().__init__()
        self.socket = None

    @initialize(tls=st.booleans())
    def dial(self, tls):
        self.tls = tls
        self.socket = self.listening.connect(tls)

    def send(self, content):
        # The server may have hung up; what it has said is not lost by that.
        with contextlib.suppress(OSError, ValueError):
            self.socket.settimeout(0.5)
            self.socket.sendall(content)

    @rule(content=st.binary(max_size=300))
    def garbage(self, content):
        self.send(content)

    @rule()
    def read(self):
        with contextlib.suppress(OSError, ValueError):
            self.socket.settimeout(0.02)
            self.socket.recv(1 << 16)

    @rule()
    def half_close(self):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    @rule()
    def close_politely(self):
        """Say farewell in TLS, then hang up, as polite clients do."""
        with contextlib.suppress(OSError, ValueError):
            self.socket.settimeout(0.02)
            if isinstance(self.socket, ssl.SSLSocket):
                self.socket.unwrap()
        self.again()

    @rule()
    def reset(self):
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.again()

    @rule()
    def within_a_handshake(self):
        """Break off while TLS is agreed on."""
        with socket.create_connection(("127.0.0.1", self.listening.ports[True])) as broken:
            broken.sendall(b"\x16\x03\x01\x02\x00\x01")

    @rule(
        method=st.sampled_from(["GET", "POST", "PUT", "HEAD", "CONNECT", "X"]),
        where=st.sampled_from(TARGETS),
        fields=st.lists(st.sampled_from(FIELDS), max_size=2),
        body=st.binary(max_size=40),
        length=st.sampled_from([None, 0, 9, 10**19]),
    )
    def ask(self, method, where, fields, body, length):
        lines = [f"{method} {where} HTTP/1.1", "Host: 127.0.0.1", "fedlm-client: ann", *fields]
        lines += [f"Content-Length: {len(body) if length is None else length}", "", ""]
        self.send("\r\n".join(lines).encode("latin-1") + body)

    @rule()
    def ask_honestly(self):
        self.send(request("POST /check-in", body=READY.SerializeToString()))

    def again(self):
        self.socket.close()
        self.socket = self.listening.connect(self.tls)

    def teardown(self):
        if self.socket is not None:
            self.socket.close()
            self.listening.check(self.tls)


def fuzz(listening, examples, steps):
    Connection.listening = listening
    some = settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Connection, settings=some)


def test_connections_of_any_kind_are_no_defect(listening):
    fuzz(listening, examples=8, steps=12)


@pytest.mark.long
def test_many_more_connections_of_any_kind_are_no_defect(listening):
    fuzz(listening, examples=60, steps=30)
