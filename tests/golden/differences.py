"""What differs between two runs of a case, and what may."""

import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.golden.contents import Fields

ALLOWED = Path(__file__).with_name("allowed.txt")
_AROUND = 60  # characters shown on both sides of where two values part


class Difference(NamedTuple):
    """A field of a file that has another value, or that one side alone has (None)."""

    case: str
    path: str
    field: str
    old: str | None
    new: str | None

    @property
    def name(self) -> str:
        """What it is, as a line of the file of allowed differences names it."""
        return f"{self.path} {self.field}".strip()

    def text(self) -> str:
        """Say it in three lines."""
        start = _where_they_part(self.old or "", self.new or "")
        return f"  {self.name}\n    old: {_shown(self.old, start)}\n    new: {_shown(self.new, start)}"


class Allowed(NamedTuple):
    """A line of the file of allowed differences: patterns of a case and of what differs, and a reason."""

    case: str
    what: str
    reason: str

    def covers(self, difference: Difference) -> bool:
        """Say whether a difference is one that it allows."""
        return fnmatch.fnmatchcase(difference.case, self.case) and fnmatch.fnmatchcase(difference.name, self.what)


class AllowedError(Exception):
    """The file of allowed differences cannot be read."""


def read_allowed(path: Path = ALLOWED) -> list[Allowed]:
    """Read the file: a line each, `CASE | WHAT | REASON`; CASE and WHAT may have * for anything."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            parts = [part.strip() for part in line.split("|")]
            if len(parts) != 3 or not all(parts):
                raise AllowedError(f"{path}, line {number}: expected CASE | WHAT | REASON, found {line!r}")
            found.append(Allowed(*parts))
    return found


def compare(case: str, old: dict[str, Fields], new: dict[str, Fields]) -> Iterator[Difference]:
    """Find all fields that differ, file by file."""
    for path in sorted({*old, *new}):
        if path not in old or path not in new:
            which = f"{len(old.get(path, new.get(path, {})))} fields"
            yield Difference(case, path, "", which if path in old else None, which if path in new else None)
            continue
        for field in dict.fromkeys((*old[path], *new[path])):
            values = old[path].get(field), new[path].get(field)
            if values[0] != values[1]:
                yield Difference(case, path, field, *values)


def _where_they_part(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(first), len(second)))


def _shown(value: str | None, start: int) -> str:
    if value is None:
        return "(there is none)"
    begin = max(start - _AROUND, 0)
    cut = value[begin : start + _AROUND]
    return f"{'…' if begin else ''}{cut}{'…' if start + _AROUND < len(value) else ''}"
