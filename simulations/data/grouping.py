"""Bringing each client's text together: parts of a source are written as runs, sorted by group of clients.

A client's text may lie anywhere in a source. Every part that is read becomes one file, a run, with one record batch
for each of `NUM_GROUPS` groups of clients; a client's group is the first byte of the SHA-256 of its id. The clients
of one group are then found in one record batch of every run, and fit in memory. Runs are whole or not there, so
they also remember which parts have been read.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from fedlm.simulations.data.client_text import ClientText, SkippedCounts

NUM_GROUPS = 256

_SCHEMA = pa.schema(
    [
        pa.field("client_id", pa.string(), nullable=False),
        pa.field("split", pa.string()),
        pa.field("order", pa.int64(), nullable=False),  # in full billions, for nanoseconds of far times need more bits
        pa.field("order_rest", pa.int32(), nullable=False),
        pa.field("sentences", pa.list_(pa.string()), nullable=False),
        pa.field("completions", pa.list_(pa.string())),
    ]
)
_SUMMARY = b"summary"
_BILLION = 10**9


@dataclass(frozen=True)
class RunSummary:
    """What one run holds."""

    texts: int  # number of `ClientText`s
    sentences: int  # number of their sentences
    with_completions: int  # number of `ClientText`s that are prompts with completions
    splits: list[str]  # those that the source named
    group_bytes: list[int]  # bytes of text in each group
    skipped: dict[str, int]
    first_skipped: dict[str, str]
    order_forms: dict[str, tuple[str, str, str]]  # by each form's name the field, value and place of its first


class GroupedClient(NamedTuple):
    """All text of one client."""

    client_id: str
    texts: list[ClientText]  # in order


def client_digest(client_id: str) -> bytes:
    """Return the SHA-256 of a client's id, by which clients are grouped and put in order."""
    return hashlib.sha256(client_id.encode()).digest()


def write_run(path: Path, texts: Iterable[ClientText], skipped: SkippedCounts) -> RunSummary:
    """Write the text of one part as a run, which appears only when it is whole.

    `skipped` is the part's tally, complete once `texts` has been read; it receives texts that are not Unicode, too.
    """
    groups: list[list[ClientText]] = [[] for _ in range(NUM_GROUPS)]
    group_bytes = [0] * NUM_GROUPS
    digests: dict[str, int] = {}
    forms: dict[str, tuple[str, str, str]] = {}
    count = sentences = with_completions = 0
    splits = set()
    for text in texts:
        if (form := text.order_form) is not None:
            forms.setdefault(form.name, (form.field, form.value, text.place))
        place = text.place or f"client {text.client_id!r}"
        if not text.sentences:
            skipped.add("text without a sentence", place=place)
            continue
        try:
            size = sum(len(sentence.encode()) for sentence in text.text)
            group = digests.get(text.client_id)
            if group is None:
                group = digests[text.client_id] = client_digest(text.client_id)[0]
        except UnicodeEncodeError:  # half of a surrogate pair, which JSON can hold
            skipped.add("text that is not Unicode", place=place)
            continue
        groups[group].append(text)
        group_bytes[group] += size
        count += 1
        sentences += len(text.sentences)
        with_completions += text.completions is not None
        if text.split is not None:
            splits.add(text.split)
    counts = (count, sentences, with_completions)
    left_out = skipped.as_dict(), skipped.first_places()
    summary = RunSummary(*counts, sorted(splits), group_bytes, *left_out, forms)
    schema = _SCHEMA.with_metadata({_SUMMARY: json.dumps(asdict(summary))})
    beside = path.with_name(path.name + ".partial")
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(beside), "wb") as file, pa.ipc.new_file(file, schema, options=options) as writer:
        for group_texts in groups:
            rows = ((t.client_id, t.split, *divmod(t.order, _BILLION), t.sentences, t.completions) for t in group_texts)
            columns: Sequence = list(zip(*rows, strict=True)) or [[]] * len(_SCHEMA)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    beside.replace(path)
    return summary


def read_summary(path: Path) -> RunSummary:
    """Read what a run holds, without its text; raises ArrowException, OSError or ValueError where it is damaged."""
    with pa.memory_map(str(path)) as file:
        return RunSummary(**json.loads(pa.ipc.open_file(file).schema.metadata[_SUMMARY]))


def read_clients(runs: Sequence[Path], groups: range) -> Iterator[GroupedClient]:
    """Yield some neighbouring groups' clients in the order of the SHA-256 of their ids, opening every run once.

    The runs are given in the order of the source's parts. All text of the groups is in memory at once.
    """
    rows: dict[str, list[ClientText]] = {}
    for run in runs:
        with pa.memory_map(str(run)) as file:
            reader = pa.ipc.open_file(file)
            batches = [reader.get_batch(group) for group in groups]
            columns = [column.to_pylist() for column in pa.Table.from_batches(batches).columns]
        for client_id, split, billions, rest, sentences, completions in zip(*columns, strict=True):
            text = ClientText(client_id, sentences, split, billions * _BILLION + rest, completions)
            rows.setdefault(client_id, []).append(text)
    for client_id in sorted(rows, key=client_digest):
        # Sorting keeps those of equal order as they are.
        yield GroupedClient(client_id, sorted(rows.pop(client_id), key=lambda text: text.order))
