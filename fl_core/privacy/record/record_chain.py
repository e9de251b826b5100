"""JSON lines of which each carries the SHA-256 of its content and that of the line before, synced one by one.

A line that is changed, missing, or from elsewhere is found. A last line without its end was never synced, and nothing
has followed from it; it is dropped.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedlm.fedlm_client.files import sync_to_disk
from fedlm.fl_core.atomic_files import AppendedError, Fence, append_whole, disk_errors

Record = dict[str, Any]
_FIRST = "0" * 64


class RecordChain:
    """A file of chained records; it need not exist yet.

    Attributes:
      fence: within which records are added.
      locked: descriptor of the file, where the caller holds its lock by `flock`; it is let go once a record is added.
    """

    fence: Fence = contextlib.nullcontext
    locked: int | None = None

    def __init__(self, path: Path, check: Callable[[list[Record], Record], None], damaged: Callable[[str], Exception]):
        """Read a file.

        Args:
          check: refuses a record that may not follow those before it.
          damaged: makes the error of what is wrong with a file.
        """
        self._path, self._check, self._damaged = path, check, damaged
        content = path.read_bytes() if path.exists() else b""
        self._length = content.rfind(b"\n") + 1
        self.records: list[Record] = []
        for number, line in enumerate(content[: self._length].splitlines(), start=1):
            where = f"{path}, line {number}"
            try:
                record = json.loads(line)
                claimed, previous = record["hash"], record["previous"]
            except (ValueError, KeyError, TypeError) as error:
                raise damaged(f"{where}: not a record of ours ({error})") from error
            if claimed != _hash({name: value for name, value in record.items() if name != "hash"}):
                raise damaged(f"{where}: its content does not match its checksum")
            if previous != self._last_hash():
                raise damaged(f"{where}: it does not follow the line before: lines are missing or swapped")
            check(self.records, record)
            self.records.append(record)

    def append(self, content: Record) -> None:
        """Add a record; when this returns, it is on disk. Raises DiskError where it cannot be written, and what
        `damaged` makes where another process has added one since."""
        record = {"number": len(self.records), **content, "previous": self._last_hash()}
        record["hash"] = _hash(record)
        self._check(self.records, record)
        line = (json.dumps(record) + "\n").encode()
        new = not self._path.exists()
        with self.fence(), disk_errors(self._path):
            locked = self.locked
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644) if locked is None else os.dup(locked)
            try:
                # What follows the last whole record is the beginning of one that was never synced.
                end = append_whole(descriptor, line, self._length)
            except AppendedError as error:
                raise self._damaged(f"{self._path}: {error}") from error
            finally:
                os.close(descriptor)
            if new:
                sync_to_disk(self._path.parent)
        self._length = end
        self.records.append(record)

    def _last_hash(self) -> str:
        return self.records[-1]["hash"] if self.records else _FIRST


def _hash(record: Record) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
