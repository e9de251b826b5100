"""A device's own text: a JSON Lines file that is appended to, forgets what is old, and never leaves the device."""

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import ConfigurationError, DataError


@dataclass(frozen=True)
class Retention:
    """What a store keeps.

    Attributes:
      max_examples: the newest so many; None for all.
      max_age_days: only what was added within so many days; None for all. Lines without a time are as old as the file's
        other lines before them say, or new where none says.
    """

    max_examples: int | None = None
    max_age_days: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_examples", "max_age_days"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"{name} is {value}, but must be positive (or left out)")


class Examples(Protocol):
    """Where a client's examples come from; `ExampleStore` is one."""

    def texts(self) -> list[str]:
        """Read what may be trained on."""
        ...

    def version(self) -> tuple[int, int]:
        """Tell whether anything was added or removed since: equal versions mean equal content."""
        ...


class ExampleStore:
    """Text examples in one file, each line `{"text": ..., "added": seconds since 1970}`; `added` may be missing."""

    def __init__(self, path: Path, retention: Retention = Retention()):
        self._path, self._retention = path, retention

    def append(self, texts: Iterable[str], now: float | None = None) -> None:
        """Add examples, then forget what retention does not keep; `now` is seconds since 1970, or the clock's."""
        added = time.time() if now is None else now
        lines = [json.dumps({"text": text, "added": added}, ensure_ascii=False) + "\n" for text in texts]
        with self._path.open("a+b") as file:
            # A line that a crash cut off stays a line of its own, and is reported.
            whole = file.seek(0, os.SEEK_END) == 0 or os.pread(file.fileno(), 1, file.tell() - 1) == b"\n"
            file.write(("" if whole else "\n").encode() + "".join(lines).encode())
        if self._retention != Retention():
            self.forget(added)

    def forget(self, now: float | None = None) -> int:
        """Remove what retention does not keep from the disk; returns how many examples went."""
        return self._keep(self._kept(self._examples(), time.time() if now is None else now))

    def delete(self, unwanted: Callable[[str], bool] = lambda text: True) -> int:
        """Remove examples that are unwanted, or all, from the disk; returns how many went."""
        return self._keep([example for example in self._examples() if not unwanted(example["text"])])

    def texts(self, now: float | None = None) -> list[str]:
        """Read the examples that retention keeps, oldest first.

        Raises:
          DataError: a line is not an example.
        """
        kept = self._kept(self._examples(), time.time() if now is None else now)
        return [example["text"] for example in kept]

    def version(self) -> tuple[int, int]:
        if not self._path.exists():
            return (0, 0)
        found = self._path.stat()
        return (found.st_mtime_ns, found.st_size)

    def _kept(self, examples: list[dict[str, Any]], now: float) -> list[dict[str, Any]]:
        days, most = self._retention.max_age_days, self._retention.max_examples
        if days is not None:
            examples = [one for one in examples if now - one.get("added", now) <= days * 86_400]
        return examples if most is None else examples[-most:]

    def _keep(self, examples: list[dict[str, Any]]) -> int:
        before = len(self._examples())
        if len(examples) < before:
            lines = [json.dumps(one, ensure_ascii=False) + "\n" for one in examples]
            write_atomically(self._path, "".join(lines))
        return before - len(examples)

    def _examples(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self._path}: cannot be read ({error}); expected JSON Lines in UTF-8") from error
        return [self._example(number, line) for number, line in enumerate(lines, start=1) if line.strip()]

    def _example(self, number: int, line: str) -> dict[str, Any]:
        try:
            example = json.loads(line)
        except json.JSONDecodeError:
            example = None
        added = example.get("added", 0.0) if isinstance(example, dict) else None
        if added is None or not isinstance(example.get("text"), str) or not isinstance(added, int | float):
            raise DataError(
                f'{self._path}, line {number}: not an example; expected an object like {{"text": "...", "added": '
                "1700000000}, where added (seconds since 1970) may be missing"
            )
        return example
