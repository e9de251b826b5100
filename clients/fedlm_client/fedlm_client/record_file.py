"""The file in which a device keeps what it took part in, and what it saw of its server's log."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .errors import ClientError
from .files import keep_own


class RecordFile:
    """Parts of a record, each an object in JSON under its name. Others than its device never write it."""

    def __init__(self, path: Path | None = None):
        """Name the file, which need not exist yet; where None, the record lasts as long as the process."""
        self._path = path
        self._kept: dict[str, Any] = {}

    def read(self, part: str, check: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Read a part, empty where there is none.

        Args:
          part: its name.
          check: refuses, with ValueError or what follows from other types, what was never written there.

        Raises:
          ClientError: it cannot be read.
        """
        with self._whole():
            found = dict(self._all().get(part, {}))
            check(found)
            return found

    def write(self, part: str, content: dict[str, Any]) -> None:
        """Write a part; when this returns, it is on disk. Raises ClientError where it cannot be written."""
        with self._whole():
            self._kept = self._all() | {part: content}
        if self._path is not None:
            keep_own(self._path, json.dumps(self._kept) + "\n")

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ClientError(
                f"{self._path}: not a record of what this device took part in ({error}); put it back as it was"
            ) from error

    def _all(self) -> dict[str, Any]:
        if self._path is None or not self._path.exists():
            return self._kept
        found = json.loads(self._path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is no object")
        return found
