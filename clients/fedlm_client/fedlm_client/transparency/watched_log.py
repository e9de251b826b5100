"""Holds a server to one history: what it has logged, it never takes back, and it tells no device what is not there.

A device keeps the latest head that it saw. Where the log grew, the server proves that it only grew. Before a device
trains, it sees in the log what it is asked to do, and what is stated of its privacy.
"""

import hashlib
import sys
from pathlib import Path
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from .. import messages_pb2 as messages
from ..errors import LogError, UnknownArtifactError
from ..record_file import RecordFile
from .heads import Head
from .logged_plans import plan_of
from .receipts import Receipts

PART = "log"
"""Name of this part of a record."""

_KEPT_PROOFS, _KEPT_RUNS, _MOST_OTHERS = 64, 50, 15
_LONGEST_LEAF = 64 << 10
_NO_LOG = "the server shows no log of what it tells devices; it needs an update"
_ADVICE = "Keep the record, which shows it. If its owner agrees, start the client with --accept-plan"
Shown = messages.CheckInReply | messages.LogReply


class LogChannel(Protocol):
    """Of a connection to a server, what asks for its log."""

    async def log(self, request: messages.LogRequest) -> messages.LogReply:
        """See `fedlm_client.training.Channel.log`."""
        ...


class WatchedLog:
    """What a device knows of its server's log."""

    def __init__(self, record: RecordFile, accept: bool = False, receipts: Receipts | None = None):
        """Go on with what a record has of it.

        Args:
          record: of the device.
          accept: take the log that the server shows next in place of the one that it showed before: the owner's word,
            for once.
          receipts: where this device shows what it saw, and sees what others saw; None where nowhere.
        """
        self._record, self._accept, self._receipts = record, accept, receipts
        self._others: list[tuple[Path, Head]] = []

    def ask(self) -> list[int]:
        """Give the sizes of which the server is to prove that its log has grown from there; this device's own first,
        then of other devices. Raises ClientError where receipts cannot be written."""
        kept = self._read()
        head = _head_in(kept)
        if self._receipts is not None:
            self._receipts.write(kept)
            compared = [one["small"] for one in kept.get("proofs", [])]
            others = [one for one in self._receipts.others() if one[1] != head and one[1].as_json() not in compared]
            self._others = others[:_MOST_OTHERS]
        return [0 if head is None else head.size, *(one.size for _, one in self._others)]

    def see(self, shown: Shown) -> None:
        """Take the head that a server shows.

        Raises:
          LogError: it is of another log, or does not follow the latest one; or there is none, where a device is asked
            to train.
        """
        if not shown.HasField("tree_head"):
            if isinstance(shown, messages.CheckInReply) and not shown.HasField("selected"):
                return
            raise LogError(_NO_LOG)
        head, kept = Head.read(shown.tree_head), self._read()
        known = _head_in(kept)
        try:
            if known is not None and known != head:
                self._check(kept, known, head, shown)
        except LogError:
            # What shows it stays.
            self._write(kept)
            if not self._accept:
                raise
            kept = {}
        try:
            self._compare(kept, head, shown)
        except LogError:
            self._write(kept)
            if not self._accept:
                raise
        if head.size:
            # An empty log is no other history yet, and leaves the owner's word for what follows.
            self._accept = False
            if known != head or self._others:
                self._write(kept | {"head": head.as_json()})
        self._others = []

    def _compare(self, kept: dict[str, Any], head: Head, shown: Shown) -> None:
        """Refuse a head that does not follow one that another device shows."""
        for path, before in self._others:
            if before.key != head.key:
                raise LogError(
                    f"{path}: whoever wrote it saw another log than this server shows, or made one up. Ask its owner, "
                    "or remove the file"
                )
            try:
                if before != head:
                    self._check(kept, before, head, shown)
            except LogError as error:
                raise LogError(f"compared with {path}: {error}") from error

    def _check(self, kept: dict[str, Any], known: Head, head: Head, shown: Shown) -> None:
        """Refuse a head that does not follow a known one; put what shows whether it does into `kept`."""
        if known.key != head.key:
            raise LogError(f"the server shows another log than the one that it showed before. {_ADVICE}")
        if head.size < known.size:
            _keep_proof(kept, known, head, messages.ConsistencyProof())
            raise LogError(
                f"the server's log went back: it has {head.size} leaves, but had {known.size} before. {_ADVICE}"
            )
        proofs = {one.size: one for one in shown.consistency} | {
            head.size: messages.ConsistencyProof(size=head.size, root=head.root)
        }
        proof = proofs.get(known.size, messages.ConsistencyProof())
        root = head.root_at(known.size, proof.root, proof.path)
        if root is None:
            raise LogError(
                f"the server does not prove that its log of {head.size} leaves has grown from the one of {known.size} "
                f"that it showed before. {_ADVICE}"
            )
        _keep_proof(kept, known, head, proof)
        if root != known.root:
            raise LogError(
                f"the server shows two histories: its log of {head.size} leaves has others among the first "
                f"{known.size} than it showed before. {_ADVICE}"
            )

    async def confirm(self, channel: LogChannel, asked: messages.RoundConfiguration) -> None:
        """See to it that what a device is asked to do is in the log, and a statement of privacy too.

        Raises:
          LogError: it is not.
        """
        plan, kept = plan_of(asked), self._read()
        digest = hashlib.sha256(plan.SerializeToString(deterministic=True)).hexdigest()
        if kept.get("runs", {}).get(asked.run, {}).get("asked") == digest:
            return
        try:
            shown = await channel.log(messages.LogRequest(run=asked.run, log_sizes=self.ask()))
        except UnknownArtifactError as error:
            raise LogError("the server keeps no log of what it tells devices; it needs an update") from error
        self.see(shown)
        kept = self._read()
        head = _head_in(kept)
        if head is None:
            raise LogError(_NO_LOG)
        of_run = [(one, entry) for one in shown.leaves if _is_of(entry := _entry_in(head, one), asked)]
        plans = [one for one, entry in of_run if entry.WhichOneof("kind") == "plan" and entry.plan == plan]
        if not plans:
            raise LogError(f"the server's log does not have what it asks for in its run {asked.run!r}. {_ADVICE}")
        statements = [one for one, entry in of_run if entry.WhichOneof("kind") == "statement"]
        if not statements:
            raise LogError(f"the server's log has no statement of privacy of its run {asked.run!r}. {_ADVICE}")
        # What else a server shows is not kept: it could fill the device.
        leaves = [_leaf_as_json(one) for one in (plans[0], statements[-1])]
        told = {"asked": digest, "head": head.as_json(), "leaves": leaves}
        runs = {name: one for name, one in kept.get("runs", {}).items() if name != asked.run} | {asked.run: told}
        kept["runs"] = dict(list(runs.items())[-_KEPT_RUNS:])
        self._write(kept)

    def _write(self, kept: dict[str, Any]) -> None:
        self._record.write(PART, kept)
        if self._receipts is not None:
            self._receipts.write(kept)

    def _read(self) -> dict[str, Any]:
        return self._record.read(PART, _head_in)


def _head_in(kept: dict[str, Any]) -> Head | None:
    return Head.of_json(kept["head"]) if "head" in kept else None


def _is_of(entry: messages.LogEntry, asked: messages.RoundConfiguration) -> bool:
    return (entry.population, entry.run) == (asked.population, asked.run)


def _entry_in(head: Head, shown: messages.InclusionProof) -> messages.LogEntry:
    if len(shown.leaf) > _LONGEST_LEAF:
        raise LogError(f"the leaf {shown.index} of the server's log has {len(shown.leaf)} bytes, over {_LONGEST_LEAF}")
    if not head.has(shown.leaf, shown.index, shown.path):
        raise LogError(f"the server tells of a leaf {shown.index} which is not in its log. {_ADVICE}")
    try:
        return messages.LogEntry.FromString(shown.leaf)
    except DecodeError as error:
        raise LogError(f"the leaf {shown.index} of the server's log is no entry of ours ({error})") from error


def _keep_proof(kept: dict[str, Any], small: Head, large: Head, proof: messages.ConsistencyProof) -> None:
    one = {
        "small": small.as_json(),
        "large": large.as_json(),
        "root": proof.root.hex(),
        "path": [step.hex() for step in proof.path],
    }
    kept["proofs"] = [*kept.get("proofs", []), one][-_KEPT_PROOFS:]


def _leaf_as_json(shown: messages.InclusionProof) -> dict[str, Any]:
    # Virtual devices of one process share it.
    leaf = sys.intern(shown.leaf.hex())
    return {"index": shown.index, "leaf": leaf, "path": [step.hex() for step in shown.path]}
