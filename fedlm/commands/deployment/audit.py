"""`fedlm audit`: who asked a server for what, exported and verified."""

import re
from dataclasses import dataclass
from pathlib import Path

import tyro

from fedlm.command_line.command import Command, Group
from fedlm.command_line.options import read_options
from fedlm.commands.deployment.operator_calls import OperatorCaller, OperatorOptions
from fedlm.fl_core.atomic_files import disk_errors
from fedlm.fl_core.deployment.security.audit_log import BrokenChainError, Chain, Head, read_chain
from fedlm.fl_core.errors import ConfigurationError, setting

_BROKEN = 1
_HEAD = re.compile(r"(\d{1,18}):([0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True)
class VerifyCommand:
    """Verify an audit log, offline: say where its chain breaks, or how many lines it has, and its head.

    The status is 1 where the chain breaks. Keep the head elsewhere: given again, it shows that no line up to there was
    changed or removed since.
    """

    file: tyro.conf.Positional[Path]
    """The audit log: `audit.jsonl` in the folder of a server, or what `fedlm audit export` wrote."""
    head: str | None = None
    """A head that it had once, LINE:HASH, as this command printed it or the server's log has it."""


@dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """Bring the audit log of a server into a file here, and verify it.

    If the file is there already, only later lines are added. The status is 1 where they do not continue its chain:
    the server's log is not the one that it was.
    """

    file: tyro.conf.Positional[Path]
    """Where the lines go."""
    of: OperatorOptions


@dataclass(frozen=True, kw_only=True)
class ReceiptsCommand:
    """Compare receipts of devices, offline: say whether their server showed all of them one history of its log.

    The status is 1 if it did not, and 2 if the receipts do not tell, or one device alone says so.
    """

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Files that `fedlm client --receipts` wrote."""


def _receipts(argv: list[str]) -> int:
    command = read_options(ReceiptsCommand, argv, "fedlm audit receipts")
    from fedlm.fedlm_client.transparency.receipts import find_forks, not_compared, read_receipts

    receipts = {str(path): read_receipts(path) for path in command.files}
    forks = find_forks(receipts)
    if forks.proven:
        print("\n".join(forks.proven))
        return _BROKEN
    if forks.told:
        raise ConfigurationError(f"{'; '.join(forks.told)}. One device can make this up: ask its owner")
    if pairs := not_compared(receipts):
        raise ConfigurationError(
            f"no proof says that {' and '.join(pairs[0])} are of one history; put one beside the other, and start the "
            "other's client with that folder as --receipts, so that it asks the server"
        )
    print(f"{len(receipts)} devices were shown one history")
    return 0


def _verify(argv: list[str]) -> int:
    command = read_options(VerifyCommand, argv, "fedlm audit verify")
    known = None
    if command.head is not None:
        if (found := _HEAD.fullmatch(command.head)) is None:
            raise ConfigurationError(f"{setting('head')} is {command.head!r}, but must be LINE:HASH, as printed before")
        known = Head(int(found[1]), found[2])
    chain = _verified(command.file, known)
    return _BROKEN if chain is None else _say(command.file, chain)


def _export(argv: list[str]) -> int:
    command = read_options(ExportCommand, argv, "fedlm audit export")
    file, end = command.file, 0
    if file.exists():
        if (before := _verified(file)) is None:
            return _BROKEN
        end = before.end
    lines = _later_lines(OperatorCaller(command.of), end)
    if lines is None:
        print(f"{file}: has lines that are missing in the server's log")
        return _BROKEN
    with disk_errors(file):
        _put(file, end, lines)
        if (chain := _verified(file)) is not None:
            return _say(file, chain)
        _put(file, end, b"")
    print("the file is as it was before")
    return _BROKEN


def _later_lines(caller: OperatorCaller, offset: int) -> bytes | None:
    """Ask for all lines from a byte on; None where the server has not so many bytes."""
    lines, size = b"", None
    while size is None or offset < size:
        found = caller.get(f"/audit/{offset}")
        # Asking adds lines too.
        size = found["size"] if size is None else size
        if found["offset"] <= offset:
            break
        new = found["text"].encode("ascii", "replace")
        if found["offset"] != offset + len(new):
            raise ConfigurationError(
                f"the server sent {len(new)} bytes of its audit log and says that they are {found['offset'] - offset}; "
                "nothing was written"
            )
        lines, offset = lines + new, found["offset"]
    return lines if offset <= size else None


def _put(file: Path, end: int, lines: bytes) -> None:
    with file.open("r+b" if file.exists() else "wb") as out:
        out.truncate(end)
        out.seek(end)
        out.write(lines)


def _verified(file: Path, known: Head | None = None) -> Chain | None:
    """Read a whole chain; None, once it was said where, if it is broken."""
    try:
        return read_chain(file, known)
    except BrokenChainError as error:
        print(error)
        return None
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read ({error.strerror}); give an audit log") from error


def _say(file: Path, chain: Chain) -> int:
    print(f"{file}: {chain.head.line} lines, none of them changed; head {chain.head}")
    if chain.unfinished:
        print(f"{len(chain.unfinished)} bytes after them are no whole line: the server was killed or writes them now")
    return 0


COMMAND = Group(
    "fedlm audit",
    "action",
    "Who asked a server (`fedlm server`) for what, and whether it told all devices the same.",
    {
        "verify": ("verify an audit log", Command(VerifyCommand, _verify)),
        "export": ("bring the audit log of a server here", Command(ExportCommand, _export)),
        "receipts": ("compare what devices saw of a server's log", Command(ReceiptsCommand, _receipts)),
    },
    """For example:

  fedlm audit export audit.jsonl --keys keys --token-file auditor.token
  fedlm audit verify audit.jsonl
  fedlm audit receipts ann.receipts.json ben.receipts.json""",
)
