"""What the operator of a history remembers of the trainings that he began."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.privacy.histories.tally import Entry, Trial


@dataclass
class Run:
    """A run that was begun, as the operator remembers it."""

    folder: Path
    settings: dict[str, Any]
    central: bool
    family: str
    lied: bool  # whether he has said anything false of its first parameters, or of theirs
    assumed: bool  # whether he has said anything of them
    people: set[str] = field(default_factory=set)
    seen: set[Entry] = field(default_factory=set)
    budgeted: Path | None = None
    trial: Trial | None = None  # of a private selection; None of any other
    compared: bool = False  # with other runs, which its statements have to say
    parent: "Run | None" = field(default=None, repr=False)  # whose parameters it begins with


@dataclass
class Together:
    """Runs that one command begins: a comparison, or a private selection."""

    folder: Path
    settings: dict[str, Any]
    first: Run  # none of them, but with what all have in common
    runs: dict[Path, Run] = field(default_factory=dict)
    planned: dict[str, Any] | None = None  # what is said of whichever run will be chosen
    over: bool = False


def has_begun(run: Run) -> bool:
    """Say whether there is anything in a run's ledger."""
    ledger = run.folder / "privacy" / "ledger.jsonl"
    # Of a process that was killed there may be a part of a line.
    return ledger.exists() and b"\n" in ledger.read_bytes()
