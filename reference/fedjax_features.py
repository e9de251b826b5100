"""Tries FedJAX's quantizers, samplers and data on ours.

Usage: fedjax_features.py TASK, a folder that `benchmarks.interop.task` wrote. Prints, as JSON, of quantizing to 8 bits:
how far a value lies from the common grid and from the other's, in steps, and the bits of both; of samplers: the cohorts
of four rounds; of data: whether all of it comes back as it was, and how ids of FedJAX's tokenizer are numbered here.
"""

import json
import sys
from pathlib import Path
from typing import Any

import fedjax
import jax
import numpy as np

from benchmarks.interop.task import Task
from fedlm.fl_core.updates.compressors import compress_update, decompress_update
from fedlm.fl_core.updates.registry import make_compressor
from fedlm.interop.fedjax import SplitForFedJax, data_from_fedjax
from fedlm.interop.parameters import flatten
from fedlm.simulations.data.splits_in_memory import RowsInMemory


def main(folder: str) -> None:
    """Try all."""
    task = Task.load(Path(folder))
    data = SplitForFedJax(RowsInMemory(task.clients), task.setting.length)
    json.dump(
        {
            "quantizing": quantizing(task.params),
            "cohorts": cohorts(data),
            "data": comes_back(task, data),
            "ids": renumbered(),
        },
        sys.stdout,
    )


def quantizing(params: Any) -> dict[str, float]:
    """Quantize the same tensors on both sides."""
    ours, key, levels = make_compressor("uniform8"), jax.random.PRNGKey(0), 256
    aggregator = fedjax.aggregators.uniform_stochastic_quantizer(levels, key)
    mean, state = aggregator.apply([(b"one", params, 1.0)], aggregator.init())
    compressed = compress_update(ours, jax.random.key(0), params)
    back = decompress_update(ours, jax.random.key(0), compressed, params)
    off_grid = apart = 0.0
    for name, values in flatten(params).items():
        low, step = np.float64(values.min()), np.float64(values.max() - values.min()) / (levels - 1)
        if step == 0:
            continue
        places = [(np.float64(flatten(tree)[name]) - low) / step for tree in (mean, back)]
        off_grid = max(off_grid, *(float(np.abs(place - np.round(place)).max()) for place in places))
        apart = max(apart, *(float(np.abs(place - (values - low) / step).max()) for place in places))
    leaves = jax.tree_util.tree_leaves(params)
    bits = 8 * sum(ours.packed_bytes(leaf.shape) for leaf in leaves)
    return {"off_grid": off_grid, "from_value": apart, "their_bits": float(state.num_bits), "our_bits": bits}


def cohorts(data: SplitForFedJax) -> dict[str, list[list[str]]]:
    """Sample two clients in each of four rounds."""
    kinds = {
        "get": fedjax.client_samplers.UniformGetClientSampler(data, num_clients=2, seed=0),
        "shuffled": fedjax.client_samplers.UniformShuffledClientSampler(
            data.shuffled_clients(100, seed=0), num_clients=2
        ),
    }
    return {
        kind: [[name.decode() for name, _, _ in sampler.sample()] for _ in range(4)] for kind, sampler in kinds.items()
    }


def comes_back(task: Task, data: SplitForFedJax) -> bool:
    """Say whether our data is what it was, through FedJAX's and back."""
    first = next(data.client_ids())
    rest = [name for name in data.client_ids() if name != first]
    parts = (fedjax.SubsetFederatedData(data, names) for names in (rest, [first], [first]))
    found = data_from_fedjax(*parts, vocabulary_size=task.setting.vocabulary_size).split("train")
    return {*found.client_ids} == {name.decode() for name in rest} and all(
        np.array_equal(found.sequences(client, task.setting.length), task.clients[name])
        for client, name in enumerate(found.client_ids)
    )


def renumbered() -> list[list[int]]:
    """Read sentences of the words a, b and c, of which c is not in the vocabulary, as FedJAX's tokenizer has them."""
    tokenizer = fedjax.datasets.stackoverflow.DefaultWordTokenizer(["a", "b"])
    text = fedjax.InMemoryFederatedData({b"one": {"tokens": np.array([b"a b c", b"b c a b c a"], object)}})
    ids = text.preprocess_batch(tokenizer.as_preprocess_batch(4))
    found = data_from_fedjax(ids, ids, ids, vocabulary_size=6, unknown_id=5)
    return found.split("train").sequences(0, 4).tolist()


main(*sys.argv[1:])
