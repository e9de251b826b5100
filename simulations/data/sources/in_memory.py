"""Text that a program holds in memory as a source; for small data and for tests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.base import Part, Progress, Reading


@dataclass(frozen=True)
class InMemoryText:
    """Text that a program holds in memory."""

    texts: Sequence[ClientText]
    """The clients' texts."""
    words_are_separated: bool = False
    """See `Source.words_are_separated`."""

    def files(self) -> list[Path]:
        return []

    def open(self, workspace: Path, progress: Progress) -> Reading:
        return Reading("texts", len(self.texts), [Part(self.texts, len(self.texts))], _read)


def _read(texts: Sequence[ClientText], skipped: SkippedCounts) -> Iterator[ClientText]:
    return iter(texts)
