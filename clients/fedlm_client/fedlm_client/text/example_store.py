"""A device's own text: a JSON Lines file that is appended to, forgets what is old, and never leaves the device."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import ClientError
from ..files import replace_whole
from .text_examples import ExampleCut, Line, LineError, examples_of, is_time, is_unicode, read_lines


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
                raise ClientError(f"{name} is {value}, but must be positive (or left out)")


class Examples(Protocol):
    """Where a client's examples come from; `ExampleStore` is one."""

    def examples(self, cut: ExampleCut) -> list[Any]:
        """Read what may be trained on, cut into examples that the tokenizer is then given."""
        ...

    def version(self) -> object:
        """Tell whether anything was added or removed since: equal versions mean equal content."""
        ...


class ExampleStore:
    """Text examples in one file, each line `{"text": ..., "added": seconds since 1970}`; `added` may be missing.

    The file is made by the first `append`; until then nothing can be read.
    """

    def __init__(self, path: Path, retention: Retention = Retention()):
        self._path, self._retention = path, retention

    def append(self, texts: Iterable[str], now: float | None = None) -> None:
        """Add examples, then forget what retention does not keep; `now` is seconds since 1970, or the clock's.

        Raises:
          ClientError: a text is not Unicode, `now` is no such time, or the file cannot be written.
        """
        added = time.time() if now is None else now
        if not is_time(added):
            raise ClientError(f"{self._path}: the time is {added!r}, but must be seconds since 1970")
        texts = list(texts)
        for place, text in enumerate(texts, start=1):
            if not is_unicode(text):
                raise ClientError(
                    f"{self._path}: text {place} to add has half of a surrogate pair, and so is not Unicode; leave it "
                    "out, or cut it elsewhere"
                )
        lines = "".join(json.dumps({"text": text, "added": added}, ensure_ascii=False) + "\n" for text in texts)
        with self._written(), self._path.open("a+b") as file:
            # A line that a crash cut off stays a line of its own, and is reported.
            whole = file.seek(0, os.SEEK_END) == 0 or os.pread(file.fileno(), 1, file.tell() - 1) == b"\n"
            file.write(("" if whole else "\n").encode() + lines.encode())
        if self._retention != Retention():
            self.forget(added)

    def forget(self, now: float | None = None) -> int:
        """Remove what retention does not keep from the disk; returns how many examples went."""
        lines = self._lines()
        return self._keep(self._kept(lines, time.time() if now is None else now), len(lines))

    def delete(self, unwanted: Callable[[str], bool] = lambda text: True) -> int:
        """Remove examples that are unwanted, or all, from the disk; returns how many went."""
        lines = self._lines()
        return self._keep([line for line in lines if not unwanted(line.text)], len(lines))

    def texts(self, now: float | None = None) -> list[str]:
        """Read the examples that retention keeps, oldest first.

        Raises:
          ClientError: there is no such file, or a line is not an example.
        """
        return [line.text for line in self._kept(self._lines(), time.time() if now is None else now)]

    def examples(self, cut: ExampleCut) -> list[str]:
        """Read what may be trained on; see `texts` for errors."""
        return [example for text in self.texts() for example in examples_of(text, cut)]

    def version(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except OSError as error:
            raise self._unreadable(error) from error
        return (found.st_mtime_ns, found.st_size)

    def _kept(self, lines: list[Line], now: float) -> list[Line]:
        days, most = self._retention.max_age_days, self._retention.max_examples
        if days is not None:
            lines = [one for one in lines if one.added is None or now - one.added <= days * 86_400]
        return lines if most is None else lines[-most:]

    def _keep(self, lines: list[Line], before: int) -> int:
        if len(lines) < before:
            with self._written():
                replace_whole(self._path, "".join(f"{line.written}\n" for line in lines))
        return before - len(lines)

    def _lines(self) -> list[Line]:
        """Read the file; a line without a time has that of the line before it, where one says it."""
        try:
            lines = read_lines(self._path.read_bytes())
        except OSError as error:
            raise self._unreadable(error) from error
        except LineError as error:
            raise ClientError(
                f'{self._path}: {error}; expected JSON Lines in UTF-8, each an object like {{"text": "...", "added": '
                "1700000000}, where added (seconds since 1970) may be missing"
            ) from error
        known, added = [], None
        for line in lines:
            if line.added is None and added is not None:
                # All else of a line stays as it is: others may read it, and JSON has numbers that Python has not.
                line = line._replace(added=added, written=f'{{"added": {json.dumps(added)}, {line.written[1:]}')
            known.append(line)
            added = line.added
        return known

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ClientError(f"{self._path}: cannot be written: {error}. Make room or permit writing there") from error

    def _unreadable(self, error: OSError) -> ClientError:
        return ClientError(
            f"{self._path}: cannot be read ({error.strerror}); name the file of this device's text, which may be empty"
        )
