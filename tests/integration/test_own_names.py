"""What a module of one's own names is seen by the commands, and by the worker processes that they start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MINE = """
from dataclasses import dataclass
import optax
from fedlm import ClientAlgorithm, ModelEntry
from fedlm.models.families.cifg import CifgConfig, cifg

TINY = ModelEntry(cifg, CifgConfig(embedding=4, hidden=6))
ADAM = optax.adam
CHAIN = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0))


@dataclass(frozen=True)
class Halves(ClientAlgorithm):
    def step(self, server, local, gradient, learning_rate):
        return local._replace(params=gradient.descend(local.params, learning_rate / 2))


HALVES = Halves()
"""
NAMED = ("--client-algorithm", "mine:HALVES", "--length", "6", "--rounds", "1", "--cohort-size", "2")


@pytest.mark.long
def test_worker_processes_import_what_the_line_names(small_store, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    line = "compare --models mine:TINY --server-optimizer mine:ADAM --client-learning-rates 0.5 --workers 2 --out runs"
    words = [*line.split(), "--seeds", "0", "1", "--data", small_store, *NAMED]
    command = [Path(sys.executable).with_name("fedlm"), *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    summaries = [json.loads(path.read_text()) for path in tmp_path.glob("runs/cells/**/summary.json")]
    assert len(summaries) == 2
    for summary in summaries:
        names = [summary["experiment"][part] for part in ("model", "server_optimizer", "client_algorithm")]
        assert names == ["mine:TINY", "mine:ADAM", "mine:HALVES"]
        assert summary["status"] == "finished"
