"""Your own users' text as Parquet files."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.sources.base import Progress, Reading
from fedlm.simulations.data.sources.tables.arrow_tables import PARQUET, Table, open_tables
from fedlm.simulations.data.sources.tables.user_rows import RowSettings, existing_files


@dataclass(frozen=True)
class ParquetTables(RowSettings):
    """Your own users' text as Parquet files: a row for each text, with a user (or none) and a text."""

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """The files. A folder stands for the files in it whose names end in .parquet."""

    def files(self) -> list[Path]:
        return [*self._tables(), *self.template_files()]

    def _tables(self) -> list[Path]:
        return existing_files([file for path in self.paths for file in _files_of(path)])

    def open(self, workspace: Path, progress: Progress) -> Reading:
        return open_tables(PARQUET, [Table(path) for path in self._tables()], self)


def _files_of(path: Path) -> list[Path]:
    if not os.path.isdir(path):  # unlike Path.is_dir, quiet where a folder may not be entered
        return [path]
    files = sorted(path.glob("*.parquet"))
    if not files:
        raise DataError(f"{path}: found a folder without a file *.parquet, expected at least one.")
    return files
