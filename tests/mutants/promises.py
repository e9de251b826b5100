"""What the project promises, each with the test that holds it and a change of the code that breaks it."""

import tomllib
from pathlib import Path
from typing import NamedTuple

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
