"""What leaves the device: no text and no token ids are among the bytes that a client sends, and the docs list all."""

import asyncio
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.client_algorithms.interface import sent_by_client
from fedlm.fl_core.updates.update_bytes import upload_bytes
from tests.deployment import small_deployment as small

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "assumptions.md"
SENT = (
    messages.CheckInRequest,
    messages.LogRequest,
    messages.UploadHeader,
    messages.EnrolRequest,
    messages.SecureRequest,
)
KEY = jax.random.key(0)
ROUNDS, PARTICIPANTS = 2, 3


class Tap:
    """Passes a connection on, and keeps what the client sent."""

    def __init__(self, port):
        self.target, self.sent, self.port = port, bytearray(), 0
        self._server = None

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exception):
        self._server.close()

    async def _pass(self, reader, writer):
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self._copy(reader, there_writer, self.sent), self._copy(there_reader, writer, bytearray()))

    async def _copy(self, reader, writer, kept):
        try:
            while data := await reader.read(1 << 16):
                kept += data
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


def forms(tokens):
    """How a text, or its token ids, could be told from bytes."""
    text = " ".join(map(str, tokens))
    for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
        yield text.encode(encoding)
    # Ids with those of the special tokens before them, whatever their width and order.
    for kind in ("<u1", "<u2", ">u2", "<i4", ">i4", "<i8", ">i8", "<f4", "<f8"):
        yield np.array(tokens, kind).tobytes()


@pytest.mark.long
@pytest.mark.parametrize(("bits", "personal"), [(8, ()), (32, ("head",))])
async def test_no_text_and_no_ids_are_among_the_bytes_that_a_client_sends(tmp_path, bits, personal):
    cohort = {"rounds": ROUNDS, "cohort_size": PARTICIPANTS, "minimum_reports": PARTICIPANTS}
    settings = small.deployment(**cohort, upload_bits=bits, personal_layers=personal)
    what = small.task(settings)
    server = small.Server(what, tmp_path / "run")
    async with asyncio.timeout(small.PATIENCE), server, Tap(server.port) as tap:
        clients = [small.make_client(tap.port, tmp_path, one) for one in range(PARTICIPANTS)]
        async with small.running(clients):
            assert await server.over
        sent = bytes(tap.sent)
    examples = [tokens for one in range(PARTICIPANTS) for tokens in small.token_lists(one) if len(tokens) >= 4]
    assert len(examples) > 5
    for tokens in examples:
        assert not any(form in sent for form in forms(tokens)), tokens
    # The tap sees all that is sent, and beside the updates there is little.
    update = sent_by_client(settings.training.algorithm.make(), jax.eval_shape(what.model.init, KEY))
    updates = ROUNDS * PARTICIPANTS * upload_bytes(settings.training.compressor(), update)
    requests = sent.count(b" HTTP/1.1\r\n")  # clients ask again as long as a round is not ready
    assert requests >= 3 * ROUNDS * PARTICIPANTS
    assert updates < len(sent) < updates + 500 * requests


def test_every_field_that_a_client_sends_is_listed():
    section = DOCUMENT.read_text().split("## What leaves the device")[1].split("\n## ")[0]
    listed = set(re.findall(r"`(\w+)`", section))
    for message in SENT:
        missing = {field.name for field in message.DESCRIPTOR.fields} - listed
        assert not missing, f"{DOCUMENT.name} does not list {missing} of {message.DESCRIPTOR.name}"
