"""What the records of a privacy budget come to; `fedlm.fl_core.runs.capabilities.data_budget` says what they are."""

import json
from collections.abc import Mapping

from fedlm.fl_core.errors import UserError
from fedlm.fl_core.privacy.origins.ancestry import Phase, with_all_doubts
from fedlm.fl_core.privacy.record.record_chain import Record


class BudgetError(UserError):
    """A privacy budget is spent, or its file is damaged."""


def standing_reservations(records: list[Record]) -> tuple[dict[str, Record], set[str]]:
    """Find the reservations that stand, by commitment, and the commitments of runs that have begun."""
    standing: dict[str, Record] = {}
    begun: set[str] = set()
    for record in records:
        commitment = record.get("secret", "")
        if record["kind"] == "reserve":
            standing = without_waiting(standing, begun, record.get("run")) | {commitment: record}
        elif record["kind"] == "begun":
            begun.add(commitment)
        elif record["kind"] == "void" and commitment not in begun:
            standing.pop(commitment, None)
    return standing, begun


def without_waiting(standing: dict[str, Record], begun: set[str], run: str | None) -> dict[str, Record]:
    """Leave out what a run reserved before it began."""
    return {
        commitment: record
        for commitment, record in standing.items()
        if run is None or record.get("run") != run or commitment in begun
    }


def entered_process(records: list[Record], commitment: str) -> str | None:
    """Name the process that went on with a run last."""
    of_run = [one["process"] for one in records if one["kind"] == "enter" and one["secret"] == commitment]
    return of_run[-1] if of_run else None


def trainings_of(standing: Mapping[str, Record]) -> list[Phase]:
    """List what is reserved."""
    return [Phase(**phase) for record in standing.values() for phase in record["trainings"]]


def each_once(found: list[Phase]) -> list[Phase]:
    """Take every training once, as far as it went: one that first parameters come from may have gone on meanwhile; and
    for one on the same people where any run does."""
    farthest: dict[str, Phase] = {}
    for phase in found:
        name = (phase.ledger or {}).get("secret") or json.dumps(phase)
        known = farthest.setdefault(name, phase)
        farthest[name] = with_all_doubts(max(known, phase, key=_releases), known, phase)
    return list(farthest.values())


def _releases(phase: Phase) -> int:
    return sum(end - first for first, end in phase.generations)


def is_closed(records: list[Record]) -> bool:
    """Say whether records are of a copy, from which nothing more is reserved."""
    return bool(records) and records[-1]["kind"] == "closed"


def check_record(records: list[Record], record: Record) -> None:
    """Refuse a record that may not follow those before it."""
    if is_closed(records):
        raise BudgetError(
            "this budget is a copy that was made while its server could go on; what was reserved since is not known, "
            "so nothing more is reserved"
        )
    kinds = ("reserve", "begun", "void", "enter", "closed") if records else ("budget",)
    if record.get("kind") not in kinds:
        raise damaged_budget(f"a record {record.get('kind')!r} where one of {', '.join(kinds)} was expected")


def damaged_budget(found: str) -> BudgetError:
    """Make the error of what is wrong with the file of a budget."""
    return BudgetError(f"{found}; put the file of the privacy budget back as it was")
