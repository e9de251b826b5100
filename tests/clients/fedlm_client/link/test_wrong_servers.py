"""What a client makes of servers that are none of its own, of proxies, and of addresses."""

import asyncio
import contextlib
import socket
import threading

import pytest

from fedlm.clients.device.dialling import dialling
from fedlm.commands.deployment.operator_calls import OperatorCaller, OperatorOptions
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import ClientError, RefusedError, TransportError, WrongServerError
from fedlm.fedlm_client.link import host_and_port
from fedlm.fedlm_client.link.calls import DownloadRequest
from fedlm.fedlm_client.link.http_channel import HttpChannel
from fedlm.fedlm_client.link.protocol import CHUNK_BYTES, PROTOCOL
from fedlm.fl_core.deployment.addresses import check_address
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.errors import ConfigurationError
from tests.clients.rules import RULES, named
from tests.support.serving import Handlers, one_answer, serving


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """The folder of an authority with a server and the client ann, and that of another one with its ann."""
    made = []
    for name in ("ours", "others"):
        folder = tmp_path_factory.mktemp(name) / "keys"
        authority = Authority.create(folder)
        authority.make_server(["127.0.0.1"])
        authority.make_client("ann")
        made.append(folder)
    return made


@contextlib.asynccontextmanager
async def listening(keys=None, host="127.0.0.1"):
    async with serving(Handlers(), keys, f"{host}:0") as server:
        yield f"{host}:{server.port}"


async def check_in(server, credentials=None, proxy=None):
    channel = dialling(server, credentials, proxy)("ann")
    try:
        return await channel.check_in(messages.CheckInRequest(protocol=PROTOCOL))
    finally:
        await channel.close()


WRONG = {
    "a foreign authority": (0, 1, "127.0.0.1", "does not trust"),
    "another name": (0, 0, "127.0.0.2", "certificate for other names"),
    "plain text": (None, 0, "127.0.0.1", "does not speak TLS"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_client_knows_a_server_that_is_not_its_own(keys, case):
    theirs, ours, host, words = WRONG[case]
    server_keys = None if theirs is None else keys[theirs]
    credentials = None if ours is None else keys[ours] / "clients" / "ann"
    async with listening(server_keys, host) as server:
        with pytest.raises(WrongServerError, match=words):
            await check_in(server, credentials)


def said_by(answer):
    """What listens on a socket, and answers a call with some bytes."""
    return one_answer(lambda connection: connection.recv(1 << 14) and connection.sendall(answer))


@pytest.mark.parametrize("size", ["0", "x", "9" * 5000])
def test_chunks_of_a_size_that_is_none_are_refused(size):
    async def go(address):
        channel = HttpChannel(address, "ann")
        with pytest.raises(TransportError, match="chunks have no size"):
            async for _ in channel.download(DownloadRequest(digest=b"?")):
                pass
        await channel.close()

    head = f"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n{CHUNK_BYTES}: {size}\r\n\r\n?"
    with said_by(head.encode()) as address:
        asyncio.run(asyncio.wait_for(go(address), 30))


def test_a_client_in_plain_text_knows_an_alert_of_tls():
    with (
        said_by(b"\x15\x03\x01\x00\x02\x02\x46") as address,
        pytest.raises(WrongServerError, match="speaks TLS"),
    ):
        asyncio.run(asyncio.wait_for(check_in(address), 30))


def test_what_a_server_says_has_no_commands_for_terminals():
    said = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\n\r\n\x1b[31m\nno!"
    with said_by(said) as address, pytest.raises(RefusedError, match=r"403 Forbidden: \[31mno!$"):
        asyncio.run(asyncio.wait_for(check_in(address), 30))


class Proxy:
    """Carries bytes to where it is asked to; `heads` has what it was asked, and `heard` what it carried."""

    def __init__(self):
        self.heads, self.heard = [], b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._carry, args=(self._listening.accept()[0],), daemon=True).start()

    def _carry(self, client):
        with client, contextlib.suppress(OSError):
            head = client.recv(1 << 14)
            self.heads.append(head)
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            host, port = head.split()[1].decode().split(":")
            with socket.create_connection((host, int(port))) as server:
                threading.Thread(target=self._copy, args=(server, client), daemon=True).start()
                self._copy(client, server)

    def _copy(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 14):
                self.heard += data
                target.sendall(data)

    def close(self):
        self._listening.close()


@pytest.fixture
def proxy():
    made = Proxy()
    yield made
    made.close()


async def test_a_proxy_that_is_named_carries_what_is_encrypted(keys, proxy):
    async with listening(keys[0]) as server:
        ann = keys[0] / "clients" / "ann"
        assert (await check_in(server, ann, proxy.address)).come_back.reason == "ann"
        assert [head.split(b"\r\n")[0] for head in proxy.heads] == [f"CONNECT {server} HTTP/1.1".encode()]
        assert b"check-in" not in proxy.heard


def test_a_proxy_that_refuses_is_named(keys):
    with (
        said_by(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n") as refusing,
        pytest.raises(TransportError, match="407"),
    ):
        asyncio.run(asyncio.wait_for(check_in("127.0.0.1:1", keys[0] / "clients" / "ann", refusing), 30))


def test_plain_text_goes_through_no_proxy_and_to_no_other_machine():
    with pytest.raises(ClientError, match="hear and could change plain text"):
        HttpChannel("127.0.0.1:1", "ann", None, "127.0.0.1:2")
    for server, name in (("fl.example.org:8470", "ann"), ("127.0.0.1:1", None)):
        with pytest.raises(ClientError, match="needs a name, and speaks to a server on loopback alone"):
            HttpChannel(server, name)


async def test_no_variable_of_the_environment_names_a_proxy(monkeypatch, proxy):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        for one in (name, name.upper()):
            monkeypatch.setenv(one, f"http://{proxy.address}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with listening() as server:
        assert (await check_in(server)).come_back.reason == "ann"
    with said_by(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as address:
        assert OperatorCaller(OperatorOptions(server=address)).get("/status.json") == {}
    assert proxy.heads == []


@pytest.mark.parametrize("case", RULES["addresses"], ids=named)
def test_addresses_are_read_by_one_rule(case):
    address, host, port = case["address"], case["host"], case["port"]
    if host is None:
        for read in (check_address, lambda one: HttpChannel(one, "ann")):
            with pytest.raises((ConfigurationError, ClientError), match=r"but must be HOST:PORT, .* \[::1\]:8470"):
                read(address)
        return
    check_address(address)
    assert host_and_port.read_address(address) == (host, port)
    assert host_and_port.written(host, port) == address


def test_a_server_at_an_address_of_ipv6_is_dialled_as_it_is_written():
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):

        async def go():
            async with listening(host="[::1]") as server:
                assert (await check_in(server)).come_back.reason == "ann"

        asyncio.run(asyncio.wait_for(go(), 30))
        return
    pytest.skip("this machine has no IPv6")
