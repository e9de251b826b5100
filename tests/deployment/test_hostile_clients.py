"""Hostile clients at one server, with mutual TLS: each is refused and logged, while honest ones finish their rounds."""

import asyncio
import contextlib
import time

import grpc
import jax
import numpy as np
import pytest

from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.interface import PROTOCOL
from fedlm.fl_core.deployment.security.credentials import CLIENT, SERVER, Credentials, read_credentials
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.transport.grpc_client import GrpcChannel
from fedlm.fl_core.deployment.transport.grpc_names import CHECK_IN, DOWNLOAD, SERVICE, UPLOAD
from fedlm.fl_core.runs.checkpoints import Checkpoints
from tests.deployment import small_deployment as small
from tests.deployment.uploads import HONEST, SETTINGS, SIZE, content_of, header_of, parts_of

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
    async def attack(attacker, server):
        calls = {"check_in": attacker.check_in, "download": attacker.download}
        await refused(code, calls[kind](content) if kind in calls else attacker.upload(content))

    return attack


def reports(status, make_parts):
    async def attack(attacker, server):
        configuration = await attacker.select()
        reply = await attacker.upload(make_parts(configuration))
        assert reply.status == status, (attacker.name, reply)

    return attack


async def duplicates(attacker, server):
    """One report counts; the same again is acknowledged again, another is refused; so too when the round is over."""
    configuration = await attacker.select()
    first = parts_of(header_of(configuration), content_of())
    assert (await attacker.upload(first)).status == Status.ACCEPTED
    assert (await attacker.upload(first)).status == Status.ACCEPTED
    assert (await attacker.upload(parts_of(header_of(configuration), content_of()))).status == Status.INVALID
    server.replayed = configuration, first


async def thief(attacker, server):
    """Knows another's attempt, but was not selected itself."""
    while not hasattr(server, "replayed"):
        await asyncio.sleep(0.05)
    assert (await attacker.upload(server.replayed[1])).status == Status.NOT_SELECTED
    await refused(Code.NOT_FOUND, attacker.download(_ask_for(server.replayed[0].parameters.digest)))
    await attacker.check_in(messages.CheckInRequest(protocol=99).SerializeToString())
    await refused(Code.NOT_FOUND, attacker.download(_ask_for(b"?")))
    await refused(Code.NOT_FOUND, attacker.download(_ask_for(b"", first_chunk=2**32 - 1)))


def _ask_for(digest, **others):
    return messages.DownloadRequest(digest=digest, **others).SerializeToString()


def _reported(status, make_parts, why):
    return reports(status, make_parts), "report_refused", why


def _plain(content, why, status=Status.INVALID, **header):
    return _reported(status, lambda asked: parts_of(header_of(asked, **header), content), why)


ATTACKS = {
    "garbage-check-in": (sends(Code.INVALID_ARGUMENT, "check_in", b"\xff" * 50), "call_refused", "no CheckInRequest"),
    "garbage-download": (sends(Code.INVALID_ARGUMENT, "download", b"\x0a\xff"), "call_refused", "no DownloadRequest"),
    "garbage-upload": (sends(Code.INVALID_ARGUMENT, "upload", [b"\xff\xff"]), "call_refused", "no UploadPart"),
    "too-long": (sends(Code.RESOURCE_EXHAUSTED, "check_in", bytes(1 << 20)), None, ""),
    "no-header": _reported(Status.INVALID, lambda asked: parts_of(header_of(asked), content_of())[1:], "begins with"),
    "nothing": _reported(Status.INVALID, lambda asked: [], "begins with a header"),
    "wrong-round": _plain(content_of(), "not running", Status.STALE, attempt=b"x" * 16),
    "ten-gigabytes": _plain(b"", "declared to have 10000000000 bytes", size=10_000_000_000),
    "other-size": _plain(content_of()[:-1], "declared to have", size=SIZE - 1),
    "wrong-shapes": _plain(content_of(plan=b"FLU2\0\0\0\0"), "another compression or shapes"),
    "nan": _plain(content_of(step=np.nan), "not finite"),
    "infinite": _plain(content_of(smallest=-np.inf), "not finite"),
    "too-large": _plain(content_of(smallest=-1e38, step=1e36), "not a finite number"),
    "cut-off": _plain(content_of()[:-10], "bytes arrived of the", Status.DAMAGED),
    "changed": _plain(content_of()[:-1] + b"?", "checksum", Status.DAMAGED),
    "more-than-declared": _plain(content_of() + b"?", "more than the", Status.DAMAGED),
    "two-headers": _reported(Status.DAMAGED, lambda asked: 2 * parts_of(header_of(asked)), "something else than data"),
    "no-examples": _plain(b"", "num_examples is 0", num_examples=0),
    "too-many-examples": _plain(b"", "num_examples is", num_examples=2**64 - 1),
    "infinite-loss": _plain(b"", "loss is inf", loss=np.inf),
    "large-gradient": _plain(b"", "gradient_norm is 1e+38", gradient_norm=1e38),
    "negative-tokens": _plain(b"", "tokens is -1", tokens=-1.0),
    "unknown-outcome": _plain(b"", "outcome 77", outcome=77),
    "long-id": _plain(b"", "upload_id has 9999 bytes", upload_id=b"?" * 9999),
    "duplicates": (duplicates, "report_refused", "has answered in this round"),
    "thief": (thief, "report_refused", "has not checked in"),
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
        what = small.task(SETTINGS)
        async with (
            asyncio.timeout(90),
            small.Server(what, tmp_path / "run", linger=0.5, keys=tmp_path / "keys") as server,
            contextlib.AsyncExitStack() as stack,
        ):

            async def attacker(name, believed=None):
                made = Attacker(server.port, name, believed or credentials(name))
                await stack.enter_async_context(made.channel)
                return made

            attacks = [attack(await attacker(name), server) for name, (attack, *_) in ATTACKS.items()]
            await asyncio.gather(*attacks, strangers(server.port, authority, tmp_path))
            await revoked(await attacker("revoked"), authority)
            selected, shared = asyncio.Event(), credentials("flood")
            dripping = asyncio.create_task(drip(await attacker("drip"), selected))
            await selected.wait()
            background = {asyncio.create_task(flood([await attacker("flood", shared) for _ in range(4)]))}
            honest = [
                small.make_client(server.port, tmp_path, one, authority.make_client(f"client{one}"))
                for one in range(HONEST)
            ]
            began = time.monotonic()
            async with small.running(honest):
                await dripping
                replayer = Attacker(
                    server.port, "duplicates", read_credentials(tmp_path / "keys/clients/duplicates", CLIENT)
                )
                await stack.enter_async_context(replayer.channel)
                replay = await replayer.upload(server.replayed[1])
                assert replay.status == Status.ACCEPTED, "the acknowledgement of what counted once"
                assert (
                    await replayer.upload(parts_of(header_of(server.replayed[0]), content_of()))
                ).status == Status.LATE
                while len(server.rows) < SETTINGS.rounds:
                    await asyncio.sleep(0.05)
                for flooding in background:
                    assert not flooding.done()
                    flooding.cancel()
                assert await server.over
            return server.rows, time.monotonic() - began

    rows, seconds = asyncio.run(go())
    # Those whose numbers are not finite are counted, but add nothing; what came twice counts once.
    assert [row["clients"] - row["clients_dropped"] for row in rows] == [HONEST + 1, HONEST]
    assert all(np.isfinite(row["train_loss"]) for row in rows)
    assert seconds < 60
    logged = [(record.message, record.fields) for record in caplog.records if hasattr(record, "fields")]
    for name, (_, event, why) in ATTACKS.items():
        found = [fields for message, fields in logged if message == event and fields["client"] == name]
        assert event is None or any(why in fields["why"] for fields in found), (name, found)
    assert any(message == "too_many_calls" and fields["client"] == "flood" for message, fields in logged)
    assert any("revoked was revoked" in fields["why"] for message, fields in logged if message == "call_refused")
    handshakes = capfd.readouterr().err
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in handshakes
    assert "certificate signature failure" in handshakes or "CERTIFICATE_VERIFY_FAILED" in handshakes


@pytest.mark.long
@pytest.mark.parametrize("aggregation", ["mean", "median"])
def test_without_a_bound_one_liar_moves_the_mean_but_not_the_median(tmp_path, aggregation):
    settings = small.deployment(
        rounds=1,
        cohort_size=HONEST,
        minimum_reports=HONEST,
        over_selection=1.0,
        aggregation=aggregation,
        update_norm_bound="none",
        weighting="uniform",
        server_optimizer="fedavg",
        server_learning_rate=1.0,
    )

    async def lie(channel):
        request = messages.CheckInRequest(protocol=PROTOCOL)
        while (reply := await channel.check_in(request)).WhichOneof("answer") != "selected":
            await asyncio.sleep(0.05)

        async def parts():
            for part in parts_of(header_of(reply.selected), content_of(smallest=1e6, step=1.0)):
                yield messages.UploadPart.FromString(part)

        assert (await channel.upload(parts())).status == Status.ACCEPTED
        await channel.close()

    async def go():
        async with asyncio.timeout(60), small.Server(small.task(settings), tmp_path / "run") as server:
            await lie(GrpcChannel(f"127.0.0.1:{server.port}", "liar"))
            async with small.running([small.make_client(server.port, tmp_path, one) for one in range(HONEST - 1)]):
                assert await server.over

    asyncio.run(go())
    with Checkpoints(tmp_path / "run" / "checkpoints") as checkpoints:
        found = jax.tree_util.tree_leaves(checkpoints.restore_arrays(1)["params"])
    largest = max(float(np.abs(leaf).max()) for leaf in found)
    assert largest < 5 if aggregation == "median" else largest > 1e5
    assert not list((tmp_path / "run" / "transfers").iterdir())
