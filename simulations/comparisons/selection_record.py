"""What a private selection has drawn, seen and chosen: on disk before anything follows from it.

Kinds of records, chained by hashes:

- `drawn`: the first; which runs there are to be. Their folders are made before, so that a missing one was removed.
- `seen`: a run's ledger had come so far. Whoever has seen its scores may not draw it again.
- `chosen`: the last; which run is the outcome.
"""

from pathlib import Path

from fedlm.fl_core.atomic_files import make_folder
from fedlm.fl_core.errors import CheckpointError, setting
from fedlm.fl_core.privacy.promise.plan import LEDGER_FILE
from fedlm.fl_core.privacy.record.ledger import LedgerError, PrivacyLedger
from fedlm.fl_core.privacy.record.record_chain import Record, RecordChain
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER

_FILE = "selection.jsonl"  # in the folder `privacy` of a selection, which is the operator's alone
_TRIALS = "trials"
_AGAIN = (
    "A run that was seen is not drawn again, since nobody could tell whether that decided the choice: put its folder "
    f"back as it was, or begin with another {setting('out')}"
)


class SelectionRecord:
    """The record of one selection; who opens it holds the lock of its folder."""

    def __init__(self, out: Path):
        """Read the record in the folder of a selection. Raises LedgerError where it is damaged, or missing."""
        path, self._trials = out / PRIVACY_FOLDER / _FILE, out / _TRIALS
        self._chain = RecordChain(path, _check_order, _damaged)
        # Folders alone are of a selection that was interrupted before anything was drawn.
        if not self._chain.records and any(self._trials.glob("*/*")):
            raise _damaged(f"{path}: is missing, but there are runs")

    @property
    def drawn(self) -> Record | None:
        """What was drawn; None where nothing is yet."""
        return self._chain.records[0] if self._chain.records else None

    @property
    def chosen(self) -> Record | None:
        """What was chosen; None where nothing is yet."""
        last = self._chain.records[-1] if self._chain.records else {}
        return last if last.get("kind") == "chosen" else None

    def draw(self, runs: int, content: Record) -> Record:
        """Enter what was drawn, once the folders of so many runs are there. Returns the record."""
        for left in self._trials.glob("*/"):
            left.rmdir()
        for number in range(runs):
            make_folder(self.folder(number), private=True)
        self._chain.append({"kind": "drawn", **content})
        return self._chain.records[0]

    def choose(self, content: Record) -> Record:
        """Enter what was chosen. Returns the record."""
        self._chain.append({"kind": "chosen", **content})
        return self._chain.records[-1]

    def folder(self, number: int) -> Path:
        """Say where a run lies, by its number in the order in which they were drawn."""
        return self._trials / f"{number:03d}"

    def see(self, number: int) -> None:
        """Enter how far a run's ledger has come, where it has one."""
        hashes = self._hashes(number)
        if hashes and hashes[-1] not in self._seen(number):
            self._chain.append({"kind": "seen", "trial": number, "ledger": hashes[-1]})

    def check(self, runs: int) -> None:
        """Refuse runs of which one is not what was drawn and seen, and enter how far each has come.

        Raises:
          CheckpointError: a folder is missing, or the ledger in it is another, or an older copy.
        """
        for number in range(runs):
            folder, seen = self.folder(number), self._seen(number)
            if not folder.is_dir():
                raise CheckpointError(f"{folder}: a run of this private selection is missing. {_AGAIN}")
            if not set(seen) <= set(self._hashes(number)):
                raise CheckpointError(
                    f"{folder}: its ledger is missing, or is not the one that this private selection has seen. {_AGAIN}"
                )
            self.see(number)

    def _seen(self, number: int) -> list[str]:
        return [one["ledger"] for one in self._chain.records if one["kind"] == "seen" and one["trial"] == number]

    def _hashes(self, number: int) -> list[str]:
        return PrivacyLedger(ledger_path(self.folder(number))).hashes


def ledger_path(folder: Path) -> Path:
    """Say where the ledger of a run lies, by its folder."""
    return folder / PRIVACY_FOLDER / LEDGER_FILE


def _check_order(records: list[Record], record: Record) -> None:
    kind = record.get("kind")
    over = bool(records) and records[-1]["kind"] == "chosen"
    if over or (kind not in ("seen", "chosen") if records else kind != "drawn"):
        raise _damaged(f"a record {kind!r} is out of order")


def _damaged(found: str) -> LedgerError:
    return LedgerError(
        f"{found}; put the record of the private selection back as it was, or begin with another {setting('out')}"
    )
