"""Changes of the code that tests must notice; CONTRIBUTING.md says when to make them.

python -m tests.mutants promises [WORDS]   breaks each promise of promises.toml that has these words
python -m tests.mutants table [WORDS]      makes each change of mutants.jsonl whose name has these words

Each is made alone, and the test that promises.toml or table.csv names for it must fail. The code of the working tree is
changed and put back: use a tree of its own.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutants.mutant import killer_of, mutated, place_of, read_mutants
from tests.mutants.promises import read_promises

MOST_SECONDS = 900  # of one test
TESTS_FAILED = 1  # pytest's exit status; others say that it could not run them


class Change(NamedTuple):
    name: str
    file: Path
    code: str
    test: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["promises", "table"])
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    root, words = Path.cwd(), " ".join(options.words)
    changes = changes_of_promises(root) if options.kind == "promises" else changes_of_table(root)
    not_noticed = 0
    for change in (change for change in changes if words in change.name):
        noticed = is_noticed(change, root)
        not_noticed += not noticed
        print(f"{'noticed' if noticed else 'NOT NOTICED':11} {change.name}", flush=True)
    sys.exit(bool(not_noticed))


def changes_of_promises(root: Path) -> Iterator[Change]:
    for promise in read_promises():
        file = root / promise.file
        yield Change(promise.says, file, file.read_text().replace(promise.before, promise.after), promise.test)


def changes_of_table(root: Path) -> Iterator[Change]:
    """Those that a test has to notice, and whose line is still there."""
    for mutant in read_mutants():
        place, test = place_of(mutant, root), killer_of(mutant)
        if test is None:
            continue
        if place is None:
            print(f"gone        {mutant.name}")
            continue
        file, index = place
        yield Change(mutant.name, file, mutated(mutant, file.read_text(), index), test)


def is_noticed(change: Change, root: Path) -> bool:
    source = change.file.read_text()
    try:
        change.file.write_text(change.code)
        return fails(change.test, root)
    finally:
        change.file.write_text(source)
        # Examples that failed for this change are none of the next one's.
        shutil.rmtree(root / ".hypothesis", ignore_errors=True)


def fails(test: str, root: Path) -> bool:
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", test]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(words, cwd=root, env=environment, timeout=MOST_SECONDS).returncode == TESTS_FAILED
    except subprocess.TimeoutExpired:
        return True


if __name__ == "__main__":
    main()
