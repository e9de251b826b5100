"""A mutant: one place of the code and what stands there instead. It is found again where lines have moved."""

import ast
import csv
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MUTANTS, TABLE = (Path(__file__).with_name(name) for name in ("mutants.jsonl", "table.csv"))


@dataclass(frozen=True)
class Mutant:
    area: str
    file: str
    function: str
    """Its name within the module; "" for a line outside all."""
    line: int
    operator: str
    before: list[str]
    after: list[str]

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {self.operator}"


def read_mutants() -> list[Mutant]:
    return [Mutant(**json.loads(line)) for line in MUTANTS.read_text().splitlines()]


@cache
def read_killers() -> dict[str, str]:
    """The test that notices each mutant, by the mutant's name, without its parameters."""
    with TABLE.open(newline="") as file:
        rows = [(row["mutant"], row["after, quick"], row["after, long"]) for row in csv.DictReader(file)]
    named = ((mutant, next((test for test in tests if "::" in test), None)) for mutant, *tests in rows)
    return {mutant: test.partition("[")[0] for mutant, test in named if test}


def killer_of(mutant: Mutant) -> str | None:
    return read_killers().get(mutant.name)


def place_of(mutant: Mutant, root: Path) -> tuple[Path, int] | None:
    """The file and the index of the first line that the mutant changes; None where that is gone.

    The text of the line decides, in the function of the same name: in the same file, else in the only other that has
    both.
    """
    file = root / mutant.file
    if file.exists():
        found = _lines_in(file.read_text(), mutant)
        if found:
            return file, min(found, key=lambda index: abs(index - mutant.line + 1))
    places = [
        (other, index)
        for other in sorted((root / "fl_core").rglob("*.py"))
        for index in _lines_in(other.read_text(), mutant)
    ]
    return places[0] if len(places) == 1 else None


def _lines_in(source: str, mutant: Mutant) -> list[int]:
    lines, before = source.splitlines(), mutant.before
    places = [index for index in range(len(lines)) if lines[index : index + len(before)] == before]
    if not places or not mutant.function:
        return places
    spans = functions_of(ast.parse(source))
    first, last = spans.get(mutant.function, (0, 0))
    return [index for index in places if first <= index + 1 <= last]


def mutated(mutant: Mutant, source: str, index: int) -> str:
    lines = source.splitlines()
    return "\n".join(lines[:index] + mutant.after + lines[index + len(mutant.before) :]) + "\n"


def functions_of(tree: ast.Module) -> dict[str, tuple[int, int]]:
    """The first and last line of each function and class, by its name within the module."""
    found = {}

    def look(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[prefix + child.name] = (child.lineno, child.end_lineno or child.lineno)
                look(child, f"{prefix}{child.name}.")
            else:
                look(child, prefix)

    look(tree, "")
    return found
