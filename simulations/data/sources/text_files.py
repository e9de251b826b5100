"""Plain text that belongs to nobody in particular: books, articles, web pages."""

import codecs
import functools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.base import PART_BYTES, Part, Progress, Reading
from fedlm.simulations.data.sources.tables.byte_parts import DECOMPRESSORS, BytePart, FindEnd, byte_parts, last_line_end
from fedlm.simulations.data.sources.tables.user_rows import NOT_UTF8, document_id, existing_files

Documents = Literal["files", "lines", "paragraphs"]

_SEPARATORS = {"lines": re.compile(rb"\n"), "paragraphs": re.compile(rb"\n\s*\n")}


@dataclass(frozen=True)
class TextFiles:
    """Plain text without users: each file, line or paragraph is a document.

    Text is UTF-8. Files may be compressed: .gz, .bz2 or .xz. A document is one example, however long it is, and a
    client of its own.
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """The files. A folder stands for the files in it and in its folders whose names end in .txt or .TXT, or in that and
    the end of a compressed file's name."""
    documents: Documents = field(default="files", kw_only=True)
    """What a document is: a file, a line, or a paragraph. A paragraph ends at a blank line."""

    words_are_separated = False
    without_users = True

    def files(self) -> list[Path]:
        return existing_files([file for path in self.paths for file in _files_of(path)])

    def open(self, workspace: Path, progress: Progress) -> Reading:
        files = self.files()
        parts = _joined(part for path in files for part in byte_parts(path, find_end(self.documents)))
        return Reading.of_files(files, parts, functools.partial(read_documents, self.documents))


def find_end(documents: Documents) -> FindEnd:
    """Return what finds the ends of documents."""
    return {"files": lambda data, start: -1, "lines": last_line_end, "paragraphs": _last_blank_line_end}[documents]


def read_documents(documents: Documents, parts: Sequence[BytePart], skipped: SkippedCounts) -> Iterator[ClientText]:
    """Yield the documents of some parts; lines and paragraphs without a word are none."""
    for part in parts:
        data = part.load()
        line, counted = part.first_line, 0
        for start, stop in _spans(documents, data):
            line, counted = line + data.count(b"\n", counted, start), start
            document = data[start:stop]
            if part.start == start == 0:
                document = document.removeprefix(codecs.BOM_UTF8)
            try:
                words = document.decode().split()
            except UnicodeDecodeError:
                place = str(part.path) if documents == "files" else f"{part.path}, line {line}"
                skipped.add(NOT_UTF8, place=place)
                continue
            if words:
                yield ClientText(document_id(words, None), [" ".join(words)])
            elif documents == "files":
                skipped.add("empty text", place=str(part.path))


def _spans(documents: Documents, data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where documents begin and end."""
    start = 0
    if documents != "files":
        for separator in _SEPARATORS[documents].finditer(data):
            yield start, separator.start()
            start = separator.end()
    yield start, len(data)


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Join the parts of small files to parts of about `PART_BYTES`, each with a list of `BytePart`s as content."""
    contents: list[BytePart] = []
    held = size = 0
    for part in parts:
        contents.append(part.content)
        held += part.content.stop - part.content.start
        size += part.size
        if held >= PART_BYTES:
            yield Part(contents, size)
            contents, held, size = [], 0, 0
    if contents:
        yield Part(contents, size)


def _files_of(path: Path) -> list[Path]:
    if not os.path.isdir(path):  # unlike Path.is_dir, quiet where a folder may not be entered
        return [path]
    ends = tuple(f".txt{end}" for end in ("", *DECOMPRESSORS))
    files = sorted(file for file in path.rglob("*") if file.name.lower().endswith(ends))
    if not files:
        raise DataError(f"{path}: found a folder without a file *.txt, expected at least one. Or name the files.")
    return files


def _last_blank_line_end(data: bytes, start: int) -> int:
    """A `FindEnd` of paragraphs."""
    stop = data.rfind(b"\n", start)
    while stop >= 0:
        before = data.rfind(b"\n", 0, stop)
        if before >= 0 and not data[before:stop].strip():
            return stop + 1
        stop = before if before >= start else -1
    return -1
