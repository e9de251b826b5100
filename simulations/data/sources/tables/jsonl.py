"""Your own users' text as JSON Lines: one JSON object a line."""

import codecs
import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.base import Progress, Reading
from fedlm.simulations.data.sources.tables.byte_parts import BytePart, byte_parts, last_line_end
from fedlm.simulations.data.sources.tables.user_rows import NOT_UTF8, RowSettings, existing_files, row_text


@dataclass(frozen=True)
class JsonLines(RowSettings):
    """Your own users' text as JSON Lines: one object a line, with a user (or none) and a text.

    Files may be compressed: .gz, .bz2 or .xz. In place of a text a line may have a prompt and what completes it, or the
    messages of a conversation.
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """The files."""

    def files(self) -> list[Path]:
        return [*existing_files(self.paths), *self.template_files()]

    def open(self, workspace: Path, progress: Progress) -> Reading:
        files = existing_files(self.paths)
        parts = (part for path in files for part in byte_parts(path, last_line_end))
        return Reading.of_files(files, parts, functools.partial(read_lines, self))


def read_lines(settings: RowSettings, part: BytePart, skipped: SkippedCounts) -> Iterator[ClientText]:
    """Yield the texts of some lines; raises DataError where one is not a JSON object, or has not the fields named."""
    for number, line in enumerate(part.load().split(b"\n"), part.first_line):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line or line.isspace():
            continue
        place = f"{part.path}, line {number}"
        try:
            row: Any = json.loads(line.decode())
        except UnicodeDecodeError:
            skipped.add(NOT_UTF8, place=place)
            continue
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{place}: found no JSON ({error}): {line[:60].decode(errors='replace')!r}. "
                "Expected one JSON object a line; mend or remove the line."
            ) from error
        if not isinstance(row, dict):
            raise DataError(f"{place}: found {type(row).__name__}, expected a JSON object with named fields.")
        yield from row_text(row, settings, place, skipped)
