"""A round of a plan on one runtime, as a device runs it: `measure.py FOLDER RUNTIME`, with the client's Python.

It needs the client's package alone; it prints a JSON object, and writes the update beside the plan.
"""

import importlib.metadata
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from fedlm_client.confined import Trainer, compile_plan
from fedlm_client.manifest import read_manifest
from fedlm_client.runtimes import HOST

ARM = ("--iree-llvmcpu-target-triple=aarch64-none-linux-android34",)


def main() -> None:
    folder, runtime = Path(sys.argv[1]), sys.argv[2]
    described = (folder / "manifest.json").read_bytes()
    manifest = read_manifest(described)
    contents = [(folder / f"{name}.stablehlo").read_bytes() for name in ("step", "finish")]
    found: dict = {}
    start = time.monotonic()
    if runtime == "iree":
        modules = compile_plan(manifest, described, contents, HOST)
        found["compile_seconds"] = time.monotonic() - start
        found["module_bytes"] = dict(zip(("step", "finish"), map(len, modules), strict=True))
        arm = compile_plan(manifest, described, contents, ARM)
        found["arm64_android_bytes"] = dict(zip(("step", "finish"), map(len, arm), strict=True))
        contents, start = modules, time.monotonic()
    with Trainer(manifest, described, runtime, contents) as trainer:
        found["load_seconds"] = time.monotonic() - start
        batches = manifest.batches
        rows = np.fromfile(folder / "tokens.i32", "<i4").reshape(-1, batches.batch_size, batches.length + 1)
        trainer.begin(np.fromfile(folder / "values.f32", "<f4"))
        seconds = []
        weight, random = np.ones(batches.batch_size), np.zeros((batches.batch_size, 2))
        for tokens in rows:
            start = time.monotonic()
            trainer.step(tokens, weight, random, 0.5)
            seconds.append(time.monotonic() - start)
        _, finite, body = trainer.finish(11, 3, 4_000_000_000)
        assert finite
        found["step_milliseconds"] = {
            "median": 1000 * statistics.median(seconds[2:]),
            "least": 1000 * min(seconds[2:]),
        }
        status = Path(f"/proc/{trainer._process._process.pid}/status").read_text()
        found["peak_memory_bytes"] = 1024 * int(status.split("VmHWM:")[1].split()[0])
    (folder / f"{runtime}.update").write_bytes(body)
    names = {"jax": ("jax", "jaxlib", "numpy"), "iree": ("iree-base-compiler", "iree-base-runtime", "numpy")}[runtime]
    found["versions"] = {name: importlib.metadata.version(name) for name in names}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
