"""Messages of the library are read by programs and on command lines: they name settings by field, no option by flag."""

import ast
import re
from pathlib import Path

import pytest

import fedlm

PACKAGES = ("models", "fl_core", "simulations")
_COMMANDS = re.compile(
    r"`[^`]*`|\bfedlm [a-z]+ .*|start nodes with more --num-cpus|\bray start .*|\.\.\. --vocabulary .*", re.DOTALL
)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def messages(path):
    """The texts of what is raised in a file, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and node.exc is not None:
            parts = [part.value for part in ast.walk(node.exc) if isinstance(part, ast.Constant)]
            yield node.lineno, "".join(part for part in parts if isinstance(part, str))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_message_names_an_option_by_its_flag(package):
    folder = (Path(fedlm.__file__).parent / package).resolve()
    found = [
        f"{path.relative_to(folder)}:{line}: {flag}"
        for path in sorted(folder.rglob("*.py"))
        if path.name != "addresses.py"  # of servers and clients, which are begun on the command line alone
        for line, text in messages(path)
        for flag in _FLAG.findall(_COMMANDS.sub("", text))
    ]
    assert not found, "write setting('name') in place of the flag:\n" + "\n".join(found)
