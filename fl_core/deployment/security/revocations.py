"""The list of certificates that no longer count, in one file that a server reads and the authority writes.

A line begins with the name of a revoked client, or with `_` and the serial number, in hex, of a replaced certificate.
Then comes the day after which no certificate of it is valid. Lines whose day is over are left out.
"""

import contextlib
import datetime
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from cryptography import x509

from fedlm.fedlm_client.errors import KeysError
from fedlm.fl_core.atomic_files import write_atomically

REVOKED_FOLDER, _LIST = "revoked", "list"
"""In the folder of keys: the folder of the list, which alone is in it, so that it can be mounted by itself."""

_LOCK = ".revoked.lock"


class Revocations:
    """The list of a folder of keys, as it is now whenever it is asked."""

    def __init__(self, keys: Path):
        """Read the list; raises `KeysError` where there is none, or it is damaged."""
        self._path = keys / REVOKED_FOLDER / _LIST
        self._version: tuple[int, int, int] | None = None
        self._entries: dict[str, datetime.date] = {}
        self.entries()

    def entries(self) -> Mapping[str, datetime.date]:
        """Give the last day of each entry, by name or `serial_entry`; raises `KeysError` where it cannot be read."""
        try:
            status = self._path.stat()
            version = (status.st_mtime_ns, status.st_ino, status.st_size)
            if version != self._version:
                self._entries = _parsed(self._path.read_text(encoding="ascii"), self._path)
                self._version = version
        except (OSError, UnicodeDecodeError) as error:
            raise KeysError(
                f"{self._path}: the list of revoked clients cannot be read ({error}); `fedlm keys ca` makes one"
            ) from error
        return self._entries


def serial_entry(serial: int) -> str:
    """Name a certificate in the list; no client can have that name."""
    return f"_{serial:x}"


def last_day(certificate: x509.Certificate) -> datetime.date:
    """Say on which day, in UTC, a certificate is valid for the last time."""
    return certificate.not_valid_after_utc.date()


def is_over(day: datetime.date) -> bool:
    """Say whether a day is over everywhere."""
    return day < _today() - datetime.timedelta(days=1)


def begin_list(keys: Path) -> None:
    """Make the list of a folder of keys, where there is none."""
    (keys / REVOKED_FOLDER).mkdir(exist_ok=True, mode=0o700)
    with _locked(keys):
        if not (keys / REVOKED_FOLDER / _LIST).exists():
            write_atomically(keys / REVOKED_FOLDER / _LIST, "", private=True)


def revoke(keys: Path, entries: Mapping[str, datetime.date]) -> None:
    """Put entries on the list, and take off it what is over; raises `KeysError` where it cannot be read."""
    with _locked(keys):
        before = Revocations(keys).entries()
        if all(before.get(entry) == day for entry, day in entries.items()):
            return
        kept = {entry: day for entry, day in sorted({**before, **entries}.items()) if not is_over(day)}
        lines = "".join(f"{entry} {day}\n" for entry, day in kept.items())
        write_atomically(keys / REVOKED_FOLDER / _LIST, lines, private=True)


@contextlib.contextmanager
def _locked(keys: Path) -> Iterator[None]:
    """Let nobody else change the list meanwhile, whichever process."""
    descriptor = os.open(keys / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _parsed(text: str, path: Path) -> dict[str, datetime.date]:
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry, _, day = line.partition(" ")
        try:
            found[entry] = datetime.date.fromisoformat(day)
        except ValueError:
            raise KeysError(
                f"{path}, line {number}: {line[:100]!r} must be a name or serial number and a day, such as "
                "'alice 2027-01-31'; copy the list of the authority again"
            ) from None
    return found


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()
