"""Whatever a device is given by its server or its owner comes to a clear error where it is wrong."""

import asyncio
import hashlib
import json
import time

import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.client import Client
from fedlm.fedlm_client.errors import ClientError, PlanError, TransportError, UnknownArtifactError
from fedlm.fedlm_client.limits import Limits
from fedlm.fedlm_client.link.http_channel import HttpChannel
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fedlm_client.own_participation import OwnParticipation
from fedlm.fedlm_client.plans import plan_trainer
from fedlm.fedlm_client.plans.batches import RoundSeed, batch_rows
from fedlm.fedlm_client.plans.manifest import Batches
from fedlm.fedlm_client.plans.plan_trainer import Plan, PlanTrainer
from fedlm.fedlm_client.text.example_store import ExampleStore
from fedlm.fedlm_client.text.tokenizer import WordPiece
from tests.support.logged import LoggedChannel
from tests.support.serving import one_answer
from tests.support.uploads import pieces_of

BATCHES = Batches(5, 4, 1, 5, None, "shuffle_then_cap", False, 0, 1, 2, 3)


def tokenizer_of(**changes):
    rules = {"lowercase": True, "strip_accents": None, "clean_text": True, "handle_chinese_chars": True}
    model = {"type": "WordPiece", "vocab": {"[UNK]": 3}, "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    model |= {"max_input_chars_per_word": 100}
    parts = {"normalizer": {"type": "BertNormalizer", **rules}, "pre_tokenizer": {"type": "BertPreTokenizer"}}
    return json.dumps(parts | {"model": model | changes}).encode()


TOKENIZER = tokenizer_of()


@pytest.mark.parametrize("line", [b"my secret", b"[" * 100_000, b"1" * 5000])
def test_a_line_that_is_no_text_is_not_shown(tmp_path, line):
    (tmp_path / "mine.jsonl").write_bytes(b'{"text": "a"}\n' + line)
    why = r"mine\.jsonl: line 2 is not (JSON|an object with a text); expected"
    with pytest.raises(ClientError, match=why) as caught:
        ExampleStore(tmp_path / "mine.jsonl").texts()
    assert line.decode() not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"vocab": {"[UNK]": float("inf")}},
        {"vocab": {"[UNK]": 1 << 31}},
        {"vocab": {"[UNK]": -1}},
        {"max_input_chars_per_word": 1 << 30},
    ],
)
def test_numbers_of_a_tokenizer_are_checked(change):
    assert WordPiece(TOKENIZER).encode("a") == [3]
    with pytest.raises(PlanError, match="cannot be read"):
        WordPiece(tokenizer_of(**change))


def test_more_rows_than_fit_are_not_made():
    large = BATCHES.__class__(**BATCHES.__dict__ | {"batch_size": 1 << 20, "epochs": 1000, "max_batches": 1000})
    with pytest.raises(PlanError, match="rows at most"):
        batch_rows(3, large, 1000, RoundSeed(1, 2, 3))


@pytest.mark.parametrize("name", ["J\u00fcrgen", "a\nb", "", "a" * 129])
def test_a_name_that_http_cannot_carry_is_refused(name):
    with pytest.raises(ClientError, match="name"):
        HttpChannel("127.0.0.1:1", name)


def called(act, call):
    """Make a call to what does as it likes on a socket."""

    async def go(address):
        channel = HttpChannel(address, "ann")
        try:
            async with asyncio.timeout(30):
                return await call(channel)
        finally:
            await channel.close()

    with one_answer(act) as address:
        asyncio.run(go(address))


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
)
def test_an_answer_that_never_ends_is_not_waited_for(monkeypatch, begins, goes_on):
    monkeypatch.setattr("fedlm.fedlm_client.link.http_channel._ANSWER_SECONDS", 0.3)

    def trickle(connection):
        connection.sendall(begins)
        while True:
            connection.sendall(goes_on)
            time.sleep(0.02)

    with pytest.raises(TransportError, match="took too long to answer"):
        called(trickle, lambda channel: channel.check_in(messages.CheckInRequest()))


def test_an_upload_that_is_read_ever_so_slowly_is_given_up(monkeypatch):
    monkeypatch.setattr("fedlm.fedlm_client.link.http_channel._TRANSFER_SECONDS", 0.3)

    def read_slowly(connection):
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        while connection.recv(1 << 18):
            time.sleep(0.01)

    with pytest.raises(TransportError, match="took too long to read"):
        called(
            read_slowly,
            lambda channel: channel.upload(messages.UploadHeader(size=1 << 26), pieces_of(bytes(1 << 26), 1 << 20)),
        )


@pytest.mark.parametrize(
    "content", ['{"plan": ["8", 3, 2]}', '{"plan": [1e400, 3, 2]}', '{"plan": null, "taken": ["1"]}', "[" * 100_000]
)
def test_a_record_that_was_changed_is_refused(tmp_path, content):
    whole = content if content[0] == "[" else f'{{"populations": {{"people": {{"taken": {{}}, {content[1:]}}}}}'
    (tmp_path / "record").write_text(whole)
    asked = messages.RoundConfiguration(population="people", participation={"rounds": 8, "min_separation": 1})
    with pytest.raises(ClientError, match="not a record"):
        OwnParticipation(tmp_path / "record").may(asked, "1")


class Asking:
    """A server that asks for a round again and again, each time otherwise, and wants no update."""

    def __init__(self):
        self.outcomes, self.attempts = [], 0

    async def check_in(self, request):
        assert request.needs_plan
        self.attempts += 1
        if self.attempts > 8:
            return messages.CheckInReply(protocols=[PROTOCOL], come_back=messages.ComeBack(done=True))
        asked = messages.RoundConfiguration(seed=self.attempts, seconds=60, learning_rate=1, population="people")
        asked.participation.CopyFrom(messages.ParticipationPlan(rounds=9, max_participations=1, min_separation=1))
        return messages.CheckInReply(protocols=[PROTOCOL], selected=asked)

    async def upload(self, header, pieces):
        self.outcomes.append(messages.UploadHeader.Outcome.Name(header.outcome))
        return messages.UploadReply(status=messages.UploadReply.LATE)

    async def close(self):
        pass


class Ending:
    """A plan that ends as its author wants."""

    def __init__(self, outcome):
        self._outcome = outcome

    def begin(self, values):
        pass

    def step(self, *given):
        pass

    def finish(self, *stream):
        return [0.0, 0.0, 0.0], self._outcome == "TRAINED", b""

    def close(self):
        pass


def manifest_of(**changes):
    """The parts of a manifest that rounds follow."""
    found = {"batches": BATCHES, "examples": "texts", "header": b"FLU2abcd", "download_values": 1, "digest": "d"}
    found |= {"tokenizer": hashlib.sha256(TOKENIZER).hexdigest(), "tokenizer_bytes": len(TOKENIZER)}
    return type("Manifest", (), found | {"memory_bytes": 1 << 20, "about": "a plan"} | changes)


class Planned(PlanTrainer):
    """Has a plan that was fetched and checked, and ends as its author wants; `faults` are raised by its downloads."""

    def __init__(self, tmp_path, outcome="TRAINED", faults=()):
        (tmp_path / "mine.jsonl").write_text('{"text": "a"}')
        super().__init__(ExampleStore(tmp_path / "mine.jsonl"), [])
        self.plan, self.outcome, self.faults = Plan(b"", manifest_of(), b"", b""), outcome, list(faults)

    async def fetch(self, asked, fetch):
        if self.faults:
            raise self.faults.pop()
        return plan_trainer.Fetched(self.plan, WordPiece(TOKENIZER), bytearray(4))

    def train(self, of_round, fetched):
        of_round.asked.parameters.encoding = "float32"
        return super().train(of_round, fetched)

    def _load(self, plan):
        return Ending(self.outcome)


def take_part(server, trainer, tmp_path, **limits):
    record = OwnParticipation(tmp_path / "record")
    Client(lambda: LoggedChannel(server), trainer, limits=Limits(**limits), participation=record).run()


@pytest.mark.parametrize("outcome", ["TRAINED", "NOT_FINITE", "TOO_SLOW", "NO_EXAMPLES"])
def test_a_plan_learns_no_more_by_how_training_ends_than_the_count_allows(tmp_path, monkeypatch, outcome):
    if outcome == "NO_EXAMPLES":
        # The server's tokenizer chooses in which examples there is a token.
        monkeypatch.setattr(WordPiece, "encode", lambda self, text: [])
    server, limits = Asking(), {"max_training_seconds": 1e-9} if outcome == "TOO_SLOW" else {}
    take_part(server, Planned(tmp_path, outcome), tmp_path, **limits)
    assert server.outcomes == [outcome] * 4 + ["NOT_ALLOWED"] * 4


def test_text_is_cut_into_tokens_in_rounds_that_are_counted_alone(tmp_path, monkeypatch):
    server, counts = Asking(), []

    def encode(self, text):
        record = json.loads((tmp_path / "record").read_text())["populations"]["people"]
        counts.append(len(record["told"]))
        return [3]

    # How long that takes says something of the text, to a server that then has no model.
    monkeypatch.setattr(WordPiece, "encode", encode)
    take_part(server, Planned(tmp_path, faults=[UnknownArtifactError("404")]), tmp_path, first_backoff=0.01)
    assert counts == [1]
    assert server.outcomes == ["TRAINED"] * 4 + ["NOT_ALLOWED"] * 3


def fetching(contents, asked):
    """Downloads that give a content by its artifact's digest, and note which artifacts were asked for."""

    async def fetch(description, largest=None, option=""):
        asked.append(description)
        return bytearray(contents[description.digest])

    return fetch


async def test_a_tokenizer_of_an_earlier_plan_is_not_taken_for_that_of_the_next():
    trainer, fetch = PlanTrainer(None, []), fetching({b"t": TOKENIZER}, [])
    described = messages.Artifact(digest=b"t", size=len(TOKENIZER))
    found = await trainer._fetch_tokenizer(described, manifest_of(), fetch)
    assert found.encode("a") == [3]
    another = manifest_of(tokenizer=hashlib.sha256(b"another").hexdigest())
    with pytest.raises(PlanError, match="is not the one that the plan names"):
        await trainer._fetch_tokenizer(described, another, fetch)


async def test_a_tokenizer_or_a_model_of_another_size_is_not_even_downloaded():
    trainer, asked = PlanTrainer(None, []), []
    for size in (len(TOKENIZER) - 1, len(TOKENIZER) + 1, 1 << 30):
        described = messages.Artifact(size=size, encoding="float32", chunk_bytes=1 << 20)
        with pytest.raises(PlanError, match="is not the one that the plan names"):
            await trainer._fetch_tokenizer(described, manifest_of(), fetching({}, asked))
        trainer._plan = Plan(b"", manifest_of(), b"", b"")
        trainer._tokenizer = manifest_of().tokenizer, WordPiece(TOKENIZER)
        of_round = messages.RoundConfiguration(parameters=described, plan=messages.Plan())
        with pytest.raises(PlanError, match=f"the download has {size} bytes of 'float32', but the plan has 1 values"):
            await trainer.fetch(of_round, fetching({}, asked))
        trainer._tokenizer = None
    assert asked == []


async def test_a_plan_whose_model_has_another_size_is_refused_before_its_download(monkeypatch):
    manifest, asked = manifest_of(model_bytes=3, model=""), []
    monkeypatch.setattr(plan_trainer, "check_signature", lambda *given: None)
    monkeypatch.setattr(plan_trainer, "check_limits", lambda *given: None)
    monkeypatch.setattr(plan_trainer, "read_manifest", lambda content: manifest)
    offered = messages.Plan(manifest=messages.Artifact(digest=b"m"), model=messages.Artifact(digest=b"x", size=4))
    with pytest.raises(PlanError, match="the plan's model is not the one that its manifest names"):
        await PlanTrainer(None, [])._fetch_plan(offered, fetching({b"m": b"{}"}, asked))
    assert asked == [offered.manifest]
