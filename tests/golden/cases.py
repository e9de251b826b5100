"""The cases: what is run with old code and new. `cases.txt` and `mistakes.txt` have them, as a user types them.

`== NAME after OTHERS` begins a case: its lines are commands, run in a folder of the case's name beside those of others,
whose files it may read. `NAME = TEXT` names a piece of commands, `$NAME`. Before a command there may stand in brackets
`[killed at PATH]`: it is killed when it is about to rename a file to PATH, and then given again; or
`[when FILE has TEXT]`: it waits until FILE, which another command writes, has TEXT. One that ends with `&` runs beside
those after it. `{port}` is a free port, `{relay}` one that leads to it and writes down what passes. `help` alone asks
every command for all its options.
"""

import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_PREFIX = re.compile(r"\[(killed at|when) ([^\]]+?)(?: has ([^\]]+))?\] ")
_HEAD = re.compile(r"== (\w+)(?: after (.+))?")
_NAMED = re.compile(r"([A-Z]+) = (.+)")


class Case(NamedTuple):
    """Commands that belong together, and the cases whose files they read."""

    name: str
    lines: tuple[str, ...]
    needs: tuple[str, ...] = ()

    def uses(self, port: str) -> bool:
        """Say whether a command has `{port}` or `{relay}`."""
        return any(f"{{{port}}}" in line for line in self.lines)

    def request(self, folder: str, ports: tuple[int, int]) -> dict[str, Any]:
        """Say what a side is to do, in the words of `side.run_case`."""
        lines = [line.replace("{port}", str(ports[0])).replace("{relay}", str(ports[1])) for line in self.lines]
        commands = [command for line in lines for command in _commands(line)]
        relay = [ports[1], ports[0]] if self.uses("relay") else None
        return {"name": self.name, "folder": folder, "commands": commands, "relay": relay}


def _commands(line: str) -> Iterator[dict[str, Any]]:
    background = line.endswith(" &")
    command = {"line": _PREFIX.sub("", line).removesuffix(" &"), "background": background}
    found = _PREFIX.match(line)
    if found and found[1] == "when":
        command["wait"] = [found[2], found[3]]
    elif found:
        yield command | {"killed": found[2]}
    yield command


def read_cases(text: str) -> list[Case]:
    """Read cases; a backslash continues a line.

    Raises:
      ValueError: a line stands before the first case.
      KeyError: a piece of a command has no meaning.
    """
    pieces: dict[str, str] = {}
    cases: list[Case] = []
    for line in re.sub(r"\s*\\\n\s*", " ", text).split("\n"):
        if named := _NAMED.fullmatch(line):
            pieces[named[1]] = string.Template(named[2]).substitute(pieces)
        elif head := _HEAD.fullmatch(line):
            cases.append(Case(head[1], (), tuple((head[2] or "").split())))
        elif line.strip() and not line.startswith("#"):
            if not cases:
                raise ValueError(f"{line!r} stands before the first case")
            cases[-1] = cases[-1]._replace(lines=(*cases[-1].lines, string.Template(line).substitute(pieces)))
    return cases


CASES = [
    case for name in ("cases", "mistakes") for case in read_cases(Path(__file__).with_name(f"{name}.txt").read_text())
]
