"""Runs files of Python lines, and prints the names that each defined: [{name: its type's name}, ..].

Usage: run_lines.py FILE ..
"""

import json
import sys
from pathlib import Path


def main(*paths: str) -> None:
    """Run the files, as a person would who pasted them."""
    json.dump([run(Path(path)) for path in paths], sys.stdout)


def run(path: Path) -> dict[str, str]:
    """Return the types of what a file defines."""
    names: dict[str, object] = {}
    exec(path.read_text(), names)
    return {name: type(value).__name__ for name, value in names.items() if not name.startswith("_")}


main(*sys.argv[1:])
