"""The table of mutants: which test kills each, and why those that live on may. Written anew, it keeps its reasons."""

import csv
from pathlib import Path

from tests.mutants.mutant import read_mutants
from tests.mutants.running import read_verdicts

TABLE = Path(__file__).with_name("table.csv")
WHY = "why"


def write_table(folders: dict[str, Path]) -> None:
    """Write which quick test, and which long one, killed each mutant, by the verdicts of some folders."""
    reasons = {row["mutant"]: row[WHY] for row in read_table()}
    found = {
        f"{name}, {kind}": _by_mutant(folder / file)
        for name, folder in folders.items()
        for kind, file in (("quick", "verdicts.jsonl"), ("long", "long.jsonl"))
    }
    with TABLE.open("w", newline="") as file:
        table = csv.DictWriter(file, ["area", "mutant", "line", "mutated", *found, WHY], lineterminator="\n")
        table.writeheader()
        for mutant in read_mutants():
            table.writerow(
                {
                    "area": mutant.area,
                    "mutant": mutant.name,
                    "line": _in_a_line(mutant.before),
                    "mutated": _in_a_line(mutant.after),
                    **{name: verdicts.get(mutant.name, "") for name, verdicts in found.items()},
                    WHY: reasons.get(mutant.name, ""),
                }
            )


def read_table() -> list[dict[str, str]]:
    if not TABLE.exists():
        return []
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def _by_mutant(verdicts: Path) -> dict[str, str]:
    """The last word on each mutant: the test that killed it, or else what became of it."""
    words: dict[str, str] = {}
    for one in read_verdicts(verdicts):
        if words.get(one["mutant"], "survived") in ("survived", "not run"):
            words[one["mutant"]] = one["by"] if one["verdict"] == "killed" else one["verdict"]
    return words


def _in_a_line(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines)
