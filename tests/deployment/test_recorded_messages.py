"""Versions from before meet this one: what they said is in `recorded`, and clients and servers still understand it."""

import asyncio
import base64
import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.http_channel import HttpChannel
from tests.deployment import recorded_messages as record
from tests.deployment import small_deployment as small

# As they were named first, whatever this version names them.
CHECK_IN, UPLOAD, UPLOAD_HEADER = "/check-in", "/upload", "fedlm-upload"
RECORDED = sorted((Path(__file__).parent / "recorded").glob("messages-*.json"))
of_each_version = pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def bytes_of(packed):
    return base64.b64decode(packed)


@of_each_version
def test_each_message_of_a_version_says_the_same_to_this_one(path):
    for name, form in read(path)["forms"].items():
        found = getattr(messages, name).FromString(bytes_of(form["bytes"]))
        assert MessageToDict(found) == form["says"], name


def ask(port, call, sent=None, fields=None, target=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(
            call["method"],
            target or call["target"],
            bytes_of(call["sent"]) if sent is None else sent,
            call["fields"] | (fields or {}),
        )
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.mark.long
@of_each_version
async def test_a_client_of_a_version_takes_part_in_a_round_of_this_servers(path, tmp_path):
    """It sends the bytes that it sent, but for the names of attempt and model, which it was told."""
    first, selecting, log, *downloads, upload, _ = read(path)["session"]
    told = messages.CheckInReply.FromString(bytes_of(selecting["answer"])).selected
    async with asyncio.timeout(small.PATIENCE), record.server_of(tmp_path) as server:
        while True:
            status, _, answer = await asyncio.to_thread(ask, server.port, first)
            assert status == 200
            reply = messages.CheckInReply.FromString(answer)
            if reply.WhichOneof("answer") == "selected":
                break
            await asyncio.sleep(reply.come_back.seconds)
        now = reply.selected
        asked = bytes_of(log["sent"]).replace(told.run.encode(), now.run.encode())
        status, _, answer = await asyncio.to_thread(ask, server.port, log, asked)
        assert (status, len(messages.LogReply.FromString(answer).leaves)) == (200, 2)
        for call in downloads:
            target = call["target"].replace(told.parameters.digest.hex(), now.parameters.digest.hex())
            status, fields, answer = await asyncio.to_thread(ask, server.port, call, target=target)
            known = {name.lower(): value for name, value in call["answer_fields"].items()}
            assert (status, fields["fedlm-chunk-bytes"], len(answer)) == (
                200, known["fedlm-chunk-bytes"], len(bytes_of(call["answer"])),
            )  # fmt: skip
        header = bytes_of(upload["fields"][UPLOAD_HEADER]).replace(told.attempt, now.attempt)
        fields = {UPLOAD_HEADER: record.packed(header)}
        status, _, answer = await asyncio.to_thread(ask, server.port, upload, fields=fields)
        reply = messages.UploadReply.FromString(answer)
        assert (status, reply.status, reply.reason) == (200, messages.UploadReply.ACCEPTED, "")
        assert await server.over
    assert [row["clients"] for row in server.rows] == [1]


class _Answers(BaseHTTPRequestHandler):
    """Answers as a server of a version did."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        known = [call for call in self.server.calls if (call["method"], call["target"]) == (self.command, self.path)]
        before = [one for one in self.server.heard if one[0] == self.path]
        self.server.heard.append((self.path, dict(self.headers), sent))
        call = known[min(len(before), len(known) - 1)]
        self.send_response(call["status"])
        for name, value in call["answer_fields"].items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(bytes_of(call["answer"]))

    do_GET = do_POST = do_PUT = answer  # noqa: N815

    def log_message(self, *words):
        pass


@pytest.mark.long
@of_each_version
async def test_this_client_takes_part_in_a_round_of_a_server_of_a_version(path, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.calls, server.heard = read(path)["session"], []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_port}"
    async with asyncio.timeout(small.PATIENCE):
        assert await record.client_of(tmp_path, lambda: HttpChannel(address, "client0")).run_async()
    server.shutdown()
    server.server_close()
    told = [call for call in server.calls if call["target"] == CHECK_IN]
    asked = [messages.CheckInRequest.FromString(sent) for name, _, sent in server.heard if name == CHECK_IN]
    known = [messages.CheckInRequest.FromString(bytes_of(call["sent"])) for call in told]
    assert [one.protocol for one in asked] == [one.protocol for one in known]
    ((_, fields, sent),) = [one for one in server.heard if one[0] == UPLOAD]
    fields = {name.lower(): value for name, value in fields.items()}
    header = messages.UploadHeader.FromString(bytes_of(fields[UPLOAD_HEADER]))
    attempt = messages.CheckInReply.FromString(bytes_of(told[1]["answer"])).selected.attempt
    upload = next(call for call in server.calls if call["target"] == UPLOAD)
    assert (header.attempt, header.size) == (attempt, len(sent)) == (attempt, len(bytes_of(upload["sent"])))
