"""Each mutant against tests, one after the other: the first test that fails has killed it."""

import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.mutants.mutant import Mutant, mutated, place_of

MOST_SECONDS = 900  # on the clock, for all tests of one mutant
Choice = Callable[[Mutant, str, range], list[str]]  # tests of a mutant, at these lines of a file
# Processes begin as copies of one that has loaded what takes long and is not ours.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.mutants.preloaded"])


def run_mutants(mutants: list[Mutant], root: Path, choose: Choice, verdicts: Path) -> None:
    """Write a line for each mutant as soon as it is known; one that lives on meets the tests that it has not met."""
    for mutant in mutants:
        before = [verdict for verdict in read_verdicts(verdicts) if verdict["mutant"] == mutant.name]
        if any(verdict["verdict"] in ("killed", "gone") for verdict in before):
            continue
        met = {test for verdict in before for test in verdict["tests"]}
        verdict = _verdict(mutant, root, choose, met)
        if verdict["tests"] or not before:
            with verdicts.open("a") as file:
                file.write(json.dumps({"mutant": mutant.name, **verdict}) + "\n")


def read_verdicts(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def survivors(folder: Path) -> set[str]:
    """The mutants that no quick test killed."""
    verdicts = read_verdicts(folder / "verdicts.jsonl")
    killed = {verdict["mutant"] for verdict in verdicts if verdict["verdict"] == "killed"}
    return {verdict["mutant"] for verdict in verdicts} - killed


def _verdict(mutant: Mutant, root: Path, choose: Choice, met: set[str]) -> dict:
    place = place_of(mutant, root)
    if place is None:
        return {"verdict": "gone", "by": "", "tests": []}
    path, index = place
    lines = range(index + 1, index + 1 + len(mutant.before))
    tests = [test for test in choose(mutant, str(path.relative_to(root)), lines) if test not in met]
    if not tests:
        return {"verdict": "not run", "by": "", "tests": []}
    source = path.read_text()
    try:
        path.write_text(mutated(mutant, source, index))
        return {**run_tests(root, tests), "tests": tests}
    finally:
        path.write_text(source)


def run_tests(root: Path, tests: list[str]) -> dict:
    """Run tests until one fails; says `verdict`, `by` which test, and the `last` words."""
    with tempfile.TemporaryDirectory() as folder:
        seen, output = Path(folder) / "seen.jsonl", Path(folder) / "output"
        process = PROCESSES.Process(target=_pytest, args=(tests, str(seen), str(output)))
        process.start()
        process.join(MOST_SECONDS)
        if process.is_alive():
            process.kill()
            return {"verdict": "killed", "by": "time"}
        # Examples that failed for this mutant are none of the next one's.
        shutil.rmtree(root / ".hypothesis", ignore_errors=True)
        ran = [json.loads(line) for line in seen.read_text().splitlines()] if seen.exists() else []
        last = output.read_text().strip()[-300:]
    failed = [one["test"] for one in ran if "failed" in one["outcomes"]]
    if process.exitcode == 0:
        return {"verdict": "survived", "by": ""}
    return {"verdict": "killed", "by": failed[0] if failed else "import", "last": last}


def _pytest(tests: list[str], seen: str, output: str) -> None:
    import pytest

    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ["FEDLM_TESTS_SEEN"] = seen
    plugins = ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "tests.mutants.watching"]
    sys.exit(int(pytest.main(["-x", "-q", *plugins, *tests])))
