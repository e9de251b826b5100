"""The append-only record of every noised release of a run, on disk before anybody can see the release.

One JSON object a line. Each carries the SHA-256 of its content and that of the line before, and is synced before the
next thing happens, so that a line which is changed, missing, or from another ledger is found. A last line without its
end was never synced, and nothing has followed from it; it is dropped.

Kinds of records, in the order in which they may follow each other:

- `plan`: the first; the run's plan, delta, and commitment to the secret of its noise.
- `seen`: whoever runs the server is about to learn the sum of the round before `rounds`, with noise that clients added
  and nobody can draw again. From here on it counts as released, whatever becomes of it.
- `intent`: all rounds before `rounds` are about to be written to a checkpoint with this digest. From here on they count
  as released.
- `release`: that checkpoint is on disk.
- `restart`: what was intended, or seen, could not be found after an interruption. The rounds are over, and noise begins
  anew with another secret.
- `copied`: the last; this is a copy of the ledger, made while the run could go on, so that all planned rounds count as
  released.
- `chosen`: the last; the run is the outcome of the private selection that it is a trial of.
"""

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

from fedlm.fl_core.atomic_files import Fence
from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.noise.noise_source import NOISE_FORMAT
from fedlm.fl_core.privacy.origins.ancestry import TUNING_FIELD
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.record.record_chain import RecordChain

_FOLLOWS = {
    "plan": ("",),
    "seen": ("plan", "release", "restart"),
    "intent": ("plan", "release", "restart", "seen"),
    "release": ("intent",),
    "restart": ("intent", "seen"),
    "copied": ("plan", "release", "restart", "intent", "seen", "chosen"),
    "chosen": ("release", "restart"),
}


class LedgerError(CheckpointError):
    """A ledger is damaged, or does not fit what lies beside it."""


class Release(NamedTuple):
    """A checkpoint that the ledger names.

    Attributes:
      rounds: how many rounds it has seen.
      digest: of its content.
      parameters: digest of the model's parameters alone.
    """

    rounds: int
    digest: str
    parameters: str = ""

    def as_record(self) -> dict[str, Any]:
        """Make its fields in a ledger's record."""
        return self._asdict()

    @staticmethod
    def of_record(record: dict[str, Any]) -> "Release":
        """Undo `as_record`, of a whole record."""
        return Release(record["rounds"], record["digest"], record["parameters"])


class PrivacyLedger:
    """The ledger of one run. Reading needs no lock; who appends holds the run's lock."""

    def __init__(self, path: Path, fence: Fence = contextlib.nullcontext):
        """Read a ledger, which need not exist yet; records are added within the fence.

        Raises:
          LedgerError: a record is damaged or out of order.
        """
        self._path = path
        self._chain = RecordChain(path, lambda before, record: _check_order(path, before, record), _damaged)
        self._chain.fence = fence
        self.records = self._chain.records

    def begin(self, plan: PrivacyPlan, delta: float, commitment: str, about: dict[str, Any]) -> None:
        """Write the first record: plan, commitment to the secret, and JSON-able facts that tell whose ledger it is."""
        self._append(
            {
                "kind": "plan",
                "plan": plan.as_json(),
                "delta": delta,
                "secret": commitment,
                "noise": NOISE_FORMAT,
                "about": about,
            }
        )

    def see(self, rounds: int) -> None:
        """Record that the last of so many rounds counts as released; when this returns, the record is on disk."""
        self._append({"kind": "seen", "rounds": rounds})

    def intend(self, release: Release) -> None:
        """Record that a checkpoint is about to be written; when this returns, the record is on disk."""
        self._append({"kind": "intent", **release.as_record()})

    def confirm(self) -> None:
        """Record that the checkpoint of the open intent is on disk."""
        self._append({"kind": "release", **Release.of_record(self.records[-1]).as_record()})

    def restart(self, commitment: str) -> None:
        """Record that the checkpoint of the open intent, or of the round that was seen, is lost, and commit to the
        secret from here on."""
        self._append({"kind": "restart", "rounds": self.records[-1]["rounds"], "secret": commitment})

    def end_copy(self, moment: float) -> None:
        """Record that this copy was made at a moment in seconds since 1970, and that what was released since is not
        known; one copy of another is as it was."""
        if not self.is_copy:
            self._append({"kind": "copied", "rounds": self.plan.rounds, "copied": moment})

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy of a ledger that may have gone on, so that its run does not."""
        return bool(self.records) and self.records[-1]["kind"] == "copied"

    def choose(self) -> None:
        """Record that the run, a trial of a private selection, is its outcome."""
        if not self.chosen:
            self._append({"kind": "chosen"})

    @property
    def plan(self) -> PrivacyPlan:
        """The plan of the run."""
        return PrivacyPlan.from_json(self._head["plan"])

    @property
    def delta(self) -> float:
        """At which epsilon is stated."""
        return float(self._head["delta"])

    @property
    def noise_format(self) -> str:
        """How the run's noise follows from its secret."""
        return str(self._head["noise"])

    @property
    def about(self) -> dict[str, Any]:
        """What `begin` was told of the run, and whether it was chosen since."""
        about = dict(self._head["about"])
        if self.chosen:
            about[TUNING_FIELD] = {**about[TUNING_FIELD], "chosen": True}
        return about

    @property
    def chosen(self) -> bool:
        """Whether it is the outcome of the private selection that it is a trial of."""
        return any(record["kind"] == "chosen" for record in self.records[-2:])

    @property
    def _head(self) -> dict[str, Any]:
        if not self.records:
            raise LedgerError(f"{self._path}: there is no ledger, or no whole record in it")
        return self.records[0]

    @property
    def open_intent(self) -> Release | None:
        """The checkpoint that was about to be written when the ledger ends."""
        last: dict[str, Any] = self.records[-1] if self.records else {"kind": ""}
        return Release.of_record(last) if last["kind"] == "intent" else None

    @property
    def open_seen(self) -> bool:
        """Whether the ledger ends with a round that was seen, and of which nothing else is known."""
        return bool(self.records) and self.records[-1]["kind"] == "seen"

    @property
    def releases(self) -> list[Release]:
        """All checkpoints that were, or may have been, released, in their order."""
        return [Release.of_record(record) for record in self.records if record["kind"] == "intent"]

    @property
    def last_release(self) -> Release | None:
        """The newest checkpoint that is known to be on disk."""
        found = [record for record in self.records if record["kind"] == "release"]
        return Release.of_record(found[-1]) if found else None

    @property
    def hashes(self) -> list[str]:
        """The hash of every record, by which one ledger is known to be the beginning of another."""
        return [record["hash"] for record in self.records]

    @property
    def commitments(self) -> list[str]:
        """To the secrets of the noise, of each generation."""
        return [record["secret"] for record in self.records if "secret" in record]

    @property
    def generations(self) -> list[tuple[int, int]]:
        """From which round to before which each secret's noise may have been seen."""
        starts = [record.get("rounds", 0) for record in self.records if "secret" in record]
        seen = max((record.get("rounds", 0) for record in self.records), default=0)
        return list(zip(starts, [*starts[1:], seen], strict=True))

    def _append(self, content: dict[str, Any]) -> None:
        self._chain.append(content)


_ADVICE = "without a whole ledger nothing can be promised of this run: put the file back as it was, or begin a new run"


def cut_off(path: Path, known: int, newest: int) -> LedgerError:
    """Make the error that says that a ledger ends before the newest checkpoint."""
    return LedgerError(
        f"{path}: it ends with {known} rounds, but there is a checkpoint of {newest}: the ledger was cut off, or is an "
        "older copy; put back the one that belongs to the checkpoints"
    )


def _damaged(found: str) -> LedgerError:
    return LedgerError(f"{found}; {_ADVICE}")


def _check_order(path: Path, records: list[dict[str, Any]], record: dict[str, Any]) -> None:
    before, kind = records[-1]["kind"] if records else "", str(record.get("kind"))
    if before not in _FOLLOWS.get(kind, ()):
        raise LedgerError(f"{path}: a record {kind!r} cannot follow {before!r}; {_ADVICE}")
    known = max((one.get("rounds", 0) for one in records), default=0)
    if kind in ("intent", "seen") and record["rounds"] <= (known - 1 if before == "seen" else known):
        raise LedgerError(f"{path}: rounds up to {record['rounds']} were released before; {_ADVICE}")
