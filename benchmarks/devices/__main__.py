"""What a client of plans costs a device: sizes, memory and time of a local step, in Python and in TypeScript on Node.

    python -m benchmarks.devices

`npm ci && npm run build` in clients/javascript makes the client in TypeScript; without it that is left out. Run it when
nothing else runs: the load of the machine is in the results. The task is that of Stack Overflow with a small
vocabulary, in batches of 10.
"""

import argparse
import configparser
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine, measured_before
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.deployment.plans.plan import PlanSource, make_plan
from fedlm.fl_core.rounds.settings import TrainingSettings

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients/fedlm_client"
JAVASCRIPT = ROOT / "clients/javascript"
VOCABULARY = 4096


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=["si_cifg_tiny", "transformer_tiny"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    console, path = Console(width=140), arguments.results / "plans.json"
    results: dict[str, Any] = {
        "machine": describe_machine(),
        "setting": {"vocabulary": VOCABULARY, "steps": arguments.steps},
    }
    results |= {
        "installed_bytes": {"python": python_bytes(), "javascript": javascript_bytes()},
        "models": measured_before(path, results, "models", {}),
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    for model in arguments.models:
        results["models"][model] = {"load": os.getloadavg(), **measure(model, arguments.steps)}
        console.print(table(model, results["models"][model]))
        write_atomically(path, json.dumps(results, indent=2) + "\n")
    console.print(results["installed_bytes"])


def measure(model: str, steps: int) -> dict[str, Any]:
    """Export a plan, and train with each client."""
    plan = make_plan(PlanSource(model, b"{}", VOCABULARY, compose(TrainingSettings)))
    manifest = json.loads(plan.manifest)
    beside = Path(__file__).parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in (("manifest.json", plan.manifest), ("model.tflite", plan.model)):
            (folder / file).write_bytes(content)
        rng = np.random.default_rng(0)
        rows = (steps, manifest["batches"]["batch_size"], manifest["batches"]["length"] + 1)
        (0.05 * rng.normal(size=manifest["download"]["values"])).astype("<f4").tofile(folder / "values.f32")
        rng.integers(4, VOCABULARY, rows).astype("<i4").tofile(folder / "tokens.i32")
        commands: dict[str, list[Any]] = {"python": [sys.executable, beside / "measure.py", folder]}
        if shutil.which("node") and (JAVASCRIPT / "build/src").exists():
            commands["javascript"] = ["node", beside / "measure.mjs", folder]
        found = {client: run(words) for client, words in commands.items()}
    return {
        "download_values": manifest["download"]["values"],
        "upload_bytes": manifest["upload"]["bytes"],
        "plan_bytes": {"manifest": len(plan.manifest), "model": len(plan.model)},
        "clients": found,
    }


def run(words: list[Any]) -> dict[str, Any]:
    """Measure with a client in a process of its own."""
    done = subprocess.run(
        words, env=os.environ | {"PYTHONPATH": str(CLIENT)}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def javascript_bytes() -> dict[str, int]:
    """Add up the files of the client in TypeScript: of the page, of Node's part, of their packages, and of Node."""
    parts = {"page": "build/page", "on_node": "build/src", "packages": "node_modules/@bufbuild"}
    parts |= {"litert": "node_modules/@litertjs"}
    places = {name: JAVASCRIPT / part for name, part in parts.items() if (JAVASCRIPT / part).exists()}
    sizes = {name: sum(one.stat().st_size for one in path.rglob("*") if one.is_file()) for name, path in places.items()}
    node = shutil.which("node")
    return sizes | ({"node": Path(node).resolve().stat().st_size} if node else {})


def python_bytes() -> dict[str, int]:
    """Add up the files of the client in Python and of what it needs, as far as they are installed here.

    Returns:
      Bytes of the files that come with the packages, and those of the bytecode that pip compiles of them.
    """
    configuration = configparser.ConfigParser()
    configuration.read(CLIENT / "setup.cfg")
    names = [Requirement(line) for line in configuration["options"]["install_requires"].split("\n") if line]
    found: dict[str, importlib.metadata.Distribution] = {}
    while names:
        name = canonicalize_name(names.pop().name)
        if name not in found:
            found[name] = importlib.metadata.distribution(name)
            needed = map(Requirement, found[name].requires or [])
            names += [one for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    files = {Path(str(one.locate_file(file))) for one in found.values() for file in one.files or []}
    files |= {one for one in (CLIENT / "fedlm_client").iterdir() if one.is_file()}
    sizes = {"files": 0, "bytecode": 0}
    for path in files:
        if path.exists():
            sizes["bytecode" if path.suffix == ".pyc" else "files"] += path.stat().st_size
    return sizes


def table(model: str, found: dict[str, Any]) -> Table:
    """Lay out what was measured of a model."""
    clients = found["clients"]
    made = Table("", *clients, title=f"{model}, {found['download_values']:,} values")
    for name in ("load_seconds", "finish_milliseconds", "peak_memory_bytes"):
        made.add_row(name, *(f"{one[name]:,.1f}" for one in clients.values()))
    for name in ("median", "least"):
        made.add_row(f"ms a step, {name}", *(f"{one['step_milliseconds'][name]:.1f}" for one in clients.values()))
    return made


if __name__ == "__main__":
    main()
