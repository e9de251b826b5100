"""What a client and a server of a version said to each other, kept so that later versions are held to it.

    python -m tests.deployment.recorded_messages tests/deployment/recorded

records this version, once, when it is released.
"""

import asyncio
import base64
import contextlib
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict

from fedlm.clients.device.server_instructions import AllowedPrograms
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.http_channel import HttpChannel
from fedlm.fedlm_client.link.protocol import CHECK_IN, LOG
from fedlm.models.registry import ModelEntry
from tests.deployment import small_deployment as small

MODEL = "tests.deployment.recorded_messages:TINY"
TINY = ModelEntry(small.bigram, small.BigramConfig(embedding=2))
SETTINGS = {"model": MODEL, "rounds": 1, "cohort_size": 1, "minimum_reports": 1, "over_selection": 1.0}
ALLOWED = AllowedPrograms((MODEL,))


def packed(content):
    return base64.b64encode(content).decode()


class _Recorded:
    """A connection that keeps what goes over it."""

    def __init__(self, inner, calls, always):
        self._inner, self._calls, self._always = inner, calls, always

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def begin(self, method, target, fields):
        named = [*fields, *(one for one in self._always if one[0] != "Host")]
        self._call = {"method": method, "target": target, "fields": dict(named), "sent": b"", "answer": b""}
        self._calls.append(self._call)
        await self._inner.begin(method, target, fields)

    async def send(self, data):
        self._call["sent"] += data
        await self._inner.send(data)

    async def send_while_wanted(self, pieces):
        async def kept():
            async for piece in pieces:
                self._call["sent"] += piece
                yield piece

        await self._inner.send_while_wanted(kept())

    async def answer(self):
        found = await self._inner.answer()
        fields = {name.decode(): value.decode() for name, value in found.headers}
        self._call |= {"status": found.status_code, "answer_fields": fields}
        return found

    async def body(self, answer):
        self._call["answer"] = await self._inner.body(answer)
        return self._call["answer"]

    async def pieces(self):
        async for piece in self._inner.pieces():
            self._call["answer"] += piece
            yield piece


class _Recording(HttpChannel):
    def __init__(self, server, name, calls):
        super().__init__(server, name)
        self._calls = calls

    @contextlib.asynccontextmanager
    async def _connection(self, seconds):
        async with super()._connection(seconds) as connection:
            yield _Recorded(connection, self._calls, self._always)


def client_of(folder, dial):
    """The client of what is recorded."""
    return small.client_of(dial, small.store_of(folder, 0), allowed=ALLOWED)


def server_of(folder):
    """The server of what is recorded."""
    return small.Server(small.task(small.deployment(**SETTINGS)), folder / "run", linger=5.0)


async def record_session(folder):
    """The calls of a client of one round, with their answers; of check-ins the first, the one that selects it and the
    last."""
    calls = []
    async with asyncio.timeout(small.PATIENCE), server_of(folder) as server:
        address = f"127.0.0.1:{server.port}"
        await client_of(folder, lambda: _Recording(address, "client0", calls)).run_async()
    of_round = next(place for place, one in enumerate(calls) if one["target"] == LOG) - 1
    kept = [calls[0], *(one for one in calls[of_round:-1] if one["target"] != CHECK_IN or one is calls[of_round])]
    return [
        {name: packed(value) if isinstance(value, bytes) else value for name, value in one.items()}
        for one in [*kept, calls[-1]]
    ]


def whole(descriptor, depth=0):
    """A message with something in each field, but for messages within too many others."""
    made = messages.DESCRIPTOR.message_types_by_name[descriptor.name]
    message = getattr(messages, made.name)()
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            getattr(message, field.name)["one"] = _plain(value, 1)
        elif field.message_type is not None:
            if depth < 3:
                inner = whole(field.message_type, depth + 1)
                place = getattr(message, field.name)
                (place.add() if field.is_repeated else place).CopyFrom(inner)
        elif field.is_repeated:
            getattr(message, field.name).extend([_plain(field, field.number), _plain(field, field.number + 1)])
        else:
            setattr(message, field.name, _plain(field, field.number))
    return message


def _plain(field, number):
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    kinds = {FieldDescriptor.CPPTYPE_STRING: f"text {number}", FieldDescriptor.CPPTYPE_BOOL: True}
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes([number])
    return kinds.get(field.cpp_type, float(number) / 2 if field.cpp_type in _FLOATS else number)


_FLOATS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


def record_forms():
    """Each message with all of its fields, as bytes and as what they say."""
    made = {name: whole(found) for name, found in messages.DESCRIPTOR.message_types_by_name.items()}
    return {
        name: {"bytes": packed(one.SerializeToString(deterministic=True)), "says": MessageToDict(one)}
        for name, one in made.items()
    }


def main(folder):
    with tempfile.TemporaryDirectory() as scratch:
        recorded = {"session": asyncio.run(record_session(Path(scratch))), "forms": record_forms()}
    path = Path(folder) / f"messages-{version('fedlm')}.json"
    path.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
