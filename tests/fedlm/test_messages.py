"""Messages of the library are read by programs and on command lines: they name settings by field, no option by flag."""

import ast
import re
from pathlib import Path

import pytest

import fedlm
from fedlm.command_line.command_tree import find_commands
from fedlm.fl_core.composed_settings import value_types

PACKAGES = ("models", "fl_core", "simulations")
_COMMANDS = re.compile(
    r"`[^`]*`|\bfedlm [a-z]+ .*|start nodes with more --num-cpus|\bray start .*|\.\.\. --vocabulary .*", re.DOTALL
)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def _names_setting(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setting"


def messages(path):
    """The texts of what is raised in a file, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and node.exc is not None:
            of_calls = {id(part) for call in ast.walk(node.exc) if _names_setting(call) for part in ast.walk(call)}
            parts = [
                part.value for part in ast.walk(node.exc) if isinstance(part, ast.Constant) and id(part) not in of_calls
            ]
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


_KEYS_OF_FILES = {"noise_multiplier", "chat_template", "top_k", "top_p", "vocabulary_size"}
_VALUES = {"min_separation"}


@pytest.mark.long
def test_no_message_has_the_bare_name_of_an_option():
    names = {name for command in find_commands().values() for name in value_types(command) if "_" in name}
    bare = re.compile(rf"(?<![\w./'\"`])({'|'.join(sorted(names - _KEYS_OF_FILES - _VALUES))})(?![\w'\"`])")
    root = Path(fedlm.__file__).parent.resolve()
    found = [
        f"{package}/{path.name}:{line}: {name}"
        for package in PACKAGES
        for path in sorted((root / package).resolve().rglob("*.py"))
        if path.name != "imported_runs.py"  # whose messages are of the settings of other runs
        for line, text in messages(path)
        for name in bare.findall(text)
    ]
    assert not found, "write {setting('name')}:\n" + "\n".join(found)
