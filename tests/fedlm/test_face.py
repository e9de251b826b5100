"""`import fedlm`: what it gives, that it costs nothing, and that every name shows how it is used."""

import ast
import doctest
import importlib
import inspect
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

import fedlm

NAMES = sorted(fedlm.__all__)
SOURCE = Path(fedlm.__file__)


def document_of(name):
    """The docstring of a name, which for a registry stands after its assignment."""
    home, found = importlib.import_module(f"fedlm.{fedlm._HOME_OF[name]}"), getattr(fedlm, name)
    if inspect.isclass(found) or inspect.isfunction(found):
        return home, inspect.getdoc(found)
    body = ast.parse(Path(home.__file__).read_text()).body
    for statement, following in itertools.pairwise(body):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        if any(getattr(target, "id", None) == name for target in targets):
            return home, inspect.cleandoc(following.value.value)
    raise AssertionError(f"{name} is not assigned in {home.__name__}")


def test_importing_loads_nothing_else():
    code = (
        "import sys; before = set(sys.modules); import fedlm; dir(fedlm)\n"
        "print(*sorted(name for name in set(sys.modules) - before if '.' not in name or name.startswith('fedlm')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "fedlm" in loaded
    assert not {name for name in loaded if name.startswith("fedlm.")}
    assert not loaded & {"jax", "numpy", "optax", "pyarrow", "orbax", "dp_accounting", "tokenizers"}


def test_type_checkers_see_the_same_names():
    (block,) = [node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If)]
    typed = {alias.asname: node.module for node in block.body for alias in node.names}
    assert typed == {name: f"fedlm.{home}" for name, home in fedlm._HOME_OF.items()}
    assert (SOURCE.parent / "py.typed").exists()


def test_a_name_that_there_is_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'simulatte'"):
        fedlm.simulatte  # noqa: B018


def test_what_is_listed_is_public():
    assert fedlm.simulate  # what is loaded is listed as what is not
    assert dir(fedlm) == NAMES


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name == "simulate" else name for name in NAMES]
)
def test_a_name_has_a_docstring_with_an_example_that_holds(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    home, document = document_of(name)
    test = doctest.DocTestParser().get_doctest(document, dict(vars(home)), name, home.__file__, 0)
    assert test.examples, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said = []
    runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)
