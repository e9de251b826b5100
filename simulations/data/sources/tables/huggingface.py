"""A data set that the Hugging Face library `datasets` saved to disk, read without that library.

`Dataset.save_to_disk` writes a folder with Arrow IPC streams, named in `state.json`; `DatasetDict.save_to_disk` writes
`dataset_dict.json`, which names the splits, and such a folder for each.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fedlm.fl_core.errors import DataError, setting
from fedlm.simulations.data.sources.base import Progress, Reading
from fedlm.simulations.data.sources.tables.arrow_tables import ARROW_STREAM, Table, open_tables
from fedlm.simulations.data.sources.tables.byte_parts import unreadable
from fedlm.simulations.data.sources.tables.user_rows import SPLIT_NAMES, RowSettings, existing_files

SPLITS_FILE = "dataset_dict.json"
STATE_FILE = "state.json"


@dataclass(frozen=True)
class HuggingFaceDataset(RowSettings):
    """A Hugging Face data set, as `save_to_disk` of the library `datasets` writes it.

    Splits named train, validation (or valid, dev, heldout) and test are kept, unless --split names a column. A data
    set without splits is split by user.
    """

    path: Annotated[Path, tyro.conf.Positional]
    """The folder."""

    def files(self) -> list[Path]:
        return [*existing_files([shard.path for shard in _shards(self)]), *self.template_files()]

    def open(self, workspace: Path, progress: Progress) -> Reading:
        self.files()
        return open_tables(ARROW_STREAM, _shards(self), self)


def _shards(settings: HuggingFaceDataset) -> list[Table]:
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


def _shards_of(folder: Path, split: str | None) -> list[Table]:
    path = folder / STATE_FILE
    state = _document(path)
    if state.get("_indices_data_files"):
        raise DataError(
            f"{path}: the data set is a selection of rows, which only the library reads. "
            "Save it again with a newer release of `datasets`."
        )
    files = state.get("_data_files")
    names = [file.get("filename") if isinstance(file, dict) else None for file in files or []]
    return [Table(folder / name, split) for name in _strings(path, names)]


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
    for value in values:
        # Whoever wrote the folder could have other files of this machine read.
        if value in ("", ".", "..") or not value.isprintable() or "/" in value:
            raise DataError(f"{path}: names {value!r}, expected a file or folder beside it. Save the data set again.")
    return values
