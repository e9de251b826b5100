"""What a client does when things go wrong, against a server that is a few lines of Python."""

import asyncio
import contextlib
import math
import threading
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from fedlm.clients.device.server_instructions import ANYTHING
from fedlm.commands.cli import main
from fedlm.commands.deployment.client import _read_vocabulary
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.client import Client
from fedlm.fedlm_client.errors import ClientError, RefusedError, TransportError, UnknownArtifactError, WrongServerError
from fedlm.fedlm_client.limits import Conditions, Limits
from fedlm.fedlm_client.link.calls import Chunk
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fedlm_client.own_participation import OwnParticipation
from fedlm.fedlm_client.text.example_store import ExampleStore
from fedlm.fedlm_client.training import EndedError
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.protocol.training_program import write_training_program
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.updates.update_bytes import pack_parameters, upload_bytes, upload_header
from tests.deployment import small_deployment as small
from tests.support.logged import LoggedChannel

Reply, Outcome = messages.UploadReply, messages.UploadHeader.Outcome
SETTINGS = small.deployment(chunk_bytes=4096)
PARAMS = jax.device_get(small.task(SETTINGS).model.init(jax.random.key(0)))
QUICK = Limits(first_backoff=0.001, longest_backoff=0.002, recheck_seconds=0.001)


def answer(**said):
    return messages.CheckInReply(protocols=[PROTOCOL], **said)


class FakeServer:
    """Selects its client for so many rounds; a `Channel` whose calls fail as a test wants."""

    def __init__(self, rounds=1, **program):
        self.rounds, self.headers, self.uploads, self.asked_from, self.check_ins = rounds, [], [], [], 0
        self.faults = {"check_in": [], "download": [], "upload": []}
        self.parameters = ServedArtifact(pack_parameters(PARAMS), "float32", 4096)
        self.vocabulary = ServedArtifact([b'{"kind": "numbers"}'], "tokenizer", 4096)
        self.program = write_training_program(SETTINGS.model, small.task(SETTINGS).model, SETTINGS.training)
        for name, value in program.items():
            setattr(self.program, name, value)
        self.seconds, self.come_back = 10.0, None
        self.there = None  # bytes of an upload that it says are there

    def fault(self, call):
        return self.faults[call].pop(0) if self.faults[call] else None

    async def check_in(self, request):
        self.check_ins += 1
        if fault := self.fault("check_in"):
            raise fault
        if self.come_back is not None:
            return answer(come_back=messages.ComeBack(**self.come_back))
        if len(self.headers) >= self.rounds:
            return answer(come_back=messages.ComeBack(finished=True))
        selected = messages.RoundConfiguration(
            attempt=b"attempt",
            learning_rate=0.1,
            client_index=2,
            program=self.program,
            parameters=self.parameters.description,
            vocabulary=self.vocabulary.description,
            seconds=self.seconds,
        )
        return answer(selected=selected)

    async def download(self, request):
        artifact = self.vocabulary
        if request.digest == self.parameters.description.digest:
            artifact = self.parameters
            self.asked_from.append(request.first_chunk)
        for number in range(request.first_chunk, len(artifact.description.chunk_digests)):
            if artifact is self.parameters and number == 1 and (fault := self.fault("download")):
                raise fault
            yield Chunk(number=number, data=artifact.chunk(number).content())

    async def upload(self, header, pieces):
        if header.asks and self.there is None:
            raise UnknownArtifactError("a server of before does not say")
        if header.asks:
            return Reply(status=Reply.DAMAGED, received=self.there)
        received, fault = [piece async for piece in pieces], self.fault("upload")
        if isinstance(fault, Exception):
            raise fault
        self.uploads.append((header.upload_id, b"".join(received)))
        if fault is not None:
            return Reply(status=fault)
        self.headers.append(header)
        return Reply(status=Reply.ACCEPTED)

    async def close(self):
        pass


class FakeSums:
    """Notes which updates would be masked, and by which index of a client they were made."""

    def __init__(self):
        self.updates, self.indices = [], []

    def index(self, asked):
        return 7

    async def give(self, channel, asked, update, send):
        self.updates.append(update)
        self.indices.append(asked.client_index)
        return await send(b"masked")


class SecureServer(FakeServer):
    """Asks for a secure sum, of whose request a test says more."""

    def __init__(self, **request):
        super().__init__()
        self.request = messages.RoundConfiguration(**request)

    async def check_in(self, request):
        reply = await super().check_in(request)
        if reply.HasField("selected"):
            reply.selected.MergeFrom(self.request)
        return reply


def client_of(server, store, read=small.read_vocabulary, limits=QUICK, **others):
    return small.client_of(lambda: LoggedChannel(server), store, read, limits=limits, **others)


def run(server, tmp_path, store=None, **others):
    client = client_of(server, store or small.store_of(tmp_path, 3), **others)

    async def go():
        async with asyncio.timeout(20):
            await client.run_async()

    asyncio.run(go())
    return client


def test_a_download_goes_on_where_it_broke_off(tmp_path):
    server = FakeServer()
    server.faults["download"] = [TransportError("gone")]
    run(server, tmp_path)
    assert server.asked_from == [0, 1]
    assert server.headers[0].outcome == Outcome.Value("TRAINED")


def test_the_same_upload_is_sent_again_under_the_same_id(tmp_path):
    server = FakeServer()
    server.faults["upload"] = [Reply.DAMAGED, TransportError("acknowledgement lost"), Reply.DAMAGED]
    run(server, tmp_path)
    assert len(server.uploads) == 3
    assert len(set(server.uploads)) == 1
    assert len(server.uploads[0][1]) == upload_bytes(SETTINGS.training.compressor(), PARAMS) == server.headers[0].size


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (RefusedError("revoked"), "revoked"),
        (UnknownArtifactError("404 Not Found: a page"), r"does not know check-ins \(404 Not Found: a page\)"),
        # What a server says commands no terminal, and is one line.
        (RefusedError("no\x1b[31m\nfedlm client ann: round 7: ACCEPTED"), "fedlm client ann: round 7"),
    ],
)
def test_a_server_that_refuses_the_client_ends_it(tmp_path, fault, why):
    server, said = FakeServer(), []
    server.faults["check_in"] = [TransportError(str(fault)), fault, fault, fault]
    with pytest.raises(ClientError, match=why) as caught:
        run(server, tmp_path, notice=said.append)
    assert len(said) == 1
    assert "cannot be reached: " in said[0]
    assert all(one.isprintable() for one in (said[0], str(caught.value)))


@pytest.mark.parametrize(
    ("program", "allowed", "why"),
    [
        ({"length": 0}, small.ALLOWED, "examples of 0 tokens"),
        ({"length": 2**31 - 1}, small.ALLOWED, "examples of 2147483647 tokens"),
        ({"examples": "words"}, small.ALLOWED, "'words', but this client knows sentences and text"),
        ({"batch_size": 0}, small.ALLOWED, "batch_size"),
        ({"model": "os:system"}, small.ALLOWED, "does not allow"),
        ({"model": "os:system"}, ANYTHING, "does not allow"),
    ],
)
def test_what_a_client_does_not_allow_is_not_done(tmp_path, program, allowed, why):
    with pytest.raises(ConfigurationError, match=why):
        run(FakeServer(**program), tmp_path, allowed=allowed)


@pytest.mark.parametrize("content", [b"{", b"{}", b"\xff", b"[" * 100_000, b"9" * 5000])
def test_a_tokenizer_that_is_none_ends_the_client_with_one_sentence(tmp_path, content):
    server = FakeServer()
    server.vocabulary = ServedArtifact([content], "tokenizer", 4096)
    client = client_of(server, small.store_of(tmp_path, 3), _read_vocabulary)
    with pytest.raises(ClientError, match="cannot read the server's tokenizer"):
        client.run()
    assert not server.headers


def test_nothing_is_sent_while_the_device_may_not_train(tmp_path):
    server, answers = FakeServer(), iter([False] * 5 + [True] * 1000)
    run(server, tmp_path, conditions=Conditions(charging=lambda: next(answers)))
    assert server.check_ins == 2


def outcome_of(server, tmp_path, **others):
    run(server, tmp_path, **others)
    (header,) = server.headers
    assert header.outcome == Outcome.Value("TRAINED") or server.uploads == [(header.upload_id, b"")]
    return Outcome.Name(header.outcome)


def test_a_client_says_why_it_has_no_update(tmp_path):
    met = iter([True, True, False] + [True] * 1000)
    unplugged = Conditions(idle=lambda: next(met))
    assert outcome_of(FakeServer(), tmp_path, conditions=unplugged) == "NOT_ALLOWED"
    slow = Limits(first_backoff=0.001, longest_backoff=0.002, max_training_seconds=1e-9)
    for seconds in (10.0, math.nan, math.inf):
        # However long a server lets it train, its owner's bound holds.
        server = FakeServer()
        server.seconds = seconds
        assert outcome_of(server, tmp_path, limits=slow) == "TOO_SLOW"
    (tmp_path / "none.jsonl").write_text('{"text": ""}\n{"text": " \\u2003"}\n')
    heard = []
    store = ExampleStore(tmp_path / "none.jsonl")
    assert outcome_of(FakeServer(), tmp_path, store=store, notice=heard.append) == "NO_EXAMPLES"
    assert heard == ["round 0: it declined, since it has no text to train on; the server's answer: ACCEPTED"]


NOISE = {"secure_sum": {"noise": {"kind": "skellam"}}}
PLAN = {"population": "people", "participation": {"rounds": 9, "min_separation": 1}}


@pytest.mark.parametrize("lacks", ["text", "finite numbers", "time"])
@pytest.mark.parametrize("kind", [NOISE | PLAN, {"secure_sum": {"clip_norm": 1.0}}])
def test_a_member_does_not_tell_that_it_has_no_update_but_adds_zeros(tmp_path, kind, lacks):
    server, sums = SecureServer(**kind), FakeSums()
    limits = Limits(max_training_seconds=1e-9 if lacks == "time" else 60.0)
    if lacks == "finite numbers":
        wrong = jax.tree_util.tree_map(lambda leaf: np.full_like(leaf, np.nan), PARAMS)
        server.parameters = ServedArtifact(pack_parameters(wrong), "float32", 4096)
    (tmp_path / "empty.jsonl").write_text("")
    store = ExampleStore(tmp_path / "empty.jsonl") if lacks == "text" else small.store_of(tmp_path, 3)
    assert outcome_of(server, tmp_path, store=store, sums=sums, limits=limits) == "TRAINED"
    (update,) = sums.updates
    assert update.upload.startswith(header := upload_header(SETTINGS.training.compressor(), PARAMS))
    assert not any(update.upload[len(header) :])
    assert len(update.upload) == upload_bytes(SETTINGS.training.compressor(), PARAMS)
    assert sums.indices == [7], "the server says 2"


def test_a_member_sends_its_vector_again_though_training_is_over_for_long(tmp_path, monkeypatch):
    class Late(FakeSums):
        async def give(self, channel, asked, update, send):
            later = SimpleNamespace(monotonic=lambda: time.monotonic() + 60)
            monkeypatch.setattr("fedlm.fedlm_client.client.time", later)
            return await super().give(channel, asked, update, send)

    server, sums = SecureServer(**NOISE, **PLAN), Late()
    server.faults["upload"] = [TransportError("gone")]
    run(server, tmp_path, sums=sums)
    assert [Outcome.Name(header.outcome) for header in server.headers] == ["TRAINED"]


def test_a_member_that_declines_tries_no_longer_than_the_round_is_open(tmp_path):
    server = SecureServer(**PLAN | {"secure_sum": {"clip_norm": 1.0}})
    server.seconds, server.faults["upload"] = 0.2, [TransportError("gone")] * 400
    client = client_of(server, small.store_of(tmp_path, 3), sums=FakeSums())

    async def go():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await client.run_async()

    asyncio.run(go())
    assert server.check_ins > 1


@pytest.mark.parametrize("shown", [PLAN | {"secure_sum": {"clip_norm": 1.0}}, NOISE])
def test_a_client_adds_to_no_exact_sum_under_a_plan_of_privacy_and_to_no_noised_one_without(tmp_path, shown):
    assert outcome_of(SecureServer(**shown), tmp_path, sums=FakeSums()) == "NOT_ALLOWED"


@pytest.mark.parametrize("cut", ["sentences", "texts"])
def test_a_client_trains_on_the_examples_that_the_server_says(tmp_path, cut):
    (tmp_path / "mine.jsonl").write_text('{"text": "One 1. Two 2."}\n{"text": "\\u200b"}\n{"text": ""}\n')
    heard = []

    def read_vocabulary(content):
        return lambda examples: heard.extend(examples) or [np.full(len(one.strip("\u200b")), 4) for one in examples]

    server = FakeServer(examples=cut)
    client = client_of(server, ExampleStore(tmp_path / "mine.jsonl"), read_vocabulary)
    client.run()
    assert heard == [*(["One 1.", "Two 2."] if cut == "sentences" else ["One 1. Two 2."]), "\u200b"]
    assert server.headers[0].num_examples == len(heard) - 1


def test_that_no_example_has_a_token_is_told_as_often_as_training_only(tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"text": "my secret"}\n')

    class Asking(FakeServer):
        async def check_in(self, request):
            reply = await super().check_in(request)
            if reply.HasField("selected"):
                reply.selected.seed, reply.selected.population = len(self.headers), "people"
                promise = messages.ParticipationPlan(rounds=99, max_participations=1, min_separation=1)
                reply.selected.participation.CopyFrom(promise)
            return reply

    server = Asking(rounds=6)
    # A tokenizer may leave out all but what its author looks for.
    client = client_of(server, ExampleStore(tmp_path / "mine.jsonl"), lambda content: lambda texts: [[]])
    client.run()
    outcomes = [Outcome.Name(header.outcome) for header in server.headers]
    assert outcomes == ["NO_EXAMPLES"] * 4 + ["NOT_ALLOWED"] * 2


def test_nothing_is_compiled_or_encoded_again_in_later_rounds(tmp_path):
    from fedlm.fl_core.rounds import local_sgd

    run(FakeServer(rounds=1), tmp_path)
    compiled, encoded = local_sgd._step._cache_size(), []

    def read_vocabulary(content):
        how = small.read_vocabulary(content)
        return lambda texts: encoded.append(len(texts)) or how(texts)

    server = FakeServer(rounds=4)
    client = client_of(server, small.store_of(tmp_path, 4), read_vocabulary)
    asyncio.run(client.run_async())
    assert local_sgd._step._cache_size() == compiled
    assert len(encoded) == 1
    # The same model, the same seed and round: the same update.
    assert len({content for _, content in server.uploads}) == 1
    assert np.isfinite(server.headers[0].loss)


def test_a_client_whose_part_is_over_ends_before_the_run(tmp_path):
    last, heard = FakeServer(), []
    last.come_back = {"seconds": 3600, "reason": "often enough", "done": True}
    for server, over in ((last, False), (FakeServer(rounds=0), True)):
        client = client_of(server, small.store_of(tmp_path, 3), notice=heard.append)
        assert client.run() is over
    assert heard == ["often enough"]


@pytest.mark.parametrize("seconds", [3600.0, math.nan, -5.0, 0.0])
async def test_a_client_comes_back_when_it_is_told_but_not_without_end_and_stops_at_once(tmp_path, seconds):
    server = FakeServer()
    server.come_back = {"seconds": seconds}
    client = client_of(server, small.store_of(tmp_path, 3))
    running = asyncio.create_task(client.run_async())
    began = time.monotonic()
    while not server.check_ins:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    await asyncio.to_thread(client.stop)
    async with asyncio.timeout(5):
        await running
    assert server.check_ins <= (1 if seconds == 3600 else 1 + (time.monotonic() - began) / 0.02)


class Endless:
    """Trains until it is told that it may not go on."""

    def __init__(self, text):
        self.text, self.began, self.outcome, self.closed = text, threading.Event(), None, False

    def introduce(self):
        return messages.CheckInRequest()

    def depends_on(self, asked, examples):
        return examples

    async def fetch(self, asked, fetch):
        return None

    def train(self, of_round, fetched):
        self.began.set()
        try:
            while True:
                of_round.before_step()
                time.sleep(0.001)
        except EndedError as ended:
            self.outcome = ended.outcome
            raise

    def close(self):
        self.closed = True


def test_a_client_that_is_interrupted_takes_no_other_step(tmp_path):
    server, trainer = FakeServer(), Endless(small.store_of(tmp_path, 3))
    server.seconds = 3000.0

    async def go():
        running = asyncio.create_task(Client(lambda: LoggedChannel(server), trainer).run_async())
        assert await asyncio.to_thread(trainer.began.wait, 30)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(go())  # which waits for the thread that trains
    assert trainer.outcome == Outcome.Value("NOT_ALLOWED")
    assert trainer.closed
    assert server.headers == []


def test_a_model_that_is_too_large_ends_the_client_with_the_option_that_allows_it(tmp_path):
    small_limit = Limits(largest_download=1000)
    with pytest.raises(ClientError, match="takes 1,000 at most; its owner may allow more with --largest-download"):
        run(FakeServer(), tmp_path, limits=small_limit)


def waits_of(server, tmp_path, monkeypatch):
    """What a client waits between its calls, in seconds; no time passes."""
    waits, now = [], [100.0]
    monkeypatch.setattr("fedlm.fedlm_client.waits.random.uniform", lambda least, most: 1.0)
    for module in ("client", "waits"):
        monkeypatch.setattr(f"fedlm.fedlm_client.{module}.time", SimpleNamespace(monotonic=lambda: now[0]))

    async def wait_for(waiting, seconds):
        waiting.close()
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("fedlm.fedlm_client.client.asyncio.wait_for", wait_for)
    limits = Limits()
    client_of(server, small.store_of(tmp_path, 3), limits=limits).run()
    return waits


def test_what_fails_after_a_check_in_backs_off_too(tmp_path, monkeypatch):
    server = FakeServer()
    server.faults["download"] = [TransportError("gone")] * 6
    server.seconds = 1e6
    assert waits_of(server, tmp_path, monkeypatch)[:6] == [0.5, 1, 2, 4, 8, 16]


def test_a_client_that_began_before_its_server_has_it_soon(tmp_path, monkeypatch):
    server = FakeServer(rounds=0)
    server.faults["check_in"] = [TransportError("down")] * 46
    waits = waits_of(server, tmp_path, monkeypatch)
    # For two minutes it waits three seconds at most; then as long as anybody whose server is down.
    soon = [wait for number, wait in enumerate(waits) if sum(waits[:number]) < 120]
    assert max(soon) == 3
    assert waits[len(soon) :] == [60] * (46 - len(soon))
    assert len(soon) < 46


def test_a_server_that_was_there_and_is_another_is_waited_for(tmp_path, monkeypatch):
    server = FakeServer()
    server.faults["check_in"] = [WrongServerError("another authority")]
    with pytest.raises(ClientError, match="another authority"):
        run(server, tmp_path)

    class Mended(FakeServer):
        async def upload(self, header, pieces):
            self.faults["check_in"] = [WrongServerError("another authority")] * 2
            return await super().upload(header, pieces)

    server = Mended()
    assert waits_of(server, tmp_path, monkeypatch)[-2:] == [60, 60]
    assert len(server.headers) == 1


def test_an_upload_goes_on_with_the_byte_that_the_server_lacks(tmp_path):
    server = FakeServer()
    server.faults["upload"], server.there = [Reply.DAMAGED], 100
    run(server, tmp_path)
    (first, whole), (again, rest) = server.uploads
    assert (again, rest) == (first, whole[100:])
    assert server.headers[0].offset == 100


def test_a_status_of_a_later_version_is_no_defect(tmp_path):
    class Later(FakeServer):
        async def upload(self, header, pieces):
            await super().upload(header, pieces)
            return Reply(status=99)

    heard = []
    run(Later(), tmp_path, notice=heard.append)
    assert heard == ["round 0: 99"]


def test_chunks_of_no_size_end_nothing_where_a_client_declines(tmp_path):
    server, heard = FakeServer(), []
    server.parameters.description.chunk_bytes = 0
    record = OwnParticipation(require_plan=False)
    record.may = lambda *given: "its owner says so"
    run(server, tmp_path, participation=record, notice=heard.append)
    assert heard[-1] == "round 0: it declined, since it may not take part now; the server's answer: ACCEPTED"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "typo.jsonl"], "typo.jsonl: cannot be read"),
        (["--proxy", "127.0.0.1:1"], "a proxy would hear and could change plain text"),
        (["--server", "::1:8574"], "but must be HOST:PORT"),
        (["--server", "https://localhost:8999"], "but must be HOST:PORT"),
        (["--largest-download", "0"], "largest"),
    ],
)
def test_what_a_device_cannot_do_is_said_before_a_server_is_asked(tmp_path, monkeypatch, capsys, words, said):
    (tmp_path / "mine.jsonl").write_text('{"text": "a"}')
    monkeypatch.chdir(tmp_path)
    usual = ["--insecure", "--name", "ann"]
    usual += [] if "--server" in words else ["--server", "127.0.0.1:1"]
    usual += [] if "--data" in words else ["--data", "mine.jsonl"]
    assert main(["client", *usual, *words]) == 2
    assert said in capsys.readouterr().err
