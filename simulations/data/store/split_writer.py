"""Writes the clients of one split into a file, in bounded memory."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.store.format import SplitHeader, schema, token_dtype

BATCH_CLIENTS = 1024
BATCH_BYTES = 4 << 20


class SplitWriter:
    """Collects clients into bounded record batches of one Arrow file; bounds are those of `StoreWriter`."""

    def __init__(
        self,
        path: Path,
        vocabulary_size: int,
        batch_clients: int = BATCH_CLIENTS,
        batch_bytes: int = BATCH_BYTES,
        *,
        completions: bool = False,
    ) -> None:
        self._path = path
        self._vocabulary_size = vocabulary_size
        self._dtype = token_dtype(vocabulary_size)
        self._completions = completions
        self._schema = schema(vocabulary_size, completions)
        self._batch_clients = batch_clients
        self._batch_tokens = max(1, batch_bytes // self._dtype.itemsize)
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._file, self._schema)
        self._written: list[int] = []
        self._totals = np.zeros(3, np.int64)
        self._clear()

    def _clear(self) -> None:
        self._client_ids: list[str] = []
        self._counts: list[int] = []
        self._lengths: list[int] = []
        self._prompt_lengths: list[int] = []
        self._tokens: list[np.ndarray] = []
        self._num_tokens = 0

    def add(self, client_id: str, sequences: Sequence[ArrayLike], prompt_lengths: Sequence[int] | None = None) -> None:
        arrays = [np.asarray(sequence, np.int64).reshape(-1) for sequence in sequences]
        tokens = np.concatenate([np.empty(0, np.int64), *arrays])
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < self._vocabulary_size):
            raise ValueError(
                f"client {client_id!r}: token ids span {tokens.min()} to {tokens.max()}, expected 0 to "
                f"{self._vocabulary_size - 1}"
            )
        if self._completions != (prompt_lengths is not None):
            raise ValueError(f"client {client_id!r}: prompts belong into a store of completions, and only there")
        for array, prompt in zip(arrays, prompt_lengths or (), strict=prompt_lengths is not None):
            if not 0 <= prompt <= array.size:
                raise ValueError(f"client {client_id!r}: a prompt of {prompt} tokens in an example of {array.size}")
        self._prompt_lengths.extend(prompt_lengths or ())
        self._client_ids.append(client_id)
        self._counts.append(len(arrays))
        self._lengths.extend(array.size for array in arrays)
        self._tokens.append(tokens.astype(self._dtype))
        self._num_tokens += tokens.size
        if len(self._client_ids) >= self._batch_clients or self._num_tokens >= self._batch_tokens:
            self._flush()

    def _flush(self) -> None:
        if not self._client_ids:
            return
        if max(self._num_tokens, len(self._lengths)) > np.iinfo(np.int32).max:
            raise DataError(
                f"client {self._client_ids[-1]!r} has too much text for one client: {self._num_tokens} tokens "
                f"in one record batch, expected at most {np.iinfo(np.int32).max}. Divide the client."
            )
        sequences = pa.ListArray.from_arrays(pa.array(_offsets(self._lengths)), pa.array(np.concatenate(self._tokens)))
        examples = pa.ListArray.from_arrays(pa.array(_offsets(self._counts)), sequences)
        columns = [pa.array(self._client_ids, pa.string()), examples]
        if self._completions:
            prompts = pa.array(self._prompt_lengths, pa.int32())
            columns.append(pa.ListArray.from_arrays(pa.array(_offsets(self._counts)), prompts))
        self._write(pa.record_batch(columns, schema=self._schema))
        self._clear()

    def _write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._written.append(batch.num_rows)
        examples = batch.column(1).values
        self._totals += (batch.num_rows, len(examples), len(examples.values))

    def append(self, batch: pa.RecordBatch) -> None:
        """Append a record batch of another `SplitWriter` as it is."""
        self._flush()
        self._write(batch)

    def finish(self) -> SplitHeader:
        """Close the file, and return what it holds."""
        self._flush()
        self._close()
        clients, examples, tokens = self._totals.tolist()
        return SplitHeader(clients, examples, tokens, self._path.stat().st_size, tuple(self._written))

    def abandon(self) -> None:
        """Close the file if it is still open, whatever state it is in."""
        with suppress(OSError, pa.ArrowException):
            self._close()

    def _close(self) -> None:
        if not self._file.closed:
            try:
                self._writer.close()
            finally:
                self._file.close()


def _offsets(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
