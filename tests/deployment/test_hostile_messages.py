"""Fuzzing the handlers: whatever arrives, the answer is a status, and the sum stays that of what was accepted."""

import asyncio
import contextlib
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import RefusedError, UnknownArtifactError
from fedlm.fedlm_client.link.calls import DownloadRequest
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fl_core.deployment.protocol.errors import TooManyCallsError
from fedlm.fl_core.deployment.server.reports.streaming_sum import Report, StreamingSum, SumSettings
from fedlm.fl_core.exact_sums import as_float64, grid_step, like_of, number_of_coordinates
from fedlm.fl_core.rounds.aggregation import AggregationRules
from fedlm.fl_core.rounds.local_sgd import TrainingSums, global_norm
from fedlm.fl_core.updates.compressors import compress_update
from fedlm.fl_core.updates.registry import COMPRESSIONS, make_compressor
from fedlm.fl_core.updates.update_bytes import WireError, pack_update
from tests.deployment import small_deployment as small
from tests.deployment.open_round import in_round

Status = messages.UploadReply.Status
PRIVATE = small.PRIVACY | {"cohort_size": 1000, "minimum_reports": 1, "over_selection": 50.0}
PATIENT = {"selection_seconds": 60.0, "reporting_seconds": 60.0}
EACH_SCHEME = {compressor.scheme.number: name for name, compressor in reversed(COMPRESSIONS.items())}.values()
COUNTS = st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1))
NUMBERS = st.one_of(st.floats(0, 50), st.floats())


def bytes_like(message):
    """Bytes at random, or those of a message with some of them changed or cut off."""
    content = message.SerializeToString()
    changed = st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)).map(
        lambda change: content[: change[0]] + bytes([change[1]]) + content[change[0] + 1 :]
    )
    return st.one_of(st.binary(max_size=60), changed, st.integers(0, len(content)).map(lambda end: content[:end]))


def headers(attempt, size):
    return st.builds(
        messages.UploadHeader,
        attempt=st.one_of(st.just(attempt), st.binary(max_size=20)),
        upload_id=st.one_of(st.just(b"1"), st.binary(max_size=80)),
        outcome=st.one_of(st.just(1), st.integers(-(2**31), 2**31 - 1)),
        size=st.one_of(st.just(size), COUNTS),
        num_examples=COUNTS,
        loss=NUMBERS,
        tokens=NUMBERS,
        gradient_norm=NUMBERS,
    )


def contents(honest):
    """Uploads: an honest one, with bytes of its numbers changed under a right checksum, or too short, or too long."""

    def change(places):
        content = bytearray(honest)
        for place, value in places:
            content[8 + place % (len(content) - 12)] = value
        return bytes(content[:-4]) + np.uint32(zlib.crc32(content[:-4])).tobytes()

    places = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=12)
    # The first eight bytes of a tensor are its two floats.
    floats = st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0, 0x7F, 0x80, 0xFF])), max_size=8)
    return st.one_of(places.map(change), floats.map(change), st.binary(max_size=30).map(lambda more: honest + more))


@pytest.mark.long
@pytest.mark.parametrize("compression", EACH_SCHEME)
async def test_no_message_breaks_a_handler_or_the_sum(tmp_path, compression):
    async with in_round(tmp_path, **PRIVATE, **PATIENT, compression=compression, upload_bits=None) as round_:
        loop, numbers, accepted = asyncio.get_running_loop(), iter(range(10**9)), []
        configuration = await round_.select("honest")
        header, content = round_.report(configuration)
        known = messages.CheckInRequest(protocol=PROTOCOL, client_version="1.0", models=["a"])
        digest = configuration.parameters.digest

        def wait_for(call):
            return asyncio.run_coroutine_threadsafe(call, loop).result(10)

        @given(bytes_like(known))
        @settings(max_examples=40)
        def check_in(sent):
            try:
                request = messages.CheckInRequest.FromString(sent)
            except DecodeError:
                return
            with contextlib.suppress(RefusedError):
                reply = wait_for(round_.handlers.check_in(f"client{next(numbers)}", request))
                assert reply.WhichOneof("answer")

        async def fetch(request):
            return [chunk async for chunk in round_.handlers.download("honest", request)]

        @given(st.binary() | st.just(digest), st.integers(0, 2**32 - 1))
        @settings(max_examples=25)
        def download(asked, first):
            with contextlib.suppress(UnknownArtifactError, TooManyCallsError):
                wait_for(fetch(DownloadRequest(asked, first)))

        @given(headers(configuration.attempt, len(content)), contents(content), st.booleans())
        @example(header, content, True)
        @settings(max_examples=60)
        def upload(sent, body, honestly_declared):
            name = f"uploader{next(numbers)}"
            attempt = wait_for(round_.select(name)).attempt
            assert attempt == configuration.attempt
            if honestly_declared:
                sent = messages.UploadHeader(**{field.name: value for field, value in header.ListFields()})
            reply = wait_for(round_.send(name, sent, body))
            assert reply.status in Status.values()
            assert reply.status != Status.STATUS_UNSPECIFIED
            if reply.status == Status.ACCEPTED and sent.outcome == messages.UploadHeader.TRAINED:
                accepted.append(name)

        for fuzz in (check_in, download, upload):
            await asyncio.to_thread(fuzz)
        strange = messages.CheckInRequest(protocol=PROTOCOL, client_version="1\0\x1b[31m\n" + 1000 * "2")
        versions, registry = [], round_.rounds.registry
        kept = registry.check_in
        registry.check_in = lambda peer, version: versions.append(version) or kept(peer, version)
        await round_.handlers.check_in("strange", strange)
        # Not every database, and no terminal, takes every character.
        assert versions == ["1[31m" + 56 * "2"]
        assert (await round_.send("honest", header, content)).status == Status.ACCEPTED
        round_.rounds.drain()
        total = round_.rounds.collecting.attempt.sum.finish()
        assert all(np.isfinite(leaf).all() for leaf in jax.tree_util.tree_leaves(total))
        assert int(total.weight) == int(total.clients - total.dropped) == len(accepted) + 1
        clip_norm = round_.settings.training.update_clip_norm
        step = float(grid_step(np.float32(clip_norm), number_of_coordinates(like_of(total.delta))))
        with jax.enable_x64(True):
            whole = [np.asarray(leaf).ravel() for leaf in jax.tree_util.tree_leaves(as_float64(total.delta))]
        assert step * np.linalg.norm(np.concatenate(whole)) <= (len(accepted) + 1) * clip_norm
        assert accepted, "the fuzzing does not reach the sum"


@pytest.mark.parametrize("compression", EACH_SCHEME)
def test_floats_that_a_client_makes_up_are_refused_or_clipped(compression):
    compressor, clip_norm = make_compressor(compression), 0.1
    like = {"matrix": jnp.zeros((33, 29)), "vector": jnp.zeros(11)}
    honest = pack_update(compressor, compress_update(compressor, jax.random.key(0), like), like)
    for value in (np.nan, np.inf, -1e30, 1e15, 1e-40):
        floats = np.full(len(honest) // 4, value, "<f4").tobytes()
        body = honest[:8] + floats[: len(honest) - 12].ljust(len(honest) - 12, b"\0")
        message = body + np.uint32(zlib.crc32(body)).tobytes()
        total = StreamingSum(SumSettings(like, compressor, AggregationRules("uniform")), jax.random.key(1), clip_norm)
        report = Report(0, message, 1, TrainingSums(1.0, 1.0, 1.0))
        if abs(value) <= 1:
            total.add(report)
        elif abs(value) > 1e29 or np.isnan(value):
            with pytest.raises(WireError, match="finite"):
                total.add(report)
        else:
            # Of factors the product may be too large, where values as large are not.
            with contextlib.suppress(WireError):
                total.add(report)
        assert np.isfinite(float(global_norm(total.finish().delta)))
        assert float(global_norm(total.finish().delta)) <= clip_norm * 1.0001
