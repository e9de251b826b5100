"""A model of LiteRT beside JAX, in one process: `litert.py TASK`, of {"model", "vocabulary", "steps", "rate"} as JSON.

It is run with the Python of an environment that `make litert` makes, and prints a JSON object: how far the two are from
each other, and how long their steps take in turn. A path in "out" gets the model.
"""

import importlib.metadata
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ai_edge_litert.interpreter import Interpreter

from fedlm.fl_core.client_algorithms.interface import Broadcast, sent_by_server
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.compression.compressors import compress_update
from fedlm.fl_core.deployment.plans.litert.model import make_litert_plan
from fedlm.fl_core.deployment.plans.plan import PlanSource, model_of_clients
from fedlm.fl_core.local_sgd import algorithm_step
from fedlm.fl_core.randomness import device_key
from fedlm.fl_core.settings import TrainingSettings
from fedlm.models.base import Batch
from fedlm.models.special_tokens import OWN, PAD_ID

STREAM = {"seed": 11, "round_number": 3, "client_index": 4_000_000_000}


def main() -> None:
    task = json.loads(sys.argv[1])
    settings = compose(TrainingSettings, **task.get("settings", {}))
    plan = make_litert_plan(PlanSource(task["model"], b"{}", task["vocabulary"], settings))
    manifest = json.loads(plan.manifest)
    if "out" in task:
        Path(task["out"]).write_bytes(plan.model)
    device = _Device(plan.model, manifest)
    model, _ = model_of_clients(task["model"], task["vocabulary"], settings)
    training, compressor = settings.local_training(), settings.compressor()
    params = model.init(jax.random.key(1))
    shapes = sent_by_server(training.algorithm, params)
    zeros = jax.tree_util.tree_map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes.memory)
    server = Broadcast(params, zeros)
    local, rate = training.algorithm.init(server), jnp.float32(task["rate"])

    @jax.jit
    def step(local: Any, batch: Batch) -> Any:
        return algorithm_step(model, training.algorithm, server, local, batch, rate, training.gradient_clip)

    download = list(map(np.asarray, jax.tree_util.tree_leaves(server)))
    state = [
        np.zeros(one["shape"], one["dtype"]) if one["begins"] is None else download[one["begins"]]
        for one in manifest["state"]
    ]
    sums, known = [np.float32(0)] * 3, np.zeros(3)
    seconds: dict[str, list[float]] = {"jax": [], "litert": []}
    for tokens, weight in batches(task["steps"], settings, task["vocabulary"]):
        begun = time.perf_counter()
        local, added = jax.block_until_ready(step(local, Batch(jnp.array(tokens), jnp.array(weight))))
        trained = time.perf_counter()
        given = {"state": state, "download": download, "sums": sums, "tokens": [tokens], "weight": [weight]}
        made = device.run("train", given | {"learning_rate": [np.float32(task["rate"])]})
        seconds["jax"].append(trained - begun)
        seconds["litert"].append(time.perf_counter() - trained)
        state, sums, known = made["state"], made["sums"], known + np.array(added)
    ours = list(map(np.asarray, jax.tree_util.tree_leaves(local)))
    # From the same numbers on both sides: what is quantized is discontinuous.
    words = {name: [np.uint32(number).astype(np.int32)] for name, number in STREAM.items()}
    sent = device.run("finish", {"state": ours, "download": download} | words)

    @jax.jit
    def finish(local: Any) -> list[jax.Array]:
        update = training.algorithm.finish(server, local)
        key = jax.random.fold_in(device_key(STREAM["seed"], "upload", STREAM["round_number"]), STREAM["client_index"])
        return [piece for tensor in compress_update(compressor, key, update) for piece in compressor.pieces(tensor)]

    prompt = np.full((1, settings.length), PAD_ID, np.int32)
    prompt[0, :6] = [OWN.bos, 7, 5, 9, 4, 8]
    parameters = list(map(np.asarray, jax.tree_util.tree_leaves(params)))
    guess = device.run("infer", {"parameters": parameters, "tokens": [prompt], "count": [np.array([6], np.int32)]})
    logits = np.asarray(model.apply(params, jnp.array(prompt)))[0, 5]
    found = {
        "update": distance(state, ours) / distance(ours, jax.tree_util.tree_leaves(training.algorithm.init(server))),
        "sums": float(np.max(np.abs(np.array(sums) / known - 1))),
        "logits": distance([guess["logits"][0]], [logits]) / float(np.linalg.norm(logits)),
        "upload": [
            [one.dtype.name, int(one.size), int(np.sum(one != other)), float(np.max(np.abs(other - one.astype(float))))]
            for one, other in zip(sent["upload"], map(np.asarray, finish(local)), strict=True)
        ],
        "finite": int(sent["finite"][0]),
        "milliseconds": {name: 1000 * median(times[2:] or times) for name, times in seconds.items()},
        "least_milliseconds": {name: 1000 * min(times) for name, times in seconds.items()},
        "ratio": median(one / other for one, other in zip(seconds["litert"], seconds["jax"], strict=True)),
        "bytes": {"model": len(plan.model), "manifest": len(plan.manifest)},
        "operations": {name: one["operations"] for name, one in manifest["signatures"].items()},
        "versions": {name: importlib.metadata.version(name) for name in ("ai-edge-litert", "jax", "numpy")},
    }
    print(json.dumps(found))


class _Device:
    """Runs the functions of a model as an application does, by the manifest."""

    def __init__(self, model: bytes, manifest: dict[str, Any]):
        interpreter = Interpreter(model_content=model, num_threads=1)
        interpreter.allocate_tensors()
        self._signatures = manifest["signatures"]
        self._runners = {name: interpreter.get_signature_runner(name) for name in self._signatures}

    def run(self, name: str, given: dict[str, list[Any]]) -> dict[str, list[Any]]:
        signature = self._signatures[name]
        made = self._runners[name](**{one["name"]: given[one["role"]][one["index"]] for one in signature["inputs"]})
        results: dict[str, list[Any]] = {}
        for one in signature["outputs"]:
            results.setdefault(one["role"], []).append(made[one["name"]])
        return results


def batches(steps: int, settings: TrainingSettings, vocabulary: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw batches of sequences of all lengths, the last row of which only fills."""
    rng, shape = np.random.default_rng(0), (settings.client_batch_size, settings.length + 1)
    drawn = []
    for _ in range(steps):
        tokens, lengths = rng.integers(3, vocabulary, shape), rng.integers(2, shape[1] + 1, shape[0])
        tokens[:, 0] = OWN.bos
        tokens[np.arange(shape[0]), lengths - 1] = OWN.eos
        tokens = np.where(np.arange(shape[1]) < lengths[:, None], tokens, PAD_ID)
        tokens[-1] = PAD_ID
        drawn.append((tokens.astype(np.int32), (np.arange(shape[0]) < shape[0] - 1).astype(np.float32)))
    return drawn


def distance(these: Any, those: Any) -> float:
    pairs = zip(these, those, strict=True)
    return float(np.sqrt(sum(np.sum((np.asarray(a, np.float64) - np.asarray(b, np.float64)) ** 2) for a, b in pairs)))


if __name__ == "__main__":
    main()
