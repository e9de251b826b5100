"""Hostile clients over gRPC, with mutual TLS: each is refused and logged, while honest ones finish their rounds.

What becomes of reports that are none is tested where they are received, in test_reports.py.
"""

import asyncio
import contextlib

import grpc
import pytest

from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.interface import PROTOCOL
from fedlm.fl_core.deployment.security.credentials import CLIENT, SERVER, Credentials, read_credentials
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.transport.grpc_names import CHECK_IN, DOWNLOAD, SERVICE, UPLOAD
from tests.deployment import small_deployment as small
from tests.deployment.uploads import HONEST, SETTINGS, content_of, header_of, parts_of

Status, Code = messages.UploadReply.Status, grpc.StatusCode
READY = messages.CheckInRequest(protocol=PROTOCOL).SerializeToString()


class Attacker:
    """A client that sends whatever bytes it likes."""

    def __init__(self, port, name, credentials):
        self.name = name
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self.channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials.for_client(), options)

    async def check_in(self, content=READY):
        call = self.channel.unary_unary(f"/{SERVICE}/{CHECK_IN}")
        return messages.CheckInReply.FromString(await call(content, timeout=20))

    async def select(self):
        while True:
            reply = await self.check_in()
            if reply.WhichOneof("answer") == "selected":
                return reply.selected
            await asyncio.sleep(0.2)

    async def download(self, content):
        return [chunk async for chunk in self.channel.unary_stream(f"/{SERVICE}/{DOWNLOAD}")(content, timeout=20)]

    async def upload(self, parts, pause=0.0):
        async def slowly():
            for part in parts:
                yield part
                await asyncio.sleep(pause)

        call = self.channel.stream_unary(f"/{SERVICE}/{UPLOAD}")
        return messages.UploadReply.FromString(await call(slowly(), timeout=60))


async def refused(code, call):
    with pytest.raises(grpc.aio.AioRpcError) as found:
        await call
    assert found.value.code() is code, found.value


def sends(code, kind, content):
    async def attack(attacker):
        calls = {"check_in": attacker.check_in, "download": attacker.download}
        await refused(code, calls[kind](content) if kind in calls else attacker.upload(content))

    return attack


async def two_headers(attacker):
    reply = await attacker.upload(2 * parts_of(header_of(await attacker.select())))
    assert reply.status == Status.DAMAGED, reply


ATTACKS = {
    "garbage-check-in": (sends(Code.INVALID_ARGUMENT, "check_in", b"\xff" * 50), "call_refused", "no CheckInRequest"),
    "garbage-download": (sends(Code.INVALID_ARGUMENT, "download", b"\x0a\xff"), "call_refused", "no DownloadRequest"),
    "garbage-upload": (sends(Code.INVALID_ARGUMENT, "upload", [b"\xff\xff"]), "call_refused", "no UploadPart"),
    "too-long": (sends(Code.RESOURCE_EXHAUSTED, "check_in", bytes(1 << 20)), None, ""),
    "two-headers": (two_headers, "report_refused", "something else than data"),
}


async def strangers(port, authority, folder):
    """Nobody without a certificate for a client of this deployment gets as far as a handler."""
    server = read_credentials(folder / "keys", SERVER)
    eve = read_credentials(Authority.create(folder / "other").make_client("eve"), CLIENT)
    dial = [
        Attacker(port, "", Credentials(server.authority, eve.certificate, eve.key, "")).channel,
        Attacker(port, "", server).channel,
        grpc.aio.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(server.authority)),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}"),
    ]
    for channel in dial:
        async with channel:
            await refused(Code.UNAVAILABLE, channel.unary_unary(f"/{SERVICE}/{CHECK_IN}")(READY, timeout=20))


async def revoked(attacker, authority):
    """A client that was selected, and is revoked before it reports."""
    configuration = await attacker.select()
    authority.revoke(attacker.name)
    await refused(Code.UNAUTHENTICATED, attacker.upload(parts_of(header_of(configuration), content_of())))
    await refused(Code.UNAUTHENTICATED, attacker.check_in())


async def drip(attacker, selected):
    """Sends a byte now and then, for as long as it is let."""
    configuration = await attacker.select()
    selected.set()
    parts = parts_of(header_of(configuration), content_of(), step=1)
    reply = await attacker.upload(parts, pause=0.05)
    assert reply.status == Status.LATE, reply


async def flood(attackers):
    """Check-ins from one identity, as fast as its connections carry them, until cancelled."""

    async def call(attacker):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await attacker.check_in()

    await asyncio.gather(*(call(attacker) for attacker in attackers for _ in range(30)))


@pytest.mark.long
def test_hostile_clients_are_refused_and_logged_while_honest_ones_finish(tmp_path, caplog, capfd):
    authority = Authority.create(tmp_path / "keys")
    authority.make_server(["127.0.0.1"])

    def credentials(name):
        return read_credentials(authority.make_client(name), CLIENT)

    async def go():
        server = small.Server(small.task(SETTINGS), tmp_path / "run", linger=0.5, keys=tmp_path / "keys")
        async with asyncio.timeout(small.PATIENCE), server, contextlib.AsyncExitStack() as stack:

            async def attacker(name, believed=None):
                made = Attacker(server.port, name, believed or credentials(name))
                await stack.enter_async_context(made.channel)
                return made

            attacks = [attack(await attacker(name)) for name, (attack, *_) in ATTACKS.items()]
            await asyncio.gather(*attacks, strangers(server.port, authority, tmp_path))
            await revoked(await attacker("revoked"), authority)
            selected, shared = asyncio.Event(), credentials("flood")
            dripping = asyncio.create_task(drip(await attacker("drip"), selected))
            await selected.wait()
            attackers = [await attacker("flood", shared) for _ in range(4)]
            flooding = asyncio.create_task(flood(attackers))
            honest = [
                small.make_client(server.port, tmp_path, one, authority.make_client(f"client{one}"))
                for one in range(HONEST)
            ]
            async with small.running(honest):
                await dripping
                while len(server.rows) < SETTINGS.rounds:
                    await asyncio.sleep(0.05)
                assert not flooding.done()
                flooding.cancel()
                assert await server.over
            return server.rows

    rows = asyncio.run(go())
    assert [row["clients"] - row["clients_dropped"] for row in rows] == [HONEST] * SETTINGS.rounds
    logged = [(record.message, record.fields) for record in caplog.records if hasattr(record, "fields")]
    for name, (_, event, why) in ATTACKS.items():
        found = [fields for message, fields in logged if message == event and fields["client"] == name]
        assert event is None or any(why in fields["why"] for fields in found), (name, found)
    assert any(message == "too_many_calls" and fields["client"] == "flood" for message, fields in logged)
    assert any("revoked was revoked" in fields["why"] for message, fields in logged if message == "call_refused")
    handshakes = capfd.readouterr().err
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in handshakes
    assert "certificate signature failure" in handshakes or "CERTIFICATE_VERIFY_FAILED" in handshakes
