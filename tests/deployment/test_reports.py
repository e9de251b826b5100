"""What becomes of reports, and that nothing a client does keeps a round past its deadline. No network."""

import asyncio
import time

import jax
import numpy as np
import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import UnknownArtifactError
from fedlm.fedlm_client.link.artifacts import ArtifactAssembly
from fedlm.fedlm_client.link.calls import Chunk, DownloadRequest
from fedlm.fl_core.deployment.server.round_rules import DrainedError
from fedlm.fl_core.updates.update_bytes import unpack_parameters
from tests.deployment.open_round import Status, in_round
from tests.deployment.uploads import content_of


@pytest.mark.long
async def test_reports_count_once_and_those_that_come_too_late_not_at_all(tmp_path):
    async with in_round(tmp_path) as round_:
        a, b, c = [await round_.select(name) for name in "abc"]
        header, content = round_.report(a)
        assert (await round_.send("a", header, content)).status == Status.ACCEPTED
        # The acknowledgement was lost: the same upload again.
        assert (await round_.send("a", header, content)).status == Status.ACCEPTED
        header.upload_id = b"2"
        assert (await round_.send("a", header, content)).status == Status.INVALID
        last = round_.report(b)
        replies = await asyncio.gather(round_.send("b", *last), round_.send("b", *last))
        assert {reply.status for reply in replies} <= {Status.ACCEPTED, Status.DAMAGED}
        collected = await round_.collecting
        assert float(collected.aggregate.clients) == 2
        assert round_.state.attempts(9)[-1].reported == 2
        assert (await round_.send("b", *last)).status == Status.ACCEPTED, "a retry after the round was refused"
        assert (await round_.send("c", *round_.report(c))).status == Status.LATE
        last[0].attempt = b"another"
        assert (await round_.send("b", *last)).status == Status.STALE
        assert (await round_.send("d", *last)).status == Status.NOT_SELECTED


async def test_an_upload_goes_on_where_it_broke_off(tmp_path):
    async with in_round(tmp_path, cohort_size=1, drain_seconds=0.1) as round_:
        header, content = round_.report(await round_.select("a"))
        assert (await round_.send("a", header, content[:100])).status == Status.DAMAGED
        header.asks = True
        assert (await round_.send("a", header)).received == 100
        header.asks, header.offset = False, 101
        assert "is not there" in (await round_.send("a", header, content[101:])).reason
        header.offset = 0
        await round_.send("a", header, content[:-1])
        header.offset = len(content) - 1
        assert (await round_.send("a", header, content[-1:])).status == Status.ACCEPTED
        round_.rounds.drain()
        assert float((await round_.collecting).aggregate.clients) == 1


def broken(round_, configuration):
    """Uploads that must not count, each with the answer that it gets."""
    header, content = round_.report(configuration)

    def changed(data=content, **fields):
        other = messages.UploadHeader()
        other.CopyFrom(header)
        for name, value in fields.items():
            setattr(other, name, value)
        return other, data

    def body(**others):
        """One of the right size, whose checksum is right."""
        return content_of(params=round_.params, plan=others.pop("plan", content[:8]), **others)

    damaged = bytearray(content)
    damaged[20] ^= 1
    yield None, b"", Status.INVALID
    yield *changed(size=10_000_000_000), Status.INVALID
    yield *changed(content[:-1]), Status.DAMAGED
    yield *changed(content + b"x"), Status.DAMAGED
    yield *changed(bytes(damaged)), Status.DAMAGED
    yield *changed(b""), Status.DAMAGED
    yield *changed(body(plan=b"FLU2\0\0\0\0")), Status.INVALID
    yield *changed(body(step=np.nan)), Status.INVALID
    yield *changed(body(smallest=-np.inf)), Status.INVALID
    yield *changed(body(smallest=-1e38, step=1e36)), Status.INVALID
    yield *changed(num_examples=0), Status.INVALID
    yield *changed(num_examples=2**64 - 1), Status.INVALID
    yield *changed(loss=float("nan")), Status.INVALID
    yield *changed(loss=float("inf")), Status.INVALID
    yield *changed(gradient_norm=1e38), Status.INVALID
    yield *changed(tokens=1e9), Status.INVALID
    yield *changed(tokens=-1.0), Status.INVALID
    yield *changed(outcome=0), Status.INVALID
    yield *changed(outcome=77), Status.INVALID
    yield *changed(upload_id=b""), Status.INVALID
    yield *changed(upload_id=b"x" * 1000), Status.INVALID
    yield *changed(attempt=b""), Status.STALE


async def test_what_is_not_a_report_is_refused_with_a_reason(tmp_path):
    async with in_round(
        tmp_path, cohort_size=1, over_selection=30.0, selection_seconds=20.0, drain_seconds=0.1
    ) as round_:
        honest = await round_.select("honest")
        cases = len(list(broken(round_, honest)))
        for number in range(cases):
            name = f"client{number}"
            configuration = await round_.select(name)
            header, content, status = list(broken(round_, configuration))[number]
            reply = await round_.send(name, header, content)
            assert reply.status == status, (number, reply)
            assert reply.reason
        assert (await round_.send("honest", *round_.report(honest))).status == Status.ACCEPTED
        # Some have no answer that is final, so that the round waits for them.
        round_.rounds.drain()
        total = (await round_.collecting).aggregate
        # One whose numbers are finite, but not what they stand for, is counted, and adds nothing.
        assert (float(total.clients), float(total.dropped)) == (2, 1)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree_util.tree_leaves(total.delta))


async def test_deadlines_hold_whatever_clients_do(tmp_path):
    async with in_round(tmp_path, cohort_size=3) as round_:
        started = time.monotonic()
        slow, stalled, honest = [await round_.select(name) for name in ("slow", "stalled", "honest")]
        dripping = asyncio.create_task(round_.send("slow", *round_.report(slow), chunk=1, pause=0.01))
        stalling = asyncio.create_task(round_.send("stalled", *round_.report(stalled), chunk=100, pause=3600))
        assert (await round_.send("honest", *round_.report(honest))).status == Status.ACCEPTED
        started_late = time.monotonic() - started
        collected = await round_.collecting
        took = time.monotonic() - started
        assert 1.0 - 0.05 <= took < 2.0, f"the round took {took} s, of which {started_late} s were the test's own"
        assert (await dripping).status == (await stalling).status == Status.LATE
        assert float(collected.aggregate.clients) == 1


async def test_a_round_short_of_reports_is_abandoned_and_nothing_of_it_counts(tmp_path):
    async with in_round(tmp_path, minimum_reports=2) as round_:
        a, b = await round_.select("a"), await round_.select("b")
        assert (await round_.send("a", *round_.report(a))).status == Status.ACCEPTED
        declining = messages.UploadHeader(attempt=b.attempt, upload_id=b"1", outcome="NOT_ALLOWED")
        assert (await round_.send("b", declining)).status == Status.ACCEPTED
        progress = round_.rounds.progress()
        assert (progress.dropped, progress.declined) == (1, 1)
        assert await round_.collecting is None
        (attempt,) = round_.state.attempts(9)
        assert attempt.outcome == "abandoned"
        assert attempt.reason == "1 of 2 selected clients reported (1 declined), but a round needs 2"
        assert round_.state.finished_rounds() == 0
        assert {client.participations for client in round_.state.clients()} == {0}
        # The same client may take part in the next attempt.
        await round_.open()
        await asyncio.sleep(0.1)
        await round_.select("a")
        round_.collecting.cancel()


async def test_every_run_has_a_name_of_its_own_that_its_rounds_tell(tmp_path):
    """By it devices know that what they keep is of another run, however alike."""
    names = []
    for folder in ("one", "two", "two"):
        async with in_round(tmp_path / folder, compiled=False) as round_:
            names.append((await round_.select("client")).run)
    assert all(names)
    assert names[0] != names[1] == names[2]


async def test_a_round_waits_for_its_first_client_as_long_as_it_takes(tmp_path):
    async with in_round(tmp_path, selection_seconds=0.2, reporting_seconds=0.3) as round_:
        await asyncio.sleep(0.6)
        assert not round_.collecting.done()
        assert round_.state.attempts(9) == []
        a = await round_.select("a")
        assert (await round_.send("a", *round_.report(a))).status == Status.ACCEPTED
        assert await round_.collecting is not None
        assert round_.state.attempts(9)[-1].seconds < 0.55


async def test_clients_that_do_not_train_free_their_places_at_once(tmp_path):
    async with in_round(tmp_path, selection_seconds=20.0, reporting_seconds=20.0) as round_:
        started = time.monotonic()
        configurations = [await round_.select(name) for name in "abcd"]
        for name, configuration, outcome in zip("abc", configurations, (2, 3, 4), strict=False):
            header = messages.UploadHeader(attempt=configuration.attempt, upload_id=b"1", outcome=outcome)
            assert (await round_.send(name, header)).status == Status.ACCEPTED
        assert (await round_.send("d", *round_.report(configurations[3]))).status == Status.ACCEPTED
        collected = await round_.collecting
        assert time.monotonic() - started < 5, "the round waited for clients that had answered"
        assert float(collected.aggregate.clients) == 2, "training that diverged counts as dropped"
        assert float(collected.aggregate.dropped) == 1
        assert round_.state.attempts(9)[-1].declined == 3


async def test_min_separation_and_max_participations_are_enforced(tmp_path):
    async with in_round(tmp_path, min_separation=2, max_participations=2, checkpoint_every=1) as round_:
        for number in range(5):
            answers = {}
            for name in ("a", f"other{number}"):
                reply = await round_.check_in(name)
                answers[name] = reply.WhichOneof("answer")
                # Only after its second time is there no other.
                assert reply.come_back.done == (name == "a" and number > 2)
                if answers[name] == "selected":
                    assert (await round_.send(name, *round_.report(reply.selected))).status == Status.ACCEPTED
            assert (answers["a"] == "selected") == (number in (0, 2)), f"round {number}"
            await round_.collecting
            await round_.open(number + 1)
        round_.collecting.cancel()


async def test_a_client_has_its_number_for_good_before_it_is_told(tmp_path):
    """Its random streams follow from it, and a device makes its update for a round in one way alone."""
    async with in_round(tmp_path) as round_:
        for name in ("a", "b"):
            configuration = await round_.select(name)
            known = {one.identity: one.number for one in round_.state.clients()}
            assert known[name] == configuration.client_index


async def test_a_model_is_only_for_the_selected_and_a_download_goes_on_where_it_broke_off(tmp_path):
    async with in_round(tmp_path, compiled=False, chunk_bytes=4096, selection_seconds=20.0) as round_:
        configuration = await round_.select("a")
        description, assembly = configuration.parameters, ArtifactAssembly(configuration.parameters, 1 << 20)

        async def fetch(name, count):
            request = DownloadRequest(digest=description.digest, first_chunk=assembly.next_chunk)
            async for chunk in round_.handlers.download(name, request):
                assembly.add(Chunk(number=assembly.next_chunk, data=chunk.content()))
                count -= 1
                if not count:
                    return

        with pytest.raises(UnknownArtifactError):
            await fetch("nobody", 1)
        await fetch("a", 1)
        assert assembly.next_chunk == 1
        await fetch("a", 100)
        assert assembly.complete
        params = unpack_parameters(assembly.content, "float32", round_.params)
        jax.tree_util.tree_map(np.testing.assert_array_equal, params, round_.params)
        for _ in range(2):
            assembly = ArtifactAssembly(description, 1 << 20)
            await fetch("a", 100)
        assembly = ArtifactAssembly(description, 1 << 20)
        with pytest.raises(UnknownArtifactError, match="too often"):
            await fetch("a", 100)
        round_.collecting.cancel()


async def test_a_server_that_goes_down_opens_no_round_but_ends_the_one_under_way(tmp_path):
    async with in_round(tmp_path, cohort_size=1, over_selection=1.0) as round_:
        configuration = await round_.select("a")
        round_.rounds.drain()
        assert (await round_.send("a", *round_.report(configuration))).status == Status.ACCEPTED
        assert await round_.collecting is not None
        await round_.open(1)
        with pytest.raises(DrainedError):
            await round_.collecting
