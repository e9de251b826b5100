"""What devices show each other of their server's log, and whether it is one history.

A server could show each device a history of its own, and each would hold. Devices that exchange receipts find that.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ClientError, LogError, printable
from ..files import keep_own
from .heads import Head
from .merkle import EMPTY_ROOT

FORMAT = "fedlm receipts 1"
_SUFFIX = ".receipts.json"


class Receipts:
    """A file for one device's receipts, or a folder in which each device has one."""

    def __init__(self, place: Path, name: str):
        """Name a file, or a folder that is there and the device's name."""
        self._folder = place if place.is_dir() else None
        self._own = place / f"{name}{_SUFFIX}" if self._folder else place
        self._passed_over: set[Path] = set()
        self._shown = ""

    def write(self, kept: Mapping[str, Any]) -> None:
        """Show what this device keeps of the log. Raises ClientError where it cannot be written."""
        content = json.dumps({"format": FORMAT, "log": kept}) + "\n"
        # Every check-in comes here, and seldom has anything new.
        if content != self._shown or not self._own.exists():
            keep_own(self._own, content)
            self._shown = content

    def others(self) -> list[tuple[Path, Head]]:
        """Read the latest head of each other device of the folder, with its file; a broken file stops no other one."""
        heads = []
        for path in [] if self._folder is None else sorted(self._folder.glob(f"*{_SUFFIX}")):
            if path == self._own:
                continue
            try:
                kept = read_receipts(path)
            except ClientError as error:
                if path not in self._passed_over:
                    print(f"passed over: {printable(str(error))}", file=sys.stderr)
                self._passed_over.add(path)
                continue
            if "head" in kept:
                heads.append((path, Head.of_json(kept["head"])))
        return heads


def read_receipts(path: Path) -> dict[str, Any]:
    """Read what a device shows, with every signature checked. Raises ClientError where it is none of ours."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r}, not {FORMAT!r}")
        for head in _heads(found["log"]):
            head.checked()
        _proofs(found["log"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, LogError) as error:
        raise ClientError(f"{path}: not receipts of a device ({error}); export them again with --receipts") from error
    return dict(found["log"])


class Proof(NamedTuple):
    """What a device was shown of how a log has grown from one head to another."""

    small: Head
    large: Head
    root: bytes | None  # that the log of the large head had at the size of the small one; None where none was proved


class Forks(NamedTuple):
    """What no log with one history shows."""

    proven: list[str]  # by signatures of a log that several devices saw, or all
    told: list[str]  # by one device, which can make it up


def find_forks(receipts: Mapping[str, Mapping[str, Any]]) -> Forks:
    """Find, in receipts by their names, what no log with one history shows; empty where there is nothing."""
    found = Forks([], [])
    roots: dict[tuple[bytes, int], dict[bytes, str]] = {}
    seen: dict[bytes, set[str]] = {}
    for name, kept in receipts.items():
        for proof in _proofs(kept):
            if proof.large.size < proof.small.size:
                found.told.append(f"{name}: the log went back from {proof.small.size} leaves to {proof.large.size}")
            elif proof.root is None:
                found.told.append(f"{name}: no proof holds from {proof.small.size} leaves to {proof.large.size}")
            else:
                roots.setdefault((proof.large.key, proof.small.size), {}).setdefault(proof.root, name)
        for head in _heads(kept):
            roots.setdefault((head.key, head.size), {}).setdefault(head.root, name)
            seen.setdefault(head.key, set()).add(name)
    for (key, size), names in roots.items():
        if len(names) > 1:
            where = found.proven if len(seen) == 1 or len(seen[key]) > 1 else found.told
            where.append(f"two histories of {size} leaves: {' and '.join(dict.fromkeys(names.values()))}")
    if len(seen) > 1:
        found.told.append(f"several logs: {', '.join(receipts)} were not shown the same one")
    return found


def not_compared(receipts: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Find pairs of receipts of which no proof says that their latest heads are of one history."""
    grown: dict[Head, set[Head]] = {}
    for kept in receipts.values():
        for proof in _proofs(kept):
            if proof.root == proof.small.root:
                grown.setdefault(proof.small, set()).add(proof.large)
    latest = [(name, _later(Head.of_json(kept["head"]), grown)) for name, kept in receipts.items() if "head" in kept]
    pairs = [(one, other) for place, one in enumerate(latest) for other in latest[place + 1 :]]
    return [(one[0], other[0]) for one, other in pairs if not one[1] & other[1]]


def _later(head: Head, grown: Mapping[Head, set[Head]]) -> set[Head]:
    reached, open_ = {head}, [head]
    while open_:
        new = grown.get(open_.pop(), set()) - reached
        reached |= new
        open_ += new
    return reached


def _heads(kept: Mapping[str, Any]) -> list[Head]:
    shown: Sequence[Any] = [kept[one] for one in ("head",) if one in kept]
    shown = [*shown, *(one["head"] for one in kept.get("runs", {}).values())]
    shown = [*shown, *(one[end] for one in kept.get("proofs", []) for end in ("small", "large"))]
    return [Head.of_json(one) for one in shown]


def _proofs(kept: Mapping[str, Any]) -> list[Proof]:
    found = []
    for one in kept.get("proofs", []):
        small, large = Head.of_json(one["small"]), Head.of_json(one["large"])
        root, path = bytes.fromhex(one["root"]), [bytes.fromhex(step) for step in one["path"]]
        found.append(Proof(small, large, large.root_at(small.size, root or EMPTY_ROOT, path)))
    return found
