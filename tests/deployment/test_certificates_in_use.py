"""Certificates that end, are made anew or come of a new authority, while a server in a process of its own goes on."""

import asyncio
import contextlib
import datetime
import re
import socket
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedlm.clients.device.dialling import dialling
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import RefusedError, TransportError, WrongServerError
from fedlm.fedlm_client.link.credentials import read_certificate, read_key
from fedlm.fl_core.deployment.security.certificates import certificate_pem, key_pem, new_key
from fedlm.fl_core.deployment.security.credentials import write_credentials
from fedlm.fl_core.deployment.security.keys import Authority
from tests.deployment.test_whole_connections import Listening


@pytest.fixture(scope="module")
def listening(tmp_path_factory):
    found = Listening(tmp_path_factory.mktemp("listening"))
    yield found
    found.process.kill()


def dial(listening, credentials):
    return dialling(f"127.0.0.1:{listening.ports[True]}", credentials)("ann")


async def check_in(channel):
    return await channel.check_in(messages.CheckInRequest(protocol=1))


def client_that_ends(keys, folder, seconds):
    """A client's credentials whose certificate is valid for a few seconds."""
    authority, key, now = read_certificate(keys / "ca.pem"), new_key(), datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "brief")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(seconds=seconds))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(read_key(keys / "ca.key"), hashes.SHA256())
    )
    folder.mkdir()
    write_credentials(folder, certificate_pem(authority), certificate_pem(certificate), key_pem(key))
    return folder


def test_a_certificate_that_ends_ends_on_an_open_connection_too(listening, tmp_path):
    async def go():
        channel = dial(listening, client_that_ends(listening.keys, tmp_path / "brief", 4))
        try:
            await check_in(channel)
            await asyncio.sleep(4.2)
            with pytest.raises(RefusedError, match="brief is no longer valid"):
                await check_in(channel)
        finally:
            await channel.close()

    asyncio.run(asyncio.wait_for(go(), 30))


def shown(listening):
    """The serial number of the certificate that a new connection is shown."""
    with listening.connect(True) as connected:
        return x509.load_der_x509_certificate(connected.getpeercert(binary_form=True)).serial_number


def test_a_new_certificate_is_shown_to_new_connections_and_open_ones_go_on(listening):
    async def go():
        channel = dial(listening, listening.ann)
        await check_in(channel)
        before = await asyncio.to_thread(shown, listening)
        Authority(listening.keys).make_server(["127.0.0.1"])
        wanted = read_certificate(listening.keys / "server.pem").serial_number
        while await asyncio.to_thread(shown, listening) == before:
            await asyncio.sleep(0.2)
        assert await asyncio.to_thread(shown, listening) == wanted
        await check_in(channel)
        await channel.close()

    asyncio.run(asyncio.wait_for(go(), 30))
    # A half that does not belong to the other is not taken up, and nobody is turned away for it.
    kept = (listening.keys / "server.key").read_bytes()
    (listening.keys / "server.key").write_bytes(key_pem(new_key()))
    time.sleep(1.2)
    listening.check(True)
    (listening.keys / "server.key").write_bytes(kept)
    time.sleep(1.2)
    listening.check(True)


def merged(*paths: Path):
    return b"".join(path.read_bytes() for path in paths)


def test_one_authority_follows_another_without_a_day_on_which_all_change(tmp_path):
    """First everybody believes both, then certificates are of the new one, then nobody believes the old one."""
    listening = Listening(tmp_path)
    new = Authority.create(tmp_path / "new")
    bob = new.make_client("bob")

    async def let_in(credentials, wanted):
        """Wait until a client is let in, or not."""
        async with asyncio.timeout(30):
            while True:
                channel = dial(listening, credentials)
                try:
                    await check_in(channel)
                    found = True
                except (TransportError, WrongServerError):
                    found = False
                finally:
                    await channel.close()
                if found == wanted:
                    return
                await asyncio.sleep(0.3)

    async def go():
        (bob / "ca.pem").write_bytes(merged(tmp_path / "new/ca.pem", listening.keys / "ca.pem"))
        await let_in(bob, False)
        (listening.keys / "ca.pem").write_bytes(merged(listening.keys / "ca.pem", tmp_path / "new/ca.pem"))
        await let_in(bob, True)
        await let_in(listening.ann, True)
        new.make_server(["127.0.0.1"])
        for name in ("server.key", "server.pem"):
            (listening.keys / name).write_bytes((tmp_path / "new" / name).read_bytes())
        (listening.keys / "ca.pem").write_bytes((tmp_path / "new/ca.pem").read_bytes())
        (listening.ann / "ca.pem").write_bytes((bob / "ca.pem").read_bytes())
        await let_in(listening.ann, False)
        await let_in(bob, True)

    try:
        asyncio.run(go())
    finally:
        listening.process.kill()


def resident(process):
    """KiB of memory that a process has."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text()).group(1))


def test_an_idle_connection_with_tls_takes_little_memory(listening):
    def crowd(count):
        with contextlib.ExitStack() as opened:
            for _ in range(count):
                connected = socket.create_connection(("127.0.0.1", listening.ports[True]), 20)
                context = ssl.create_default_context(cafile=str(listening.keys / "ca.pem"))
                context.load_cert_chain(listening.ann / "client.pem", listening.ann / "client.key")
                opened.enter_context(context.wrap_socket(connected, server_hostname="127.0.0.1"))
            time.sleep(0.5)
            return resident(listening.process)

    few = crowd(1)
    assert (crowd(30) - few) / 29 < 100
