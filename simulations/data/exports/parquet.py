"""Export to Parquet."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedlm.simulations.data.exports.base import Advance, example_texts, pieces, stored_clients
from fedlm.simulations.data.splits import SPLITS
from fedlm.simulations.data.store.format import token_dtype
from fedlm.simulations.data.store.token_store import TokenStore

ROW_GROUP_ROWS = 1 << 16
ROW_GROUP_BYTES = 32 << 20
"""A row group is closed at either bound: a reader holds one in memory."""


class ParquetExport:
    """Parquet: one file with all splits, one example a row, as text and as token ids."""

    endings: ClassVar[tuple[str, ...]] = ()

    def check(self, store: TokenStore) -> None:
        pass

    def write(self, store: TokenStore, path: Path, advance: Advance) -> None:
        with pq.ParquetWriter(path, _schema(store), compression="zstd") as writer:
            for group in _row_groups(store):
                writer.write_table(group, row_group_size=group.num_rows)
                advance(group.num_rows)

    def reading_lines(self, store: TokenStore, path: Path) -> list[str]:
        return [
            "import pyarrow.parquet",
            f"file = pyarrow.parquet.ParquetFile({str(path)!r})",
            "rows = file.read_row_group(0).to_pylist()",
        ]


def _schema(store: TokenStore) -> pa.Schema:
    token = pa.from_numpy_dtype(token_dtype(store.vocabulary_size))
    types = {
        "client_id": pa.string(),
        "split": pa.string(),
        "position": pa.int32(),
        "text": pa.string(),
        "tokens": pa.list_(token),
    }
    return pa.schema([pa.field(name, type_, nullable=False) for name, type_ in types.items()])


def _batches(store: TokenStore) -> Iterator[pa.RecordBatch]:
    schema = _schema(store)
    for split in SPLITS:
        for client_id, examples in stored_clients(store, split):
            first = 0
            for piece in pieces(examples):
                positions = np.arange(first, first + piece.num_examples, dtype=np.int32)
                columns = [
                    pa.repeat(client_id, piece.num_examples),
                    pa.repeat(split, piece.num_examples),
                    pa.array(positions),
                    pa.array(example_texts(store, piece), pa.string()),
                    pa.ListArray.from_arrays(pa.array(piece.offsets), pa.array(piece.values)),
                ]
                yield pa.record_batch(columns, schema=schema)
                first += piece.num_examples


def _row_groups(store: TokenStore) -> Iterator[pa.Table]:
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in _batches(store):
        group.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(group)
            group, rows, size = [], 0, 0
    if group:
        yield pa.Table.from_batches(group)
