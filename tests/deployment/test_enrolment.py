"""Enrolment over the network: devices believe one authority alone; what is no request gets an answer and a log line."""

import asyncio
import contextlib

import grpc
import pytest

from fedlm.clients.enrolment import enrol_device
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.security.certificates import KeysError, make_request, new_key
from fedlm.fl_core.deployment.security.credentials import CLIENT, SERVER, read_credentials
from fedlm.fl_core.deployment.security.grpc_enrolment import EnrolmentServer
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.errors import ConfigurationError


@contextlib.asynccontextmanager
async def enrolment(folder):
    authority = Authority.create(folder / "keys")
    authority.make_server(["127.0.0.1"])
    credentials = read_credentials(folder / "keys", SERVER)
    server = EnrolmentServer(authority.enrol, "127.0.0.1:0", credentials.for_enrolment())
    await server.start()
    try:
        yield authority, f"127.0.0.1:{server.port}", credentials.authority
    finally:
        await server.stop(0)


def test_a_device_gets_its_certificate_from_the_right_server_alone(tmp_path):
    async def go():
        async with enrolment(tmp_path) as (authority, address, _):
            token, other = authority.make_token("alice"), Authority.create(tmp_path / "other")
            ours, theirs = tmp_path / "keys/ca.pem", tmp_path / "other/ca.pem"
            with pytest.raises(KeysError, match="is not the server that the authority signed for"):
                await asyncio.to_thread(enrol_device, address, theirs, token, tmp_path / "alice")
            # The key of the try that failed is used again, and the token was not spent by it.
            await asyncio.to_thread(enrol_device, address, ours, token, tmp_path / "alice")
            with pytest.raises(ConfigurationError, match="has credentials already"):
                await asyncio.to_thread(enrol_device, address, ours, token, tmp_path / "alice")
            assert not other.issued()

    asyncio.run(go())
    assert read_credentials(tmp_path / "alice", CLIENT).name == "alice"
    assert sorted(path.name for path in (tmp_path / "alice").iterdir()) == ["ca.pem", "client.key", "client.pem"]


def test_what_is_no_request_is_refused_and_logged(tmp_path, caplog):
    request = messages.EnrolRequest(token="0" * 64, request=make_request(new_key()))
    attempts = {
        b"\xff\xff": (grpc.StatusCode.INVALID_ARGUMENT, "not a message"),
        bytes(1 << 20): (grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
        request.SerializeToString(): (grpc.StatusCode.PERMISSION_DENIED, "token is not known"),
        b"": (grpc.StatusCode.PERMISSION_DENIED, "token is not known"),
    }

    async def go():
        async with (
            enrolment(tmp_path) as (_, address, believed),
            grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(believed)) as channel,
        ):
            for content, (code, _) in attempts.items():
                with pytest.raises(grpc.aio.AioRpcError) as found:
                    await channel.unary_unary("/fedlm.Enrolment/Enrol")(content, timeout=10)
                assert found.value.code() is code

    asyncio.run(go())
    logged = " ".join(record.fields["why"] for record in caplog.records if record.message == "enrolment_refused")
    assert all(why in logged for _, why in attempts.values())
