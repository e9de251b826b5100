"""A round of a plan as a device runs it in Python: `measure.py FOLDER`; prints a JSON object."""

import importlib.metadata
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from fedlm.fedlm_client.plans.confined import LoadedPlan
from fedlm.fedlm_client.plans.manifest import read_manifest


def main() -> None:
    folder = Path(sys.argv[1])
    described = (folder / "manifest.json").read_bytes()
    manifest = read_manifest(described)
    batches, start, seconds = manifest.batches, time.monotonic(), []
    with LoadedPlan(manifest, described, (folder / "model.tflite").read_bytes()) as trainer:
        load = time.monotonic() - start
        rows = np.fromfile(folder / "tokens.i32", "<i4").reshape(-1, batches.batch_size, batches.length + 1)
        trainer.begin(np.fromfile(folder / "values.f32", "<f4"))
        weight, random = np.ones(batches.batch_size), np.zeros((batches.batch_size, 2), np.uint32)
        for tokens in rows:
            start = time.monotonic()
            trainer.step(tokens, weight, random, 0.5)
            seconds.append(1000 * (time.monotonic() - start))
        start = time.monotonic()
        _, finite, _ = trainer.finish(11, 3, 4_000_000_000)
        assert finite
        status = Path(f"/proc/{trainer._process._process.pid}/status").read_text()
        found = {
            "load_seconds": load,
            "step_milliseconds": {"median": statistics.median(seconds[2:]), "least": min(seconds[2:])},
            "finish_milliseconds": 1000 * (time.monotonic() - start),
            "peak_memory_bytes": 1024 * int(status.split("VmHWM:")[1].split()[0]),
            "versions": {name: importlib.metadata.version(name) for name in ("ai-edge-litert", "numpy")},
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
