import ast
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
ROOMS = ("models", "fl_core", "simulations", "clients", "fedlm/command_line", "fedlm/commands", "fedlm/interop")
MOST_POSITIONAL, MOST_LINES, MOST_FILES = 4, 300, 15


def positional(function):
    names = [one.arg for one in function.args.posonlyargs + function.args.args]
    return names[names[:1] in (["self"], ["cls"]) :]


def test_what_an_object_is_given_besides_itself_counts():
    functions = ast.parse("def a(b, c, *, d): pass\ndef e(self, f, /, g=1, *h): pass").body
    assert [positional(one) for one in functions] == [["b", "c"], ["f", "g"]]


@pytest.mark.parametrize("room", ROOMS)
def test_a_function_takes_four_positional_arguments_at_most(room):
    modules = [path for path in (REPOSITORY / room).rglob("*.py") if "node_modules" not in path.parts]
    assert modules
    found = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno} {getattr(node, 'name', 'lambda')}"
        for path in modules
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        and len(positional(node)) > MOST_POSITIONAL
    ]
    assert found == []


def test_files_have_300_lines_and_folders_15_files_at_most():
    """Python of ours that nothing generates; a file's folder is the one that it lies in."""
    modules = [path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")]
    modules = [path for path in modules if "node_modules" not in path.parts and not path.name.endswith("_pb2.py")]
    long = [str(path) for path in modules if path.read_text().count("\n") > MOST_LINES]
    full = [str(path) for path, files in Counter(path.parent for path in modules).items() if files > MOST_FILES]
    assert (long, full) == ([], [])
