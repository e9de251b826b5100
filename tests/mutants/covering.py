"""Which tests run a line, nearest and cheapest first; from what tests/mutants/watching.py wrote."""

import ast
import json
from collections import defaultdict
from functools import cached_property, lru_cache
from itertools import takewhile
from pathlib import Path

from coverage import CoverageData

MOST_FILES = 12  # of tests, for one mutant: each has to be imported
MOST_CASES = 3  # of one test with parameters, before other tests have their turn


class Seen:
    """Tests that passed once, what they cost, and the lines that they ran."""

    def __init__(self, folder: Path, root: Path):
        self._folder, self._root = folder, root

    @cached_property
    def seconds(self) -> dict[str, float]:
        tests = map(json.loads, (self._folder / "tests.jsonl").read_text().splitlines())
        return {one["test"]: one["seconds"] for one in tests if set(one["outcomes"]) == {"passed"}}

    @lru_cache(maxsize=16)  # noqa: B019
    def _by_line(self, file: str) -> dict[int, set[str]]:
        found: dict[int, set[str]] = defaultdict(set)
        for data_file in sorted(self._folder.glob("*.cov")):
            data = CoverageData(str(data_file))
            data.read()
            for line, tests in data.contexts_by_lineno(str(self._root / file)).items():
                found[line].update(test for test in tests if test in self.seconds)
        return found

    def tests_of(self, file: str, lines: range, budget: float) -> list[str]:
        """Tests that run these lines of a file, of at most so many seconds together; others of their files come last.

        Lines that run when a module is imported belong to all tests that run anything of the file.
        """
        by_line = self._by_line(file)
        of_functions = _lines_of_functions((self._root / file).read_text())
        covering = set().union(*(by_line.get(line, set()) for line in lines if line in of_functions))
        if not of_functions.issuperset(lines):
            covering = set().union(*(by_line.get(line, set()) for line in of_functions))
        ordered = self._in_turns(sorted(covering, key=lambda test: (_distance(test, file), self.seconds[test], test)))
        files = list(dict.fromkeys(map(_file_of, ordered)))[:MOST_FILES]
        # What is compiled is traced in the first test that needs it, and runs in others too.
        beside = [test for test in self.seconds if _file_of(test) in files[:2] and test not in covering]
        chosen, left = [], budget
        for test in [*(test for test in ordered if _file_of(test) in files), *beside]:
            if self.seconds[test] <= left or not chosen:
                chosen.append(test)
                left -= self.seconds[test]
        return chosen

    def _in_turns(self, tests: list[str]) -> list[str]:
        cases: dict[str, int] = defaultdict(int)
        turns = []
        for place, test in enumerate(tests):
            name = test.partition("[")[0]
            turns.append((cases[name] // MOST_CASES, place, test))
            cases[name] += 1
        return [test for _, _, test in sorted(turns)]


def _lines_of_functions(source: str) -> set[int]:
    """The lines that run when a function is called; all others run when the module is imported."""
    return {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)
    }


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _distance(test: str, file: str) -> tuple[int, int]:
    """First the tests of the same name, then of the same folder, then of folders further away."""
    mirrored = Path("tests") / file
    path = Path(_file_of(test))
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path.parts, mirrored.parts, strict=False)))
    return (path.name != f"test_{mirrored.name}", len(mirrored.parts) - same)
