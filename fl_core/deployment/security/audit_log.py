"""Who asked a server for what: a file of one JSON object a line, to which lines are only ever added.

Each line ends in a hash, that of the hash before it and of the line up to there (SHA-256). So whoever changes, adds or
removes a line breaks the chain, unless all later hashes are made anew. Whoever keeps the number and the hash of a line
elsewhere (the head) notices that too, and also that lines at the end are missing.
"""

import contextlib
import hashlib
import os
import re
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from fedlm.fedlm_client.files import sync_to_disk
from fedlm.fl_core.atomic_files import Fence, append_whole, disk_errors
from fedlm.fl_core.deployment.event_log import event
from fedlm.fl_core.errors import UserError
from fedlm.fl_core.json_text import json_text

_ENDING = re.compile(rb', "hash": "([0-9a-f]{64})"\}\n')
_BYTES_AT_ONCE, _LONGEST_LINE, _CUT_TEXT = 1 << 16, 1 << 14, 100
NO_LINES = "0" * 64


class BrokenChainError(UserError):
    """A line of an audit log is not as it was written."""


class Head(NamedTuple):
    """Where an audit log ends; it tells all lines up to there."""

    line: int  # how many lines there are
    digest: str  # the hash of the last one, in hex

    def __str__(self) -> str:
        return f"{self.line}:{self.digest}"


class Chain(NamedTuple):
    """A whole chain of lines."""

    head: Head
    end: int  # bytes of its lines
    unfinished: bytes  # what a crash left of a line behind them


def read_chain(path: Path, known: Head | None = None) -> Chain:
    """Verify an audit log.

    Args:
      path: the file.
      known: a head that it had once.

    Raises:
      BrokenChainError: a line is not as it was written, or the lines of the known head are not its own.
      OSError: it cannot be read.
    """
    head, end, line = Head(0, NO_LINES), 0, b""
    with path.open("rb") as file:
        while (line := file.readline(_LONGEST_LINE)).endswith(b"\n"):
            ending = _ENDING.search(line, len(line) - 80)
            digest = _digest(head.digest, line[: ending.start()]) if ending else ""
            head, end = Head(head.line + 1, digest), end + len(line)
            if ending is None or ending[1].decode() != digest:
                raise BrokenChainError(f"{path}: the chain breaks at line {head.line}: it is not as it was written")
            if known is not None and head.line == known.line and digest != known.digest:
                raise BrokenChainError(
                    f"{path}: the chain breaks at line {head.line} or before: the known head differs"
                )
    if len(line) == _LONGEST_LINE:
        raise BrokenChainError(f"{path}: the chain breaks at line {head.line + 1}: it is too long")
    if known is not None and head.line < known.line:
        raise BrokenChainError(
            f"{path}: the chain breaks at line {head.line + 1}: lines up to {known.line} are missing"
        )
    return Chain(head, end, line)


class AuditLog:
    """Adds lines to an audit log. Any thread may; one process alone."""

    def __init__(self, path: Path, fence: Fence = contextlib.nullcontext):
        """Open the file, which only its owner can read, and verify it. What a crash left of a line makes place for one
        that says so. Lines are added within the fence.

        Raises:
          BrokenChainError: a line is not as it was written.
          DiskError: the file cannot be read or written.
        """
        self._path, self._lock, self._fence = path, threading.Lock(), fence
        with disk_errors(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            sync_to_disk(path.parent)
            self.head, self._end, unfinished = read_chain(path)
        if unfinished:
            self.record(call="log.repair", outcome="done", why=f"a crash left {len(unfinished)} bytes of a line")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def record(self, **facts: Any) -> None:
        """Add a line, with the time, and sync it. Texts are cut where the line would be too long to be read again.

        Raises:
          DiskError: it cannot be written, and is not there.
        """
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03}Z"
        with self._lock:
            numbered = {"line": self.head.line + 1, "time": stamp}
            line = json_text(numbered | facts)[:-1].encode()
            if len(line) > _LONGEST_LINE - 100:  # its hash follows
                line = json_text(numbered | with_short_texts(facts, _CUT_TEXT))[:-1].encode()
            digest = _digest(self.head.digest, line)
            with self._fence(), disk_errors(self._path):
                end = append_whole(self._file, line + f', "hash": "{digest}"}}\n'.encode(), self._end)
            self._end, self.head = end, Head(self.head.line + 1, digest)
            # The server's log often leaves the machine: there the head is kept elsewhere.
            event("audited", head=str(self.head))

    def read(self, offset: int) -> dict[str, Any]:
        """Read lines from a byte on: `text`, the `offset` of what follows it, and where the file ends now, `size`."""
        size = self._end
        found = os.pread(self._file, max(0, min(size - offset, _BYTES_AT_ONCE)), offset)
        found = found[: found.rfind(b"\n") + 1]
        return {"text": found.decode("ascii", "replace"), "offset": offset + len(found), "size": size}


def with_short_texts(facts: dict[str, Any], most: int) -> dict[str, Any]:
    """Cut the texts among facts to so many characters."""
    return {name: fact[:most] if isinstance(fact, str) else fact for name, fact in facts.items()}


def _digest(before: str, line: bytes) -> str:
    return hashlib.sha256(before.encode() + line).hexdigest()
