"""The package by itself, as a device has it: without JAX, and without the rest of fedlm."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedlm.fedlm_client import client
from fedlm.fedlm_client.cli import main
from fedlm.fl_core.deployment.security.plan_keys import create_plan_key

CODE = """
import importlib, pkgutil, sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "fedlm"):
            raise ImportError(name)

sys.meta_path.insert(0, Refused())
sys.path.insert(0, sys.argv[1])
import fedlm_client
names = [one.name for one in pkgutil.walk_packages(fedlm_client.__path__, "fedlm_client.")]
for name in names:
    if not name.endswith((".__main__", ".litert")):
        importlib.import_module(name)
from fedlm_client.cli import main
print(len(names))
main(["run", "--help"])
"""
INSIDE = Path(client.__file__).resolve().parent


def test_it_imports_neither_jax_nor_the_rest_of_fedlm():
    words = [sys.executable, "-c", CODE, str(INSIDE.parent)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) == len([*INSIDE.rglob("*.py")]) - 1
    assert "--memory-bytes" in done.stdout
    assert "--recheck-seconds" not in done.stdout


def test_it_imports_itself_by_relative_names():
    for path in INSIDE.rglob("*.py"):
        lines = [line for line in path.read_text().splitlines() if line.lstrip().startswith(("import ", "from "))]
        assert not [line for line in lines if line.split()[1].split(".")[0] in ("fedlm", "fedlm_client")], path.name


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--secure-sums"], "--secure-sums needs a certificate"),
        (["--least-cohort", "5"], "--least-cohort does nothing without --secure-sums"),
        (["--secure-sums", "--least-noise", "nan"], "--least-noise is nan, but must be positive"),
    ],
)
def test_what_is_wrong_with_options_of_secure_sums_is_said(words, told, tmp_path, capsys):
    create_plan_key(tmp_path)
    where = f"--server 127.0.0.1:1 --insecure --name ann --data {tmp_path / 'mine.jsonl'}".split()
    assert main(["run", *where, "--plan-key", str(tmp_path / "plan.pub"), *words]) == 2
    assert told in capsys.readouterr().err
