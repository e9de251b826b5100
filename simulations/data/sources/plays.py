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

_NOBODY = r"ACT |SCENE |DRAMATIS PERSON|PERSONS |CHARACTERS\b|THE END\b|FINIS\b"
_SPEAKER = re.compile(
    rf"\*\*(?!(?i:{_NOBODY}))(?P<bold>[^*]+)\*\*|(?!{_NOBODY})(?P<capitals>\w[^a-z]*[A-Z][^a-z]*)[.:]"
)
_HEADING = re.compile(rf"#|\*|{_NOBODY}|[^a-z]*[A-Z]{{2}}[^a-z]*$")
_DIRECTION = re.compile(r"\[[^\]]*\]|(?m:^)_[^_]*_(?m:\s*$)")
_MOVES = re.compile(r"(Re-?)?[Ee]nter\b|Exit\b|Exeunt\b")  # a paragraph that begins so is a direction by itself
_END = re.compile(r"\*\*\* ?END OF TH")


@dataclass(frozen=True)
class Plays:
    """Plays in files of their own, one speaking role a client.

    Text is UTF-8, as Project Gutenberg has plays (`HAMLET.` on a line before what he says), or Markdown (`**HAMLET**`).
    Stage directions are left out: in brackets, between underscores, or paragraphs such as `Enter Ghost.` A client is
    named by its play's path below the given folder, and its role. The last fifth of a role's examples are the split
    test.
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
        files, names = self.files(), _names_of(self.paths)
        parts = [Part((path, names[path], self.characters), path.stat().st_size) for path in files]
        return Reading.of_files(files, parts, read_play)


def read_play(play: tuple[Path, str, int], skipped: SkippedCounts) -> Iterator[ClientText]:
    """Yield the text of the roles of a play: its file, its name, and the most characters of an example."""
    path, name, characters = play
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
                yield ClientText(f"{name}/{role}", some, split, place=str(path))


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
        if role and said and (speaker or not _MOVES.match(said)):
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


def _names_of(paths: Iterable[Path]) -> dict[Path, str]:
    """Name plays by where they lie below the folder that was given. Raises DataError where two have one name."""
    names: dict[Path, str] = {}
    for path in paths:
        folder = path if path.is_dir() else path.parent
        for file in _files_of(path):
            name = file.relative_to(folder).with_suffix("").as_posix()
            if name in names.values():
                raise DataError(
                    f"{file}: found a second play of the name {name}, expected a name each, for roles are named by it. "
                    "Rename the file, or give the folder above both."
                )
            names[file] = name
    return names
