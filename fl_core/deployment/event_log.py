"""What the server says of itself while it runs: one line an event, in JSON, without any client's data.

Libraries' messages have the same form. For each client and cause there is at most one warning a second, however many
a crowd provokes. Held-back lines are counted for each client, and the counts outlast files that are put aside.
"""

import contextlib
import contextvars
import copy
import fcntl
import logging
import os
import re
import stat
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.json_text import json_text

_log = logging.getLogger("fedlm.serving")
_RUN: contextvars.ContextVar[str | None] = contextvars.ContextVar("run", default=None)
_STDERR = "stderr"
_SECONDS_A_CAUSE = 1.0
_FILE_BYTES, _FILES = 1 << 26, 4
_CLIENTS_COUNTED = 1 << 16
_PIPE_BYTES = 1 << 20
_PLACE = re.compile(r"[\w/]+\.(cc|cpp|c|h|py):\d+")


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log something that happened, by a name in snake case and facts: never text, examples, updates or secrets."""
    run = _RUN.get()
    _log.log(level, name, extra={"fields": fields if run is None else {"run": run, **fields}})


@contextlib.contextmanager
def of_run(name: str) -> Iterator[None]:
    """Say in each event of this context, and of the threads and tasks begun in it, of which run it is."""
    token = _RUN.set(name)
    try:
        yield
    finally:
        _RUN.reset(token)


def warn(name: str, **fields: Any) -> None:
    """Log something that an operator may want to look at; see `event`."""
    event(name, logging.WARNING, **fields)


@contextlib.contextmanager
def handled_by(handler: logging.Handler) -> Iterator[None]:
    """Give a handler this process's events too."""
    _log.addHandler(handler)
    try:
        yield
    finally:
        _log.removeHandler(handler)


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
        return json_text(line, default=str)


_Cause = tuple[str, str]


class HoldingBack(logging.Handler):
    """Hands warnings of one cause on once a second at most; a line says how many like it were held back before it.

    A cause is an event's name and the client that the event names, so that no client's lines hide another's; of a
    library it is the place that speaks.
    """

    def __init__(self, inner: logging.Handler, clock: Callable[[], float] = time.monotonic):
        super().__init__()
        self._inner, self._clock = inner, clock
        # When a cause was last told, the oldest first; nothing is kept of those that may be told again.
        self._told: OrderedDict[_Cause, float] = OrderedDict()
        self._held: dict[_Cause, tuple[logging.LogRecord, int]] = {}
        self._counts: OrderedDict[str, int] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        while self._told and now - next(iter(self._told.values())) >= _SECONDS_A_CAUSE:
            cause, _ = self._told.popitem(last=False)
            if cause in self._held:
                self._tell_held(cause, now)
        if record.levelno < logging.WARNING:
            self._inner.handle(record)
            return
        cause = _cause_of(record)
        self._count(cause[1])
        if cause not in self._told:
            self._told[cause] = now
            self._inner.handle(record)
        else:
            self._held[cause] = record, self._held.get(cause, (record, 0))[1] + 1

    def close(self) -> None:
        for cause in list(self._held):
            self._tell_held(cause, self._clock())
        self.tell_counts()
        self._inner.close()
        super().close()

    def tell_counts(self) -> None:
        """Say how many warnings there were of each client, of those that were warned of last."""
        if self._counts:
            record = _log.makeRecord(_log.name, logging.INFO, __file__, 0, "warnings_of_clients", (), None)
            record.__dict__["fields"] = {"counts": dict(self._counts)}
            self._inner.handle(record)

    def _count(self, client: str) -> None:
        if client:
            self._counts[client] = self._counts.pop(client, 0) + 1
            if len(self._counts) > _CLIENTS_COUNTED:
                self._counts.popitem(last=False)

    def _tell_held(self, cause: _Cause, now: float) -> None:
        record, count = self._held.pop(cause)
        self._told[cause] = now
        self._told.move_to_end(cause)
        record = copy.copy(record)
        record.__dict__["fields"] = getattr(record, "fields", {}) | {"held_back": count - 1}
        self._inner.handle(record)


def _cause_of(record: logging.LogRecord) -> _Cause:
    client = str(getattr(record, "fields", {}).get("client", ""))
    if hasattr(record, "cause"):
        return str(record.cause), client
    return (str(record.msg) if record.name.startswith("fedlm") else f"{record.pathname}:{record.lineno}"), client


class _OwnersFile(RotatingFileHandler):
    """A file that its owner alone can read: it names clients, and numbers that nothing covers.

    Attributes:
      begin: writes what a new file begins with, once one was put aside.
    """

    begin: Callable[[], None] = staticmethod(lambda: None)

    def doRollover(self) -> None:  # noqa: N802
        super().doRollover()
        self.begin()

    def _open(self) -> TextIOWrapper:
        open_owners_file(Path(self.baseFilename)).close()
        return super()._open()


def open_owners_file(path: Path) -> TextIOWrapper:
    """Open a file to write at its end; its owner alone can read it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "a", encoding="utf-8")


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
        if isinstance(handler, _OwnersFile):
            handler.begin = held.tell_counts
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
