"""Clients of plans in TypeScript, which have docs/protocol.md and nothing of ours, take part beside those in Python."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.security.plan_keys import create_plan_key
from tests.deployment import small_deployment as small
from tests.deployment import test_plan_clients as beside

FOLDER = Path(__file__).parents[2] / "clients/javascript"
COMMAND = ("node", str(FOLDER / "build/src/node/cli.js"), "run")
QUICK = ("--first-backoff", "0.05", "--longest-backoff", "0.5")
ONE = {"cohort_size": 1, "minimum_reports": 1, "over_selection": 1.0}
pytestmark = pytest.mark.long
keys, tokenizer = beside.keys, beside.tokenizer


@pytest.fixture(scope="module", autouse=True)
def built():
    if shutil.which("node") is None or not (FOLDER / "node_modules").exists():
        pytest.skip("Node, or TypeScript for it, is missing; `npm ci` in clients/javascript installs it")
    subprocess.run([FOLDER / "node_modules/.bin/tsc", "-p", FOLDER], check=True)


def started(port, folder, number, keys, *words):
    """A client of plans on Node."""
    text = beside.data_of(folder, number)
    who = ["--insecure", "--name", f"client{number}"] if "--credentials" not in words else []
    words = [*who, "--server", f"127.0.0.1:{port}", "--data", text, "--plan-key", keys / "plan.pub", *QUICK, *words]
    return subprocess.Popen(
        [*COMMAND, *map(str, words)], env={"PATH": os.environ["PATH"]}, stderr=subprocess.PIPE, text=True
    )


def test_it_takes_part_with_privacy_beside_clients_in_python(tmp_path, keys, tokenizer):
    private = small.PRIVACY | {"update_norm_bound": "auto", "upload_bits": 32, "min_separation": 1}
    task = beside.task_of(tokenizer, keys, **private, cohort_size=3, minimum_reports=3, over_selection=1.0)
    processes = lambda port: [started(port, tmp_path, 2, keys)]  # noqa: E731
    native = lambda port: [beside.native_client(port, tmp_path, 0)]  # noqa: E731
    made = lambda port: [beside.plan_client(port, tmp_path, 1, keys)[0]]  # noqa: E731
    rows = asyncio.run(beside.take_part(task, tmp_path / "run", native, made, processes))
    assert [row["clients"] for row in rows] == [3, 3]
    # The same noise, the same clients: what is left is how each of them rounds.
    beside.check_final(task, tmp_path / "run", tmp_path / "simulation", 3)
    (found,) = json.loads((tmp_path / "client2.jsonl.participation.json").read_text())["populations"].values()
    assert (list(found["taken"]), found["told"]) == (["0", "1"], [])
