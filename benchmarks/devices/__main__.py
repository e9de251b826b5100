"""What a client of plans costs a device: sizes, memory and time of a local step, by JAX, by IREE, in TypeScript, and on
a page by LiteRT.js and in TypeScript.

    python -m benchmarks.devices

`make plan-client` makes the environment of IREE, `npm ci && npm run build` in clients/javascript the client in
TypeScript, and `make litert` what makes models of LiteRT; without them these are left out. Run it when nothing else
runs: the load of the machine is in the results. The task is that of Stack Overflow with a small vocabulary, in batches
of 10.
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

from benchmarks.devices import litert_web
from benchmarks.machine import describe_machine, measured_before
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.deployment.plans.plan import PlanSource, make_plan
from fedlm.fl_core.deployment.plans.programs import versions
from fedlm.fl_core.settings import TrainingSettings

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients/plan_client"
JAVASCRIPT = ROOT / "clients/javascript"
PYTHONS = {"jax": Path(sys.executable), "iree": CLIENT / ".venv/bin/python"}
VOCABULARY = 4096
STREAM = (11, 3, 4_000_000_000)
"""Seed, number of the round and index of the client, that uploads are made with; the index is above 2^31."""

EXTRAS = {"jax": ["jax"], "iree": ["iree", "iree,compiler"]}
"""Extras of the client's package that the environment of a runtime has."""


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
        "installed_bytes": installed_bytes() | {"javascript": javascript_bytes()},
        "models": measured_before(path, results, "models", {}),
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    for model in arguments.models:
        results["models"][model] = {"load": os.getloadavg(), **measure(model, arguments.steps)}
        console.print(table(model, results["models"][model]))
        write_atomically(path, json.dumps(results, indent=2) + "\n")
    console.print(results["installed_bytes"])


def measure(model: str, steps: int) -> dict[str, Any]:
    """Export a plan, and train with each runtime."""
    usual = make_plan(PlanSource(model, b"{}", VOCABULARY, compose(TrainingSettings)), versions()[1])
    manifest = json.loads(usual.manifest)
    found: dict[str, Any] = {
        "download_values": manifest["download"]["values"],
        "upload_bytes": manifest["upload"]["bytes"],
        "plan_bytes": {"manifest": len(usual.manifest), "step": len(usual.step), "finish": len(usual.finish)},
        "runtimes": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder, updates = Path(name), {}
        # Uploads of float32, so that updates can be compared.
        prepare(folder, model, steps, {"upload_bits": 32})
        commands = {
            runtime: [python, Path(__file__).with_name("measure.py"), folder, runtime]
            for runtime, python in PYTHONS.items()
            if python.exists()
        }
        if shutil.which("node") and (JAVASCRIPT / "build/src").exists():
            commands["javascript"] = ["node", Path(__file__).with_name("measure.mjs"), folder]
        for runtime, words in commands.items():
            found["runtimes"][runtime] = run(words)
        if not litert_web.missing():
            litert_web.export_model(folder, model, VOCABULARY, {"upload_bits": 32})
            found["runtimes"] |= litert_web.train_in_browser(folder, STREAM)
        for runtime in found["runtimes"]:
            updates[runtime] = np.fromfile(folder / f"{runtime}.update", "<f4").astype(np.float64)
    norm = np.linalg.norm(updates["jax"])
    found["relative_difference_of_the_update"] = {
        runtime: float(np.linalg.norm(update - updates["jax"]) / norm)
        for runtime, update in updates.items()
        if runtime != "jax"
    }
    return found


def prepare(folder: Path, model: str, steps: int, settings: dict[str, Any]) -> None:
    """Write a plan into a folder, the server's tensors, and tokens of so many local steps."""
    plan = make_plan(PlanSource(model, b"{}", VOCABULARY, compose(TrainingSettings, **settings)), versions()[1])
    contents = {"manifest.json": plan.manifest, "step.stablehlo": plan.step, "finish.stablehlo": plan.finish}
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    rng, manifest = np.random.default_rng(0), json.loads(plan.manifest)
    rows = (steps, manifest["batches"]["batch_size"], manifest["batches"]["length"] + 1)
    (0.05 * rng.normal(size=manifest["download"]["values"])).astype("<f4").tofile(folder / "values.f32")
    rng.integers(4, VOCABULARY, rows).astype("<i4").tofile(folder / "tokens.i32")


def run(words: list[Any]) -> dict[str, Any]:
    """Measure with a client of its own environment."""
    done = subprocess.run(
        words, env=os.environ | {"PYTHONPATH": str(CLIENT)}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def javascript_bytes() -> dict[str, int]:
    """Add up the files of the client in TypeScript: of the page, of Node's part with its package, and of Node."""
    parts = {"page": "build/page", "javascript_on_node": "build/src", "javascript_package": "node_modules/@bufbuild"}
    places = {name: JAVASCRIPT / part for name, part in parts.items() if (JAVASCRIPT / part).exists()}
    sizes = {name: sum(one.stat().st_size for one in path.rglob("*") if one.is_file()) for name, path in places.items()}
    if "page" in sizes:
        sizes["litert_of_the_page"] = sum(one.stat().st_size for one in places["page"].glob("litert*"))
    node = shutil.which("node")
    return sizes | ({"node": Path(node).resolve().stat().st_size} if node else {})


def installed_bytes() -> dict[str, dict[str, int]]:
    """Add up what `pip install fedlm-client[...]` brings, by its extras, of the environments that have it."""
    found = {}
    for name, python in PYTHONS.items():
        place = next((python.parents[1] / "lib").glob("python*/site-packages"), None)
        if place is not None:
            for extras in EXTRAS[name]:
                found[extras] = bytes_of(place, extras.split(","))
    return found


def bytes_of(place: Path, extras: list[str]) -> dict[str, int]:
    """Add up the files of the client's packages and of what they need in turn, in a folder of packages.

    Returns:
      Bytes of the files that come with the packages, and those of the bytecode that pip compiles of them.
    """
    there = {canonicalize_name(one.name): one for one in importlib.metadata.distributions(path=[str(place)])}
    configuration = configparser.ConfigParser()
    configuration.read(CLIENT / "setup.cfg")
    wanted = [
        configuration["options"]["install_requires"],
        *(configuration["options.extras_require"][one] for one in extras),
    ]
    names, seen = [Requirement(line) for text in wanted for line in text.split("\n") if line], set()
    while names:
        name = canonicalize_name(names.pop().name)
        if name not in seen:
            seen.add(name)
            needed = map(Requirement, there[name].requires or [])
            names += [one for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    files = sorted({place / file for name in seen for file in there[name].files or []})
    sizes = {"files": 0, "bytecode": 0}
    for path in files:
        if path.exists():
            sizes["bytecode" if path.suffix == ".pyc" else "files"] += path.stat().st_size
    own = [one for one in (CLIENT / "fedlm_client").iterdir() if one.is_file()]
    sizes["files"] += sum(one.stat().st_size for one in own)
    return sizes


def table(model: str, found: dict[str, Any]) -> Table:
    """Lay out what was measured of a model."""
    made = Table("", *found["runtimes"], title=f"{model}, {found['download_values']:,} values")
    for name in ("compile_seconds", "load_seconds", "peak_memory_bytes"):
        made.add_row(name, *(f"{one.get(name, 0):,.1f}" for one in found["runtimes"].values()))
    for name in ("median", "least"):
        made.add_row(
            f"ms a step, {name}", *(f"{one['step_milliseconds'][name]:.1f}" for one in found["runtimes"].values())
        )
    return made


if __name__ == "__main__":
    main()
