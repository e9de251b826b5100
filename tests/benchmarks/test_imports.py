"""Measurements import the public names of the packages, and those that are there."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

PEERS = ("flwr", "pfl", "torch")
ROOT = Path(__file__).parents[2]
FILES = [path for path in sorted((ROOT / "benchmarks").rglob("*.py")) if ".venv" not in path.parts]


def imported(path: Path) -> list[tuple[str, str]]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [
        (node.module, alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fedlm"
        for alias in node.names
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_measurement_imports_is_public_and_there(path):
    for module, name in imported(path):
        assert not name.startswith("_"), f"{name} of {module} is not public"
        assert name in names_of(module) or importlib.util.find_spec(f"{module}.{name}"), f"{module} has no {name}"


def names_of(module: str) -> set[str]:
    """What a module defines; read from its text where it imports a framework that is not installed here."""
    try:
        return set(dir(importlib.import_module(module)))
    except ModuleNotFoundError as error:
        if error.name not in PEERS:
            raise
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
