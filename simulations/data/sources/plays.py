"""Plays, whose speaking roles are clients: the classic federated text (McMahan et al. 2017; LEAF, Caldas et al. 2018).

Plays of Project Gutenberg are read, and Markdown with speakers in bold. A speech is a paragraph whose first line is its
speaker; paragraphs go on with it until a heading. The last fifth of what a role says is for tests, as in LEAF.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from fedlm.fl_core.errors import DataError
from fedlm.fl_core.number_ranges import Count
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.base import Part, Progress, Reading
from fedlm.simulations.data.sources.tables.byte_parts import unreadable
from fedlm.simulations.data.sources.tables.user_rows import NOT_UTF8, existing_files

_SPEAKER = re.compile(r"\*\*(?P<bold>[^*]+)\*\*|(?!ACT |SCENE )(?P<capitals>\w[^a-z]*[A-Z][^a-z]*)[.:]")
_HEADING = re.compile(r"#|\*|ACT |SCENE |[^a-z]*[A-Z]{2}[^a-z]*$")
_DIRECTION = re.compile(r"\[[^\]]*\]|(?m:^)_[^_]*_(?m:\s*$)")
_END = re.compile(r"\*\*\* ?END OF TH")


@dataclass(frozen=True)
class Plays:
    """Plays in files of their own, one speaking role a client.

    Text is UTF-8, as Project Gutenberg has plays (`HAMLET.` on a line before what he says), or Markdown (`**HAMLET**`).
    Stage directions, in brackets or between underscores, are left out. The last fifth of a role's examples are the
    split test.
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """The files, a play each. A folder stands for the files in it and in its folders whose names end in .txt or .md."""
    characters: Count = field(default=79, kw_only=True)
    """Most characters of an example; a longer speech is cut between words. 79 and the sign of the end are a length of
    80."""

    words_are_separated = False

    def files(self) -> list[Path]:
        return existing_files([file for path in self.paths for file in _files_of(path)])

    def open(self, workspace: Path, progress: Progress) -> Reading:
        files = self.files()
        parts = [Part((path, self.characters), path.stat().st_size) for path in files]
        return Reading.of_files(files, parts, read_play)


def read_play(play: tuple[Path, int], skipped: SkippedCounts) -> Iterator[ClientText]:
    """Yield the text of the roles of a play: its file, and the most characters of an example."""
    path, characters = play
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        skipped.add(NOT_UTF8, place=str(path))
        return
    except OSError as error:
        raise unreadable(path, error) from error
    roles: dict[str, list[str]] = {}
    for role, speech in speeches(text):
        roles.setdefault(role, []).extend(textwrap.wrap(speech, characters, break_on_hyphens=False))
    if not roles:
        skipped.add("file without a speech", place=str(path))
    for role, examples in roles.items():
        tested = max(1, len(examples) // 5) if len(examples) > 1 else 0
        train = len(examples) - tested
        for split, some in (("train", examples[:train]), ("test", examples[train:])):
            if some:
                yield ClientText(f"{path.stem}/{role}", some, split, place=str(path))


def speeches(text: str) -> Iterator[tuple[str, str]]:
    """Yield who says what, in the order of the play; what is said in several paragraphs is several speeches."""
    role = None
    for paragraph in _paragraphs(_END.split(text)[0].splitlines()):
        first, _, rest = paragraph.partition("\n")
        if speaker := _SPEAKER.fullmatch(first):
            role, paragraph = " ".join((speaker["bold"] or speaker["capitals"]).upper().split()), rest
        elif _HEADING.match(first):
            role = None
        said = _DIRECTION.sub(" ", paragraph).replace("_", "").strip()
        if role and said:
            yield role, said


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            held.append(line.strip())
        elif held:
            yield "\n".join(held)
            held = []


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in (".txt", ".md"))
    if not files:
        raise DataError(f"{path}: found a folder without a file *.txt or *.md, expected plays. Or name the files.")
    return files
