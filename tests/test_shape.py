import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
ROOMS = ("models", "fl_core", "simulations", "clients", "fedlm/command_line", "fedlm/commands", "fedlm/interop")
MOST_POSITIONAL = 4


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
        f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.name}"
        for path in modules
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and len(positional(node)) > MOST_POSITIONAL
    ]
    assert found == []
