"""Certificates that end, are made anew or come of a new authority, while a server goes on."""

import asyncio
import contextlib
import time
from types import SimpleNamespace

import pytest
from cryptography import x509

from fedlm.clients.device.dialling import dialling
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import RefusedError, TransportError, WrongServerError
from fedlm.fedlm_client.link.credentials import client_tls, read_certificate
from fedlm.fl_core.deployment.security import credentials
from fedlm.fl_core.deployment.security.certificates import key_pem, new_key
from fedlm.fl_core.deployment.security.keys import Authority
from tests.support.serving import Handlers, serving


@pytest.fixture
def authority(tmp_path, monkeypatch):
    assert credentials._SECONDS_BETWEEN_LOOKS <= 1
    # A server then looks at its files in every handshake.
    monkeypatch.setattr(credentials, "_SECONDS_BETWEEN_LOOKS", 0.0)
    made = Authority.create(tmp_path / "keys")
    made.make_server(["127.0.0.1"])
    return made


@contextlib.asynccontextmanager
async def dialled(server, device):
    channel = dialling(f"127.0.0.1:{server.port}", device)("ann")
    try:
        yield channel
    finally:
        await channel.close()


async def check_in(channel):
    return await channel.check_in(messages.CheckInRequest(protocol=1))


async def is_let_in(server, device):
    async with dialled(server, device) as channel:
        try:
            await check_in(channel)
        except (TransportError, WrongServerError):
            return False
    return True


async def test_a_certificate_that_ends_ends_on_an_open_connection_too(authority, tmp_path, monkeypatch):
    ann, later = authority.make_client("ann", days=1), time.time() + 2 * 86_400
    clock = SimpleNamespace(time=lambda: later, monotonic=time.monotonic)
    async with (
        asyncio.timeout(60),
        serving(Handlers(), tmp_path / "keys") as server,
        dialled(server, ann) as channel,
    ):
        await check_in(channel)
        monkeypatch.setattr(credentials, "time", clock)
        with pytest.raises(RefusedError, match=r"ann is no longer valid: it ended at .* UTC, and .* clock says .* UTC"):
            await check_in(channel)


async def shown(server, device):
    """The serial number of the certificate that a new connection is shown."""
    tls = client_tls(device)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=tls, server_hostname="127.0.0.1")
    content = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(content).serial_number


async def test_a_new_certificate_is_shown_to_new_connections_and_open_ones_go_on(authority, tmp_path):
    ann, keys = authority.make_client("ann"), tmp_path / "keys"
    async with asyncio.timeout(60), serving(Handlers(), tmp_path / "keys") as server:
        async with dialled(server, ann) as channel:
            await check_in(channel)
            before = await shown(server, ann)
            authority.make_server(["127.0.0.1"])
            assert before != await shown(server, ann) == read_certificate(keys / "server.pem").serial_number
            await check_in(channel)
        # A half that does not belong to the other is not taken up, and nobody is turned away for it.
        (keys / "server.key").write_bytes(key_pem(new_key()))
        assert await is_let_in(server, ann)


async def test_one_authority_follows_another_without_a_day_on_which_all_change(authority, tmp_path):
    """First everybody believes both, then certificates are of the new one, then nobody believes the old one."""
    keys, ann = tmp_path / "keys", authority.make_client("ann")
    new = Authority.create(tmp_path / "new")
    bob, old_one, new_one = new.make_client("bob"), *((one / "ca.pem").read_bytes() for one in (keys, tmp_path / "new"))
    async with asyncio.timeout(60), serving(Handlers(), tmp_path / "keys") as server:
        (bob / "ca.pem").write_bytes(new_one + old_one)
        assert not await is_let_in(server, bob)
        (keys / "ca.pem").write_bytes(old_one + new_one)
        assert await is_let_in(server, bob)
        assert await is_let_in(server, ann)
        new.make_server(["127.0.0.1"])
        for name in ("server.key", "server.pem", "ca.pem"):
            (keys / name).write_bytes((tmp_path / "new" / name).read_bytes())
        (ann / "ca.pem").write_bytes(new_one + old_one)
        assert not await is_let_in(server, ann)
        assert await is_let_in(server, bob)
