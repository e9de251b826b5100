"""What the project promises, each with the test that holds it and a change of the code that breaks it."""

import tomllib
from pathlib import Path
from typing import NamedTuple

from tests.mutants.running import run_tests

PROMISES = Path(__file__).with_name("promises.toml")


class Promise(NamedTuple):
    says: str
    test: str
    file: str
    before: str  # part of a line that is once in the file
    after: str

    @property
    def line(self) -> str:
        """Of the table in CONTRIBUTING.md."""
        path, _, name = self.test.partition("::")
        return f"| {self.says} | `{name}` in `{path}` |"


def read_promises() -> list[Promise]:
    return [Promise(**one) for one in tomllib.loads(PROMISES.read_text())["promise"]]


def see_them_broken(root: Path, words: str = "") -> list[Promise]:
    """Break the code for each promise that has these words; returns those whose test does not notice."""
    not_held = []
    for promise in read_promises():
        if words in promise.says:
            path = root / promise.file
            source = path.read_text()
            try:
                path.write_text(source.replace(promise.before, promise.after))
                found = run_tests(root, [promise.test])
            finally:
                path.write_text(source)
            print(f"{found['verdict']:9} {promise.says}", flush=True)
            if found["verdict"] != "killed" or not found["by"].startswith(promise.test):
                print(found)
                not_held.append(promise)
    return not_held
