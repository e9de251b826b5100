"""What a source of text is: settings that a user gives, cut into parts that worker processes read.

All that sources do raises DataError where a file is missing, damaged or cut off, contradicts itself, or is not what the
source reads.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from fedlm.simulations.data.client_text import ClientText, SkippedCounts

Progress = Callable[[str, int, int | None, str], None]
"""Called with (phase, done, total, unit); the total is None where it is not known. The unit is a plural, "bytes"."""

PART_BYTES = 32 << 20
"""About so much of an input is one part: small enough to hold in memory as Python strings, large enough that
starting on it costs nothing."""


ReadPart = Callable[[Any, SkippedCounts], Iterator[ClientText]]
"""Yields the text of one part, given its `content` and a tally of what is skipped."""


class Part(NamedTuple):
    """A piece of a source that is read on its own."""

    content: Any  # what the source's `read` needs to find it; small, or the bytes themselves; picklable
    size: int  # in the source's unit


@dataclass(frozen=True)
class Reading:
    """A source that has been opened."""

    unit: str  # what sizes count, in the plural
    total: int | None  # the sum of the sizes of all parts, where it is known
    # the same in the same order each time; iterated once, in the main process, no faster than workers read
    parts: Iterable[Part]
    read: ReadPart  # a function of a module, or a `functools.partial` of one, for it travels to workers

    @classmethod
    def of_files(cls, files: Iterable[Path], parts: Iterable[Part], read: ReadPart) -> Self:
        """Return a reading of files with parts sized in bytes of them."""
        return cls("bytes", sum(path.stat().st_size for path in files), parts, read)


class Source(Protocol):
    """The settings of a source, a frozen dataclass; the command line's options and help are made from it.

    Its docstring's first line is the source's description. One with an attribute `without_users` that is true has texts
    that nobody is named for, so that nothing may be promised to users. A new source is one module with such a class,
    and one line in `fedlm.simulations.data.sources.registry`.
    """

    @property
    def words_are_separated(self) -> bool:
        """Whether texts are words with single spaces between them already, which word-level tokenizers keep."""
        ...

    def files(self) -> list[Path]:
        """Name the files that are read, in a fixed order; an interrupted import goes on only while they are the
        same."""
        ...

    def open(self, workspace: Path, progress: Progress) -> Reading:
        """Open the files; progress is called as preparations proceed.

        The workspace is a folder for large temporary files; what is found there was left by an interrupted import of
        the same source.
        """
        ...
