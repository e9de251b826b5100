"""A data set that the Hugging Face library `datasets` saved to disk, read without that library.

`Dataset.save_to_disk` writes a folder with Arrow IPC streams, named in `state.json`; `DatasetDict.save_to_disk` writes
`dataset_dict.json`, which names the splits, and such a folder for each.
"""

import functools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import tyro

from fedlm.fl_core.errors import DataError, setting
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.arrow_rows import arrow_errors, batch_text, check_schema
from fedlm.simulations.data.sources.base import PART_BYTES, Part, Progress, Reading
from fedlm.simulations.data.sources.byte_parts import unreadable
from fedlm.simulations.data.sources.user_rows import SPLIT_NAMES, RowSettings, existing_files

SPLITS_FILE = "dataset_dict.json"
STATE_FILE = "state.json"
BATCH_ROWS = 8192
"""Rows that are converted at once."""
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True)
class HuggingFaceDataset(RowSettings):
    """A Hugging Face data set, as `save_to_disk` of the library `datasets` writes it.

    Splits named train, validation (or valid, dev, heldout) and test are kept, unless --split names a column. A data
    set without splits is split by user.
    """

    path: Annotated[Path, tyro.conf.Positional]
    """The folder."""

    def files(self) -> list[Path]:
        return [*self._tables(), *self.template_files()]

    def _tables(self) -> list[Path]:
        return existing_files([shard.path for shard in _shards(self)])

    def open(self, workspace: Path, progress: Progress) -> Reading:
        files = self._tables()
        for path in files:
            _check_file(path, self)
        parts = (part for shard in _shards(self) for part in row_parts(shard, self))
        return Reading.of_files(files, parts, functools.partial(read_rows, self))


class Shard(NamedTuple):
    """One file of a data set."""

    path: Path  # an Arrow IPC stream
    split: str | None  # into which its rows belong, where the data set says it


class RowPart(NamedTuple):
    """Some rows of a shard."""

    shard: Shard
    start: int  # how many rows are before them
    stop: int  # start, and their number


def row_parts(shard: Shard, settings: RowSettings, part_bytes: int = PART_BYTES) -> Iterator[Part]:
    """Cut a shard into parts of whole rows with about so much text, `RowPart`s sized in bytes of the file."""
    start = stop = size = 0
    counted, total = 0, shard.path.stat().st_size
    with arrow_errors(shard.path), pa.memory_map(str(shard.path)) as file:
        for batch in pa.ipc.open_stream(file):
            batch_bytes = max(1, sum(batch.column(name).nbytes for name in settings.fields))
            rows = max(1, batch.num_rows * part_bytes // batch_bytes)
            for first in range(0, batch.num_rows, rows):
                taken = min(rows, batch.num_rows - first)
                stop += taken
                size += batch_bytes * taken // batch.num_rows
                if size >= part_bytes:
                    done = file.tell()
                    yield Part(RowPart(shard, start, stop), done - counted)
                    start, size, counted = stop, 0, done
    yield Part(RowPart(shard, start, stop), total - counted)


def read_rows(settings: RowSettings, part: RowPart, skipped: SkippedCounts) -> Iterator[ClientText]:
    """Yield the texts of some rows; raises DataError where the file is damaged or a value is not what it should be."""
    path, split = part.shard
    row = 0
    with arrow_errors(path), pa.memory_map(str(path)) as file:
        for batch in pa.ipc.open_stream(file):
            for first in range(max(row, part.start), min(row + batch.num_rows, part.stop), BATCH_ROWS):
                rows = batch.select(settings.fields).slice(first - row, min(BATCH_ROWS, part.stop - first))
                rows.validate(full=True)  # or a damaged offset would be followed to anywhere in memory
                yield from batch_text(rows, settings, path, first + 1, skipped, split)
            row += batch.num_rows
            if row >= part.stop:
                break


def _shards(settings: HuggingFaceDataset) -> list[Shard]:
    folder = settings.path
    if not os.path.isfile(folder / SPLITS_FILE):  # unlike Path.is_file, quiet where the folder may not be entered
        return _shards_of(folder, None)
    splits = _strings(folder / SPLITS_FILE, _document(folder / SPLITS_FILE).get("splits"))
    unknown = [split for split in splits if split not in SPLIT_NAMES]
    if unknown and settings.split is None:
        raise DataError(
            f"{folder / SPLITS_FILE}: found the splits {', '.join(map(repr, splits))}, expected only "
            f"{', '.join(SPLIT_NAMES)}. Save it without {unknown[0]!r}, or name with {setting('split')} a column that "
            "says the split."
        )
    return [
        shard
        for split in splits
        for shard in _shards_of(folder / split, SPLIT_NAMES[split] if settings.split is None else None)
    ]


def _shards_of(folder: Path, split: str | None) -> list[Shard]:
    path = folder / STATE_FILE
    state = _document(path)
    if state.get("_indices_data_files"):
        raise DataError(
            f"{path}: the data set is a selection of rows, which only the library reads. "
            "Save it again with a newer release of `datasets`."
        )
    files = state.get("_data_files")
    names = [file.get("filename") if isinstance(file, dict) else None for file in files or []]
    return [Shard(folder / name, split) for name in _strings(path, names)]


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"{path}: there is no such file, so {path.parent} is not a folder that `save_to_disk` of the library "
            "`datasets` wrote. Name such a folder."
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise DataError(f"{path}: found no JSON ({error}). Save the data set again.") from error
    return document if isinstance(document, dict) else {}


def _strings(path: Path, values: object) -> list[str]:
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise DataError(f"{path}: names no files or splits of a data set, expected at least one. Save it again.")
    return values


def _check_file(path: Path, settings: RowSettings) -> None:
    with arrow_errors(path), pa.memory_map(str(path)) as file:
        check_schema(pa.ipc.open_stream(file).schema, settings, path)
    # A stream that was cut off between two of its batches can only be told by this.
    with arrow_errors(path), path.open("rb") as file:
        file.seek(-len(_END_OF_STREAM), 2)
        if file.read() != _END_OF_STREAM:
            raise DataError(f"{path}: is cut off: found no end of the Arrow stream. Fetch the file again.")
