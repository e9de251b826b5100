"""What other frameworks say of a model: a committed file, and live where they are installed."""

import json
import subprocess
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "benchmarks" / "simulation" / "peers" / ".venv" / "bin" / "python"


def committed(name):
    return json.loads((Path(__file__).parent / name).read_text())


def assert_said_today(module: ModuleType, library: str, golden, tmp_path, error=1e-11):
    """Run a peer's module and hold what it writes to what is committed; skip without its library."""
    has_it = [PYTHON, "-c", f"import importlib.util as u, sys; sys.exit(not u.find_spec('{library}'))"]
    if not PYTHON.exists() or subprocess.run(has_it).returncode:
        pytest.skip(f"{library} is not installed; run `make bench-peers`")
    out = tmp_path / "found.json"
    subprocess.run([PYTHON, "-m", module.__name__, out], check=True, cwd=ROOT, timeout=300)
    found = json.loads(out.read_text())
    assert _logits(found).keys() == _logits(golden).keys()
    for name, logits in _logits(golden).items():
        np.testing.assert_allclose(_logits(found)[name], logits, rtol=0, atol=error, err_msg=name)
    assert found.get("parameters") == golden.get("parameters")


def _logits(document):
    """By model: one has them at the top, another in records."""
    if "models" in document:
        return {name: record["logits"] for name, record in document["models"].items()}
    return {name: value for name, value in document.items() if name != "parameters"}
