"""Whatever a device is given by its server or its owner comes to a clear error where it is wrong."""

import hashlib
import json
import socket
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

from fedlm.fl_core.deployment.security.plan_keys import create_plan_key
from fedlm_client import messages_pb2 as messages
from fedlm_client.artifacts import Assembly
from fedlm_client.batches import batch_rows
from fedlm_client.cli import main
from fedlm_client.client import Client, Settings, read_examples
from fedlm_client.errors import ClientError, GoneError, PlanError, TransportError, WrongServerError
from fedlm_client.http_channel import Channel
from fedlm_client.limits import Limits
from fedlm_client.manifest import Batches
from fedlm_client.own_participation import OwnParticipation
from fedlm_client.tokenizer import WordPiece
from tests.clients import rules

BATCHES = Batches(5, 4, 1, 5, None, "shuffle_then_cap", False, 0, 1, 2, 3)
RULES = {"lowercase": True, "strip_accents": None, "clean_text": True, "handle_chinese_chars": True}


@pytest.mark.parametrize("case", rules.RULES["lines"], ids=rules.named)
def test_a_line_is_an_example_or_is_named(tmp_path, case):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(case["content"].encode())
    if case["error"] is None:
        counted = [text for text in case["texts"] if "\ud83d" not in text]
        assert read_examples(path, "texts") == counted
        return
    with pytest.raises(ClientError) as caught:
        read_examples(path, "texts")
    assert f'mine.jsonl: expected lines of {{"text": "..."}} in UTF-8, but {case["error"]}' in str(caught.value)


@pytest.mark.parametrize("case", rules.RULES["examples"], ids=rules.named)
def test_a_text_is_cut_as_the_plan_says(tmp_path, case):
    (tmp_path / "mine.jsonl").write_text(json.dumps({"text": case["text"]}))
    for cut in ("sentences", "texts"):
        assert read_examples(tmp_path / "mine.jsonl", cut) == case[cut]


@pytest.mark.parametrize("line", [b"my secret", b"[" * 100_000, b"1" * 5000])
def test_a_line_that_is_no_text_is_not_shown(tmp_path, line):
    (tmp_path / "mine.jsonl").write_bytes(b'{"text": "a"}\n' + line)
    with pytest.raises(ClientError, match=r"mine\.jsonl: expected .* line 2 is no (JSON|object with a text)$"):
        read_examples(tmp_path / "mine.jsonl", "texts")


def test_text_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "mine.jsonl").write_bytes(b'{"text": "\xe9"}')
    with pytest.raises(ClientError, match="UTF-8"):
        read_examples(tmp_path / "mine.jsonl", "texts")


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
    model = {"type": "WordPiece", "vocab": {"[UNK]": 3}, "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    model |= {"max_input_chars_per_word": 100}
    parts = {"normalizer": {"type": "BertNormalizer", **RULES}, "pre_tokenizer": {"type": "BertPreTokenizer"}}
    assert WordPiece(json.dumps(parts | {"model": model}).encode()).encode("a") == [3]
    with pytest.raises(PlanError, match="cannot be read"):
        WordPiece(json.dumps(parts | {"model": model | change}).encode())


def test_more_rows_than_fit_are_not_made():
    large = BATCHES.__class__(**BATCHES.__dict__ | {"batch_size": 1 << 20, "epochs": 1000, "max_batches": 1000})
    with pytest.raises(PlanError, match="rows at most"):
        batch_rows(3, large, 1000, 1, 2, 3)


@pytest.mark.parametrize("name", ["J\u00fcrgen", "a\nb", "", "a" * 129])
def test_a_name_that_http_cannot_carry_is_refused(name):
    with pytest.raises(ClientError, match="name"):
        Channel("127.0.0.1:1", None, name)


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ClientError, match="must be HOST:PORT"):
        Channel("a..b:80", None, "ann")


@pytest.mark.parametrize(
    "answer",
    [
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
)
def test_an_answer_that_never_ends_is_not_waited_for(monkeypatch, answer):
    monkeypatch.setattr("fedlm_client.http_channel._ANSWER_SECONDS", 0.5)
    begins, goes_on = answer
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle():
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(begins)
                for _ in range(300):
                    connection.sendall(goes_on)
                    time.sleep(0.02)

        thread = threading.Thread(target=trickle)
        thread.start()
        with pytest.raises(TransportError, match="took too long"):
            Channel(f"127.0.0.1:{server.getsockname()[1]}", None, "ann").check_in(messages.CheckInRequest())
        thread.join()


def test_an_upload_that_is_read_ever_so_slowly_is_given_up(monkeypatch):
    monkeypatch.setattr("fedlm_client.http_channel._TRANSFER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def read_slowly():
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                while connection.recv(1 << 18):
                    time.sleep(0.01)

        thread = threading.Thread(target=read_slowly)
        thread.start()
        channel = Channel(f"127.0.0.1:{server.getsockname()[1]}", None, "ann")
        with pytest.raises(TransportError, match="took too long to read"):
            channel.upload(messages.UploadHeader(), bytes(1 << 26), lambda: None)
        thread.join()


@pytest.mark.parametrize(
    "content", ['{"plan": ["8", 3, 2]}', '{"plan": [1e400, 3, 2]}', '{"plan": null, "taken": ["1"]}', "[" * 100_000]
)
def test_a_record_that_was_changed_is_refused(tmp_path, content):
    whole = content if content[0] == "[" else f'{{"populations": {{"people": {{"taken": {{}}, {content[1:]}}}}}'
    (tmp_path / "record").write_text(whole)
    asked = messages.RoundConfiguration(population="people", participation={"rounds": 8, "min_separation": 1})
    with pytest.raises(ClientError, match="not a record"):
        OwnParticipation(tmp_path / "record").may(asked, "1")


def test_missing_text_is_said_before_a_server_is_asked(tmp_path, capsys):
    words = ["--server", "127.0.0.1:1", "--insecure", "--name", "ann"]
    words += ["--data", str(tmp_path / "none.jsonl"), "--plan-key", str(create_plan_key(tmp_path / "made"))]
    assert main(["run", *words]) == 2
    assert "none.jsonl: cannot be read" in capsys.readouterr().err


class Asking:
    """A server that asks for a round again and again, each time otherwise, and wants no update."""

    name = "ann"

    def __init__(self, status):
        self.outcomes, self._status, self._round, self.vocabulary = [], status, 0, messages.Artifact()

    def check_in(self, request):
        self._round += 1
        if self._round > 8:
            return messages.CheckInReply(protocols=[2], come_back=messages.ComeBack(done=True))
        asked = messages.RoundConfiguration(
            seed=self._round, seconds=60, learning_rate=1, population="people", plan=messages.Plan()
        )
        asked.vocabulary.CopyFrom(self.vocabulary)
        asked.participation.CopyFrom(messages.ParticipationPlan(rounds=9, max_participations=1, min_separation=1))
        return messages.CheckInReply(protocols=[2], selected=asked)

    def upload(self, header, body, before):
        self.outcomes.append(messages.UploadHeader.Outcome.Name(header.outcome))
        return messages.UploadReply(status=self._status)

    def close(self):
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


@pytest.mark.parametrize("outcome", ["TRAINED", "NOT_FINITE", "TOO_SLOW", "NO_EXAMPLES"])
def test_a_plan_learns_no_more_by_how_training_ends_than_the_count_allows(tmp_path, monkeypatch, outcome):
    (tmp_path / "mine.jsonl").write_text('{"text": "a"}')
    server, ready = Asking(messages.UploadReply.LATE), type("Ready", (), {})()
    ready.trainer = Ending(outcome)
    ready.manifest = type("Manifest", (), {"batches": BATCHES, "examples": "texts", "header": b"FLU2abcd"})
    monkeypatch.setattr(Client, "_plan", lambda self, offered: ready)
    monkeypatch.setattr(Client, "_tokenizer_of", lambda *given: None)
    # The server's tokenizer chooses in which examples there is a token.
    rows = 0 if outcome == "NO_EXAMPLES" else 3
    monkeypatch.setattr(Client, "_examples", lambda *given: np.ones((rows, 6), np.int32))
    monkeypatch.setattr(Client, "_download_model", lambda *given: np.zeros(1, np.float32))
    limits = Settings(tmp_path / "mine.jsonl", []).limits
    if outcome == "TOO_SLOW":
        limits = limits.__class__(max_training_seconds=1e-9)
    settings = Settings(tmp_path / "mine.jsonl", [], limits=limits)
    Client(server, settings, OwnParticipation(tmp_path / "record")).run()
    assert server.outcomes == [outcome] * 4 + ["NOT_ALLOWED"] * 4


def tokenizer_of(**changes):
    model = {"type": "WordPiece", "vocab": {"[UNK]": 3}, "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    parts = {"normalizer": {"type": "BertNormalizer", **RULES}, "pre_tokenizer": {"type": "BertPreTokenizer"}}
    return json.dumps(parts | {"model": model | {"max_input_chars_per_word": 100} | changes}).encode()


def client_of(tmp_path, monkeypatch, server, tokenizer, offered):
    """A client whose plan names a tokenizer, and whose server offers one."""
    (tmp_path / "mine.jsonl").write_text('{"text": "a"}')
    ready, sha256 = type("Ready", (), {})(), hashlib.sha256(tokenizer).hexdigest()
    ready.trainer, server.vocabulary = Ending("TRAINED"), messages.Artifact(size=len(tokenizer))
    parts = {
        "batches": BATCHES,
        "examples": "texts",
        "header": b"FLU2abcd",
        "tokenizer": sha256,
        "memory_bytes": 1 << 20,
    }
    parts |= {"tokenizer_bytes": len(tokenizer), "download_values": 1}
    ready.manifest = type("Manifest", (), parts)
    monkeypatch.setattr(Client, "_plan", lambda self, plan: ready)
    monkeypatch.setattr(Client, "_fetch", lambda self, description, largest: bytearray(offered))
    monkeypatch.setattr(Client, "_download_model", lambda *given: np.zeros(1, np.float32))
    settings = Settings(tmp_path / "mine.jsonl", [])
    return Client(server, settings, OwnParticipation(tmp_path / "record")), ready


def test_text_is_cut_into_tokens_in_rounds_that_are_counted_alone(tmp_path, monkeypatch):
    server, content, counts = Asking(messages.UploadReply.LATE), tokenizer_of(), []
    client, _ = client_of(tmp_path, monkeypatch, server, content, content)

    def encode(self, text):
        record = json.loads((tmp_path / "record").read_text())["populations"]["people"]
        counts.append(len(record["told"]))
        return [3]

    # How long that takes says something of the text, to a server that then has no model.
    monkeypatch.setattr(WordPiece, "encode", encode)
    gone = [True]

    def download(self, description, manifest):
        if gone:
            gone.pop()
            raise GoneError("404")
        return np.zeros(1, np.float32)

    monkeypatch.setattr(Client, "_download_model", download)
    client.run()
    assert counts == [1]
    assert server.outcomes == ["TRAINED"] * 4 + ["NOT_ALLOWED"] * 3


def test_a_tokenizer_of_an_earlier_plan_is_not_taken_for_that_of_the_next(tmp_path, monkeypatch):
    content = tokenizer_of()
    client, ready = client_of(tmp_path, monkeypatch, Asking(messages.UploadReply.LATE), content, content)
    described = messages.Artifact(digest=b"the same", size=len(content))
    assert client._tokenizer_of(described, ready.manifest).encode("a") == [3]
    ready.manifest.tokenizer = hashlib.sha256(b"another").hexdigest()
    with pytest.raises(PlanError, match="is not the one that the plan names"):
        client._tokenizer_of(described, ready.manifest)


def test_a_tokenizer_or_a_model_of_another_size_is_not_even_downloaded(tmp_path, monkeypatch):
    content, asked, download = tokenizer_of(), [], Client._download_model
    client, ready = client_of(tmp_path, monkeypatch, Asking(messages.UploadReply.LATE), content, content)
    monkeypatch.setattr(Client, "_fetch", lambda self, description, largest: asked.append(description))
    monkeypatch.setattr(Client, "_download_model", download)
    for size in (len(content) - 1, len(content) + 1, 1 << 30):
        described = messages.Artifact(size=size, encoding="float32", chunk_bytes=1 << 20)
        with pytest.raises(PlanError, match="is not the one that the plan names"):
            client._tokenizer_of(described, ready.manifest)
        assert client._fetch_named(described, len(content), "plan_bytes") == b""
        with pytest.raises(PlanError, match=f"the download has {size} bytes of 'float32', but the plan has 1 values"):
            client._download_model(described, ready.manifest)
    assert asked == []


def test_a_status_of_a_later_version_is_no_defect(tmp_path, monkeypatch):
    (tmp_path / "mine.jsonl").write_text('{"text": "a"}')
    said = []
    record = OwnParticipation(tmp_path / "record")
    monkeypatch.setattr(record, "may", lambda *given: "its owner says so")
    settings = Settings(tmp_path / "mine.jsonl", [], notice=said.append)
    Client(Asking(99), settings, record).run()
    assert "round 0: it declined, since it may not take part now; the server's answer: 99" in said


class Failing(Asking):
    """A server whose calls fail, one after another, as a test wants."""

    def __init__(self, *faults):
        super().__init__(messages.UploadReply.LATE)
        self._faults = list(faults)

    def check_in(self, request):
        fault = self._faults.pop(0) if self._faults else None
        if isinstance(fault, Exception):
            raise fault
        if fault == "selected":
            return super().check_in(request)
        return messages.CheckInReply(protocols=[2], come_back=messages.ComeBack(done=True))


def waits_of(server, tmp_path, monkeypatch):
    """What a client waits between its calls, in seconds; no time passes, and each round's plan is gone."""
    (tmp_path / "mine.jsonl").write_text('{"text": "a"}')
    waits, now = [], [100.0]
    monkeypatch.setattr("fedlm_client.client.random.uniform", lambda least, most: 1.0)
    monkeypatch.setattr("fedlm_client.client.time", SimpleNamespace(monotonic=lambda: now[0]))

    def gone(*given):
        raise TransportError("broken")

    monkeypatch.setattr(Client, "_plan", gone)
    client = Client(server, Settings(tmp_path / "mine.jsonl", []), OwnParticipation(tmp_path / "record"))

    def wait(seconds):
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(client._stopped, "wait", wait)
    client.run()
    return waits


def test_what_fails_after_a_check_in_backs_off_too(tmp_path, monkeypatch):
    assert waits_of(Failing(*["selected"] * 6), tmp_path, monkeypatch) == [0.5, 1, 2, 4, 8, 16]


def test_a_client_that_began_before_its_server_has_it_soon(tmp_path, monkeypatch):
    waits = waits_of(Failing(*[TransportError("down")] * 46), tmp_path, monkeypatch)
    soon = [wait for number, wait in enumerate(waits) if sum(waits[:number]) < 120]
    assert max(soon) == 3
    assert waits[len(soon) :] == [60] * (46 - len(soon))


def test_a_server_that_was_there_and_is_another_is_waited_for(tmp_path, monkeypatch):
    with pytest.raises(ClientError, match="another authority"):
        waits_of(Failing(WrongServerError("another authority")), tmp_path, monkeypatch)
    assert waits_of(Failing("selected", WrongServerError("another")), tmp_path, monkeypatch)[-1] == 60


def test_what_answers_that_it_knows_no_check_in_is_another_server(tmp_path, monkeypatch):
    with pytest.raises(WrongServerError, match=r"knows of no check-in \(404: a page\)"):
        waits_of(Failing(*[GoneError("404: a page")] * 3), tmp_path, monkeypatch)


def test_a_download_that_is_too_large_is_refused_for_good():
    described = messages.Artifact(size=1001, chunk_bytes=1000)
    with pytest.raises(ClientError, match=r"1,001 bytes, but this client takes 1,000 at most.*--largest-download"):
        Assembly(described, Limits(largest_download=1000), "largest_download")
