"""What is in files, as fields and values, so that a difference has a name.

Containers that hold times or are packed in an order of their own are opened: what counts is what is in them.
"""

import csv
import hashlib
import io
import json
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import h11
import lxml.html
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
import tensorstore
from tensorboardX.proto.event_pb2 import Event

from fedlm.fedlm_client.messages_pb2 import CheckInReply, CheckInRequest, LogEntry, LogReply

Fields = dict[str, str]
_MOST_ROWS = 200  # of a table whose values have names; a larger one is a digest for each column


def read_folder(folder: Path) -> dict[str, Fields]:
    """Read all files below a folder, by their paths in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink() or (".zarr/" in name):
            continue
        if path.name == "manifest.ocdbt" and "ocdbt.process_" not in name:
            found[f"{path.parent.relative_to(folder)} (arrays)"] = _arrays_of_checkpoint(path.parent)
        elif path.is_file() and not _is_part_of_arrays(path):
            found[name] = read_file(path)
    return found | ({"wire (messages)": _messages(folder / "wire")} if (folder / "wire").is_dir() else {})


def read_file(path: Path) -> Fields:
    """Read one file, by the ending of its name."""
    reader = _READERS.get(path.suffix, _bytes)
    if ".tfevents." in path.name:
        reader = _events
    elif path.name.upper().endswith("METADATA"):  # Orbax's
        reader = _json
    data = path.read_bytes()
    try:
        return reader(data)
    except (ValueError, OSError, KeyError, zipfile.BadZipFile, sqlite3.Error) as error:
        return _bytes(data) | {"unreadable": f"{type(error).__name__}: {error}"}


def digest(data: bytes) -> str:
    """Name bytes."""
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}"


def _is_part_of_arrays(path: Path) -> bool:
    """Say whether it is read with its folder's `manifest.ocdbt`, or passed a relay."""
    return "ocdbt.process_" in str(path) or path.parent.name in ("d", "wire") or path.name == "manifest.ocdbt"


def _bytes(data: bytes) -> Fields:
    return {"": digest(data)}


def _lines(data: bytes) -> Fields:
    return {f"line {number}": line for number, line in enumerate(data.decode().split("\n"), 1)}


def _json(data: bytes) -> Fields:
    return dict(_flat(json.loads(data), ""))


def _json_lines(data: bytes) -> Fields:
    rows = [json.loads(line) for line in data.splitlines() if line.strip()]
    return dict(_flat(rows, ""))


def _flat(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value:
        for number, part in enumerate(value):
            yield from _flat(part, f"{name}[{number}]")
    else:
        yield name, json.dumps(value)


def _page(data: bytes) -> Fields:
    """A page's text, and what its pictures are."""
    root = lxml.html.fromstring(data)
    pictures = {
        f"picture {number}": digest(str(image.get("src")).encode()) for number, image in enumerate(root.iter("img"))
    }
    for part in root.xpath("//script | //style"):
        part.drop_tree()
    fields: Fields = {}
    for element in root.iter("*"):
        for text in (element.text, *(child.tail for child in element)):
            if text and (words := " ".join(text.split())):
                fields[f"text {len(fields)}{_column(element)}"] = words
    return fields | pictures


def _column(element: Any) -> str:
    """Name the column that a cell of a table is in."""
    cell = next((one for one in (element, *element.iterancestors()) if one.tag == "td"), None)
    if cell is None:
        return ""
    heads = next(cell.iterancestors("table")).findall(".//th")
    place = cell.getparent().index(cell)
    return f", column {heads[place].text_content().strip()}" if place < len(heads) else ""


def _array(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}, {digest(np.ascontiguousarray(array).tobytes())}"


def _npz(data: bytes) -> Fields:
    with np.load(io.BytesIO(data)) as arrays:
        return {name: _array(arrays[name]) for name in arrays.files}


def _npy(data: bytes) -> Fields:
    return {"": _array(np.load(io.BytesIO(data)))}


def _safetensors(data: bytes) -> Fields:
    size = int.from_bytes(data[:8], "little")
    about = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    tensors = {name: _array(array) for name, array in safetensors.numpy.load(data).items()}
    return tensors | dict(_flat(about, "metadata"))


def _zip(data: bytes) -> Fields:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: digest(archive.read(name)) for name in sorted(archive.namelist())}


def _table(table: pa.Table) -> Fields:
    fields = {f"column {field.name}": str(field.type) for field in table.schema}
    for name in table.column_names:
        if table.num_rows <= _MOST_ROWS:
            fields |= {f"{name}[{row}]": repr(value) for row, value in enumerate(table[name].to_pylist())}
        else:
            fields[name] = f"{table.num_rows} rows, {digest(repr(table[name].to_pylist()).encode())}"
    metadata = {key.decode(): value.decode(errors="replace") for key, value in (table.schema.metadata or {}).items()}
    return fields | {f"metadata {key}": value for key, value in metadata.items()}


def _parquet(data: bytes) -> Fields:
    return _table(pq.read_table(io.BytesIO(data)))


def _arrow(data: bytes) -> Fields:
    return _table(pa.ipc.open_file(io.BytesIO(data)).read_all())


def _database(data: bytes) -> Fields:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(data[:18] + b"\1\1" + data[20:])  # without a log beside it, which memory has none of
        connection.row_factory = sqlite3.Row
        tables = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
        ).fetchall()
        fields = {f"{name}": sql for name, sql in tables}
        for name in (name for name, sql in tables if sql.startswith("CREATE TABLE")):
            rows = sorted(connection.execute(f'SELECT * FROM "{name}"'), key=lambda row: repr(tuple(row)))
            for number, row in enumerate(rows):
                fields |= {f"{name}[{number}].{column}": _cell(row[column]) for column in row.keys()}  # noqa: SIM118
    return fields


def _cell(value: Any) -> str:
    return digest(value) if isinstance(value, bytes) else repr(value)


def _csv(data: bytes) -> Fields:
    rows = csv.DictReader(io.StringIO(data.decode(), newline=""), restkey="more")
    return {f"[{number}].{name}": str(value) for number, row in enumerate(rows) for name, value in row.items()}


def _log(data: bytes) -> Fields:
    """Lines, or JSON in lines."""
    try:
        return _json_lines(data) if data.startswith(b"{") else _lines(data)
    except ValueError:
        return _lines(data)


def _events(data: bytes) -> Fields:
    """TensorBoard's: records of length, checksum, message, checksum."""
    fields, start, number = {}, 0, 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 8], "little")
        event = Event.FromString(data[start + 12 : start + 12 + size])
        for value in event.summary.value:
            fields[f"{value.tag} at {event.step}"] = repr(value.simple_value)
        start, number = start + size + 16, number + 1
    return fields | {"events": str(number)}


def _arrays_of_checkpoint(folder: Path) -> Fields:
    """What Orbax keeps in its store of keys and values: arrays' descriptions and their packed chunks."""
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{folder.resolve()}/"}).result()
    return {key.decode(): digest(store.read(key).result().value) for key in sorted(store.list().result())}


def _messages(folder: Path) -> Fields:
    """What passed the relay: each distinct request with what answered it, however often it was sent.

    Of an answer to a check-in that selects a client all fields count but the seconds that are left, and the head of the
    server's log, whose key is random. Which clients are told to come back, and when, hangs on when they came. So does
    what they have seen of the log, of which plans and statements count.
    """
    fields: Fields = {}
    for up in sorted(folder.glob("*.up"), key=lambda path: int(path.stem)):
        requests, down = _bodies(up.read_bytes(), h11.SERVER, []), up.with_suffix(".down")
        methods = [head.split()[0].encode() for head, _ in requests]
        answers = _bodies(down.read_bytes() if down.exists() else b"", h11.CLIENT, methods)
        for (head, body), (status, answer) in zip(requests, answers, strict=False):
            if head.endswith("/check-in"):
                fields |= _selection(f"{head} {digest(_unseen(body))}: {status}", CheckInReply.FromString(answer))
            elif head.endswith("/log"):
                fields |= _told_by_log(head, LogReply.FromString(answer))
            else:
                fields[f"{head} {digest(body)}: {status}"] = digest(answer)
    return fields


def _unseen(check_in: bytes) -> bytes:
    """A check-in without what its client has seen of the log."""
    request = CheckInRequest.FromString(check_in)
    request.ClearField("log_sizes")
    return request.SerializeToString(deterministic=True)


def _selection(name: str, reply: CheckInReply) -> Fields:
    if not reply.HasField("selected"):
        return {}
    reply.selected.seconds = 0
    reply.ClearField("tree_head")
    reply.ClearField("consistency")
    return {f"{name}, round {reply.selected.round_number}, client {reply.selected.client_index}": str(reply)}


def _told_by_log(name: str, reply: LogReply) -> Fields:
    leaves = ((proof.index, LogEntry.FromString(proof.leaf)) for proof in reply.leaves)
    return {f"{name}, leaf {index}": str(entry) for index, entry in leaves if not entry.HasField("release")}


def _bodies(data: bytes, role: type[h11.SERVER] | type[h11.CLIENT], methods: list[bytes]) -> list[tuple[str, bytes]]:
    """Cut one direction of an HTTP connection into messages: (what it is, body)."""
    ours, found, body = h11.Connection(role), [], b""
    left = iter(methods)
    _expect(ours, role, left)
    ours.receive_data(data)
    head = ""
    while not isinstance(event := ours.next_event(), h11.ConnectionClosed) and event is not h11.NEED_DATA:
        if isinstance(event, h11.Request):
            head, body = f"{event.method.decode()} {event.target.decode()}", b""
        elif isinstance(event, h11.Response):
            head, body = str(event.status_code), b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            found.append((head, body))
            if role is h11.SERVER:
                ours.send(h11.Response(status_code=204, headers=[]))
                ours.send(h11.EndOfMessage())
            if ours.our_state is not h11.DONE or ours.their_state is not h11.DONE:
                break
            ours.start_next_cycle()
            _expect(ours, role, left)
        elif event is h11.PAUSED:
            break
    return found


def _expect(ours: h11.Connection, role: Any, left: Iterator[bytes]) -> None:
    """A reader of answers must have asked."""
    if role is h11.CLIENT and (method := next(left, None)) is not None:
        ours.send(h11.Request(method=method, target="/", headers=[("host", "here"), ("content-length", "0")]))
        ours.send(h11.EndOfMessage())


_READERS: dict[str, Callable[[bytes], Fields]] = {
    **dict.fromkeys((".toml", ".md", ".tsv", ".svg", ".mlir", ".pub"), _lines),
    **dict.fromkeys((".html",), _page),
    **dict.fromkeys((".zip", ".whl"), _zip),
    **dict.fromkeys((".sqlite", ".db"), _database),
    ".json": _json,
    ".jsonl": _json_lines,
    ".csv": _csv,
    **dict.fromkeys((".txt", ".log"), _log),
    ".npz": _npz,
    ".npy": _npy,
    ".safetensors": _safetensors,
    ".parquet": _parquet,
    ".arrow": _arrow,
}
