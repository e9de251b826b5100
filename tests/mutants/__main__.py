"""Mutants of the code against the tests; CONTRIBUTING.md says when and how.

python -m tests.mutants draw                       draw the mutants anew; needs cosmic-ray
python -m tests.mutants cover FOLDER TESTS ...     which lines each quick test of these files and folders runs;
                                                   needs coverage
python -m tests.mutants run FOLDER [--area AREA] [--seconds 45]
                                                   the mutants against the quick tests that run their lines
python -m tests.mutants promises [WORDS]           breaks each promise of promises.toml, and sees that its test fails
python -m tests.mutants long FOLDER [--area AREA]  those that live on, against the long tests of their area
python -m tests.mutants table NAME=FOLDER ...      table.csv, with a column for each folder of verdicts

It changes the code of the working tree that it runs in, one line at a time, and puts it back: use a tree of its own.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.mutants.mutant import Mutant, read_mutants, write_mutants
from tests.mutants.promises import see_them_broken
from tests.mutants.running import read_verdicts, run_mutants, survivors
from tests.mutants.table import write_table

QUICK, LONG = "not (long or reference or thorough)", "long and not thorough"
# The long tests that are nearest to each area.
LONG_TESTS = {
    "aggregation": ["tests/fl_core/deployment/server/reports", "tests/simulations/engine/test_cohort_engine.py"],
    "clipping": ["tests/fl_core/clipping"],
    "compression": ["tests/fl_core/updates", "tests/simulations/engine/test_cohort_engine.py"],
    "ledger": ["tests/fl_core/privacy/record/test_ledger.py", "tests/fl_core/runs", "tests/simulations/experiments"],
    "releases": ["tests/fl_core/runs", "tests/simulations/experiments"],
    "privacy": ["tests/fl_core/privacy", "tests/simulations/experiments"],
    "driver": ["tests/fl_core/runs", "tests/simulations/experiments", "tests/integration/test_simulate.py"],
    "protocol": ["tests/fl_core/deployment/protocol", "tests/deployment"],
    "handlers": ["tests/fl_core/deployment/server", "tests/deployment"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["draw", "cover", "run", "long", "table", "promises"])
    parser.add_argument(
        "words", nargs="*", help="a FOLDER, where verdicts and what tests ran are kept; and what follows"
    )
    parser.add_argument("--area")
    parser.add_argument("--killers", type=Path, help="the folder of another commit: its killers alone are run")
    parser.add_argument("--seconds", type=float, default=45.0, help="of tests, for one mutant")
    options = parser.parse_args()
    root, words = Path.cwd(), options.words
    match options.command:
        case "draw":
            from tests.mutants.sampling import draw_mutants

            write_mutants(draw_mutants(root))
        case "cover":
            cover(Path(words[0]).resolve(), words[1:])
        case "run":
            run_quick(Path(words[0]), root, options)
        case "long":
            run_long(Path(words[0]), root, options)
        case "table":
            write_table({name: Path(folder) for name, _, folder in (word.partition("=") for word in words)})
        case "promises":
            sys.exit(bool(see_them_broken(root, " ".join(words))))


def cover(folder: Path, tests: list[str]) -> None:
    """One run of pytest for each folder or file, so that what one has found is kept whatever the next does."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in tests:
        data = folder / f"{one.strip('/').replace('/', '_')}.cov"
        if not data.exists():
            watched = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.watching", "-m", QUICK, one]
            places = {"COVERAGE_FILE": str(data), "FEDLM_TESTS_SEEN": str(folder / "tests.jsonl")}
            command = [sys.executable, "-m", "coverage", "run", "--source", "fl_core", *watched]
            subprocess.run(command, env={**os.environ, **places}, check=False)


def run_quick(folder: Path, root: Path, options: argparse.Namespace) -> None:
    from tests.mutants.covering import Seen

    seen = Seen(folder, root)
    killers = (
        {one["mutant"]: one["by"] for one in read_verdicts(options.killers / "verdicts.jsonl")}
        if options.killers
        else {}
    )

    def choose(mutant: Mutant, file: str, lines: range) -> list[str]:
        if options.killers:
            return tests_that_are_there(root, killers.get(mutant.name, ""))
        return seen.tests_of(file, lines, options.seconds)

    run_mutants(mutants_of(options.area), root, choose, folder / "verdicts.jsonl")


def tests_that_are_there(root: Path, test: str) -> list[str]:
    path, _, name = test.partition("[")[0].partition("::")
    file = root / path
    return [f"{path}::{name}"] if name and file.exists() and f"def {name}(" in file.read_text() else []


def run_long(folder: Path, root: Path, options: argparse.Namespace) -> None:
    alive = survivors(folder)
    mutants = [mutant for mutant in mutants_of(options.area) if mutant.name in alive]
    run_mutants(
        mutants, root, lambda mutant, file, lines: ["-m", LONG, *LONG_TESTS[mutant.area]], folder / "long.jsonl"
    )


def mutants_of(area: str | None) -> list[Mutant]:
    return [mutant for mutant in read_mutants() if area in (None, mutant.area)]


if __name__ == "__main__":
    main()
