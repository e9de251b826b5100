"""Balancers say by the PROXY protocol whom they pass on; nobody else can."""

import asyncio
import contextlib
import socket
import ssl
import struct

import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.credentials import client_tls
from fedlm.fedlm_client.link.protocol import CHECK_IN, CLIENT_NAME, PROTOCOL
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.transport import http_listener
from fedlm.fl_core.deployment.transport.connection_limits import ConnectionLimits
from fedlm.fl_core.deployment.transport.http_server import HttpServer
from fedlm.fl_core.deployment.transport.listeners import ListenOptions
from fedlm.fl_core.deployment.transport.proxy_heads import ProxyHeadError, read_proxy_head
from tests.support.serving import Handlers, serving

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V4 = socket.inet_aton("192.0.2.7") + socket.inet_aton("10.0.0.1") + struct.pack("!HH", 5000, 8470)
V6 = 2 * socket.inet_pton(socket.AF_INET6, "2001:db8::7") + struct.pack("!HH", 5000, 8470)


def head(command, family, content, size=None):
    return SIGNATURE + struct.pack("!BBH", command, family, len(content) if size is None else size) + content


HEADS = {
    b"PROXY TCP4 192.0.2.7 10.0.0.1 5000 8470\r\n": ("192.0.2.7", 5000),
    b"PROXY TCP6 2001:db8::7 2001:db8::1 5000 8470\r\n": ("2001:db8::7", 5000),
    b"PROXY UNKNOWN\r\n": None,
    b"PROXY UNKNOWN whatever follows\r\n": None,
    head(0x21, 0x11, V4): ("192.0.2.7", 5000),
    head(0x21, 0x21, V6): ("2001:db8::7", 5000),
    head(0x21, 0x11, V4 + b"\x04\x00\x01?"): ("192.0.2.7", 5000),
    head(0x20, 0x00, b""): None,
    head(0x21, 0x00, b"?"): None,
}
HOSTILE = [
    b"",
    b"PROXY",
    b"\x16\x03\x01" + bytes(20),
    b"GET / HTTP/1.1\r\n\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 5000 8470",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 5000 99999\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 5000 -1\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 5000\r\n",
    b"PROXY TCP4  192.0.2.7 10.0.0.1 5000 8470\r\n",
    b"PROXY TCP4 2001:db8::7 2001:db8::1 5000 8470\r\n",
    b"PROXY TCP4 example.org 10.0.0.1 5000 8470\r\n",
    b"PROXY UDP4 192.0.2.7 10.0.0.1 5000 8470\r\n",
    b"PROXY UNKNOWN" + 200 * b" " + b"\r\n",
    b"PROXY TCP4 \xff\xfe 10.0.0.1 5000 8470\r\n",
    SIGNATURE,
    head(0x11, 0x11, V4),
    head(0x2F, 0x11, V4),
    head(0x21, 0x12, V4),
    head(0x21, 0x11, V4[:-1]),
    head(0x21, 0x21, V4),
    head(0x21, 0x11, V4, 60_000),
    head(0x21, 0x11, V4, 100),
]


def read(content):
    """What a head says, and how much of what follows it is left."""
    left = [content]

    async def receive(size):
        taken, left[0] = left[0][:size], left[0][size:]
        return taken

    return asyncio.run(read_proxy_head(receive)), left[0]


def test_a_head_is_read_and_nothing_beyond_it_and_what_is_none_is_refused():
    for content, address in HEADS.items():
        assert read(content + b"\x16\x03") == (address, b"\x16\x03")
    for content in HOSTILE:
        with pytest.raises(ProxyHeadError):
            read(content)


class Addresses(HttpServer):
    """Keeps the addresses of calls."""

    seen = ()

    def _name_of(self, call):
        self.seen = (*self.seen, call.connection.address)
        return super()._name_of(call)


def dialled(keys, balancers, begins):
    """The addresses of the calls of a client whose connection begins with some bytes."""

    def call(port):
        with socket.create_connection(("127.0.0.1", port), 20) as plain:
            plain.sendall(begins)
            with client_tls(keys / "clients/ann").wrap_socket(plain, server_hostname="127.0.0.1") as encrypted:
                body = messages.CheckInRequest(protocol=PROTOCOL).SerializeToString()
                fields = f"Host: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
                encrypted.sendall(f"POST {CHECK_IN} HTTP/1.1\r\n{fields}".encode() + body)
                return encrypted.recv(1 << 12)

    async def go():
        server = Addresses(Handlers(), ListenOptions("127.0.0.1:0", keys, balancers=balancers))
        await server.start()
        try:
            return await asyncio.to_thread(call, server.port), server.seen
        finally:
            await server.stop(0)

    return asyncio.run(asyncio.wait_for(go(), 30))


@pytest.fixture
def keys(tmp_path):
    authority = Authority.create(tmp_path / "keys")
    authority.make_server(["127.0.0.1"])
    authority.make_client("ann")
    return tmp_path / "keys"


@pytest.mark.parametrize("balancer", ["127.0.0.1", "127.0.0.0/8"])
def test_who_is_passed_on_by_a_balancer_counts_by_its_own_address(keys, balancer):
    answer, seen = dialled(keys, (balancer,), b"PROXY TCP4 192.0.2.7 10.0.0.1 5000 8470\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert seen == ("192.0.2.7:5000",)


def test_a_head_of_anybody_else_is_refused_and_so_is_a_balancer_without_one(keys, caplog):
    for balancers in ((), ("10.0.0.5",)):
        with pytest.raises((ssl.SSLError, OSError)):
            dialled(keys, balancers, b"PROXY TCP4 192.0.2.7 10.0.0.1 5000 8470\r\n")
    answer, _ = dialled(keys, ("10.0.0.5",), b"")
    assert answer.startswith(b"HTTP/1.1 200"), "nothing changes for others"
    with pytest.raises((ssl.SSLError, OSError)):
        dialled(keys, ("127.0.0.1",), b"")
    assert [record.fields["address"] for record in caplog.records if record.message == "proxy_head_refused"] == [
        "127.0.0.1"
    ]


async def test_a_balancer_that_says_nothing_at_all_is_shut(keys, caplog, monkeypatch):
    monkeypatch.setattr(http_listener, "_HANDSHAKE_SECONDS", 0.3)
    async with serving(Handlers(), keys, balancers=("127.0.0.1",)) as server:
        with socket.create_connection(("127.0.0.1", server.port), 20) as silent:
            assert await asyncio.to_thread(silent.recv, 1) == b""
    (refused,) = [record.fields for record in caplog.records if record.message == "proxy_head_refused"]
    assert "too slowly" in refused["why"]


async def test_limits_are_those_of_the_addresses_that_a_balancer_names(caplog):
    async def call(port, address):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = messages.CheckInRequest(protocol=PROTOCOL).SerializeToString()
        fields = f"Host: 127.0.0.1\r\n{CLIENT_NAME}: ann\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(f"PROXY TCP4 {address} 10.0.0.1 5000 8470\r\nPOST {CHECK_IN} HTTP/1.1\r\n{fields}".encode() + body)
        with contextlib.suppress(ConnectionError):
            return await reader.read(12), writer
        return b"", writer

    limits = ConnectionLimits(in_all=10, of_address=1)
    async with serving(Handlers(), limits=limits, balancers=("127.0.0.1",)) as server:
        found = [await call(server.port, address) for address in ("192.0.2.7", "192.0.2.8", "192.0.2.7")]
        for _, writer in found:
            writer.close()
        came = [begins for begins, _ in found]
    assert came == [b"HTTP/1.1 200", b"HTTP/1.1 200", b""]
    (shut,) = [record.fields for record in caplog.records if record.message == "connection_shut"]
    assert shut["address"] == "192.0.2.7"
