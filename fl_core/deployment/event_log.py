"""What the server says of itself while it runs: one line an event, in JSON, without any client's data.

What libraries say is in the same form. Warnings of one cause come once a second at most, however many a crowd provokes.
"""

import contextlib
import copy
import fcntl
import json
import logging
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from fedlm.fl_core.errors import ConfigurationError

_log = logging.getLogger("fedlm.serving")
_STDERR = "stderr"
_SECONDS_A_CAUSE = 1.0
_FILE_BYTES, _FILES = 1 << 26, 4
_PIPE_BYTES = 1 << 20
_PLACE = re.compile(r"[\w/]+\.(cc|cpp|c|h|py):\d+")


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log something that happened, by a name in snake case and facts: never text, examples, updates or secrets."""
    _log.log(level, name, extra={"fields": fields})


def warn(name: str, **fields: Any) -> None:
    """Log something that an operator may want to look at; see `event`."""
    event(name, logging.WARNING, **fields)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object; of a library's the event is the library's name."""

    def format(self, record: logging.LogRecord) -> str:
        ours = record.name.startswith("fedlm")
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            **({"event": record.getMessage()} if ours else {"event": record.name, "text": record.getMessage()}),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class HoldingBack(logging.Handler):
    """Hands warnings of one cause on once a second at most; a line says how many like it were held back before it.

    A cause is an event's name, or the place in a library that speaks.
    """

    def __init__(self, inner: logging.Handler, clock: Callable[[], float] = time.monotonic):
        super().__init__()
        self._inner, self._clock = inner, clock
        self._told: dict[str, float] = {}
        self._held: dict[str, tuple[logging.LogRecord, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        for cause in [cause for cause in self._held if now - self._told[cause] >= _SECONDS_A_CAUSE]:
            self._tell_held(cause, now)
        if record.levelno < logging.WARNING:
            self._inner.handle(record)
            return
        cause = _cause_of(record)
        if now - self._told.get(cause, -_SECONDS_A_CAUSE) >= _SECONDS_A_CAUSE:
            self._told[cause] = now
            self._inner.handle(record)
        else:
            self._held[cause] = record, self._held.get(cause, (record, 0))[1] + 1

    def close(self) -> None:
        for cause in list(self._held):
            self._tell_held(cause, self._clock())
        self._inner.close()
        super().close()

    def _tell_held(self, cause: str, now: float) -> None:
        record, count = self._held.pop(cause)
        self._told[cause] = now
        record = copy.copy(record)
        record.__dict__["fields"] = getattr(record, "fields", {}) | {"held_back": count - 1}
        self._inner.handle(record)


def _cause_of(record: logging.LogRecord) -> str:
    if hasattr(record, "cause"):
        return str(record.cause)
    return str(record.msg) if record.name.startswith("fedlm") else f"{record.pathname}:{record.lineno}"


class _OwnersFile(RotatingFileHandler):
    """A file that its owner alone can read: it names clients, and numbers that nothing covers."""

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, 0o600)
        os.close(descriptor)
        return super()._open()


@contextlib.contextmanager
def json_log(path: Path | None = None) -> Iterator[None]:
    """Log this process's events, and whatever libraries say, for as long as the context lasts.

    Args:
      path: file to log to, which is put aside when it has 64 MiB, four times; standard error where None.

    Raises:
      ConfigurationError: the file cannot be opened.
    """
    with contextlib.ExitStack() as opened:
        stderr = opened.enter_context(os.fdopen(os.dup(2), "w", encoding="utf-8", buffering=1))
        handler: logging.Handler = logging.StreamHandler(stderr)
        if path is not None:
            try:
                handler = _OwnersFile(path, maxBytes=_FILE_BYTES, backupCount=_FILES, encoding="utf-8")
            except OSError as error:
                raise ConfigurationError(f"{path}: no log can be written there ({error.strerror})") from error
        handler.setFormatter(JsonLines())
        held = HoldingBack(handler)
        opened.callback(held.close)
        opened.enter_context(_all_handled_by(held))
        opened.enter_context(_stderr_logged())
        yield


@contextlib.contextmanager
def _all_handled_by(handler: logging.Handler) -> Iterator[None]:
    """Give a handler, and no other, all that is logged: our own from events on, of others warnings."""
    root, ours, stderr = logging.getLogger(), logging.getLogger("fedlm"), logging.getLogger(_STDERR)
    before, level = root.handlers[:], ours.level
    root.handlers[:] = stderr.handlers[:] = [handler]
    # What another handler, which a library adds, writes to standard error must not come back to it.
    stderr.propagate = False
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers[:], stderr.handlers[:] = before, []
        ours.setLevel(level)


@contextlib.contextmanager
def _stderr_logged() -> Iterator[None]:
    """Log the lines that others write to standard error, as libraries in C++ do."""
    sys.stderr.flush()
    before = os.dup(2)
    receiving, sending = os.pipe()
    # Who holds Python's lock while it writes would wait for ever for the thread below.
    os.set_blocking(sending, False)
    with contextlib.suppress(OSError):
        fcntl.fcntl(sending, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.dup2(sending, 2)
    os.close(sending)
    reader = threading.Thread(target=_log_lines, args=(receiving,), name="stderr", daemon=True)
    reader.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
        # A process that this one has begun may hold the other end.
        reader.join(1.0)


def _log_lines(receiving: int) -> None:
    log = logging.getLogger(_STDERR)
    with os.fdopen(receiving, encoding="utf-8", errors="replace") as lines:
        for line in filter(str.strip, lines):
            place = _PLACE.search(line)
            log.warning("%s", line.rstrip(), extra={"cause": place.group() if place else _STDERR})
