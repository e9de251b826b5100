"""Tokens a second of `fedlm generate`'s generator and of transformers: one model, one file of weights, one CPU.

A model of random weights is written as a run and exported; fedlm reads the run, transformers the export. Both continue
the same prompts, of different lengths, greedily and in float32, in turn, in one order and in the reverse order by
passes, and give the same tokens. Rates are of whole calls, with the reading of prompts; what is compiled and loaded
before is not timed. transformers has the fastest of the numbers of threads that are tried, fedlm takes all cores.

    python -m benchmarks.generation.against_transformers

`make bench-peers` makes the environment of transformers. Run it when nothing else runs.
"""

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from benchmarks.generation.report import plot, table
from benchmarks.machine import describe_machine
from benchmarks.simulation.comparing import pass_ratios, spread
from benchmarks.simulation.contestants import Contestant
from benchmarks.simulation.peers.protocol import timed
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.privacy.origins.vocabulary_origin import TOKENIZER_FILE
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from fedlm.models.base import Params
from fedlm.models.registry import MODELS, create_model
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings
from fedlm.simulations.generation.generating import GenerationSettings, Generator
from fedlm.simulations.weights.exporting import export_model, read_run

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
LOGS = ROOT / "runs/benchmark/generation"
PEERS = ROOT / "benchmarks/simulation/peers/.venv/bin/python"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
LONGEST_PROMPT = 48
TIMEOUT_SECONDS = 300.0


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(words)
    jax.config.update("jax_num_cpu_devices", 1)
    console = Console(width=120)
    results: dict[str, Any] = {
        "machine": describe_machine(),
        "setting": f"greedy, float32, {arguments.tokens} tokens after prompts of different lengths",
        "models": {},
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    for name in arguments.models:
        results["models"][name] = measure_model(name, arguments, console.log)
        console.print(table(name, results["models"][name]))
    write_atomically(arguments.results / "against_transformers.json", json.dumps(results, indent=2) + "\n")
    plot(results["models"]).savefig(arguments.results / "against_transformers.png", dpi=120)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [name for name in MODELS if name.startswith("vaultgemma_")]
    parser.add_argument("--models", nargs="+", choices=names, default=["vaultgemma_20m", "vaultgemma_100m"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8], help="prompts that are continued together")
    parser.add_argument("--tokens", type=int, default=64, help="that each prompt is continued with")
    parser.add_argument("--passes", type=int, default=3, help="how often each side is timed")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    return parser.parse_args(words)


def measure_model(name: str, arguments: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure both sides on one model."""
    with tempfile.TemporaryDirectory() as temporary:
        run, exported = Path(temporary) / "run", Path(temporary) / "exported"
        write_run(run, name)
        export_model(run, exported, "huggingface")
        stored = read_run(run)
        prompts = draw_prompts(stored.tokenizer.vocabulary_size, max(arguments.batches))
        threads = sorted({1, CORES})
        task = {"folder": str(exported), "prompts": prompts, "batches": arguments.batches, "threads": threads}
        (Path(temporary) / "task.json").write_text(json.dumps(task | {"tokens": arguments.tokens}))
        command = [str(PEERS), "-m", "benchmarks.generation.transformers_side", str(Path(temporary) / "task.json")]
        LOGS.mkdir(parents=True, exist_ok=True)
        generator = Generator(stored.entry.build(name, stored.entry.config), stored.params)
        environment = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        peer = Contestant(command, LOGS / f"{name}.log", TIMEOUT_SECONDS, environment)
        with contextlib.closing(peer):
            batches = {
                batch: measure_batch(generator, peer, prompts[:batch], threads, arguments, say)
                for batch in arguments.batches
            }
            weights = 4 * sum(leaf.size for leaf in jax.tree_util.tree_leaves(stored.params))
            limit = {"weight_bytes": weights, "read_bytes_per_second": read_rate()}
            return {"peer": peer.ready, "batches": batches, "memory": limit}


def read_rate() -> float:
    """Measure how many bytes of memory, more than a cache holds, this machine sums a second: a step of one prompt has
    to read all weights."""
    many = jnp.ones(1 << 28, jnp.float32)
    total = jax.jit(jnp.sum)
    total(many).block_until_ready()
    seconds = [timed(lambda: total(many).block_until_ready())[0] for _ in range(5)]
    return many.nbytes / float(np.median(seconds))


def write_run(folder: Path, name: str) -> None:
    """Write a run of a model whose greedy text neither repeats a token nor ends."""
    tokenizer = word_tokenizer(MODELS[name].config.vocabulary_size)
    model = create_model(name, tokenizer.vocabulary_size)

    def stronger(path: Any, leaf: jax.Array) -> np.ndarray:
        # As they are drawn, layers add so little that a token is followed by itself.
        return np.asarray(leaf * 4 if jax.tree_util.keystr(path).endswith("['kernel']") else leaf)

    params: Params = jax.tree_util.tree_map_with_path(stronger, model.init(jax.random.key(0)))
    settings = {"model": name, "privacy": "none"}
    with Checkpoints(folder / "checkpoints") as checkpoints:
        checkpoints.save(1, {"params": params}, {"pretraining": settings, "vocabulary": tokenizer.fingerprint})
    tokenizer.save(folder / TOKENIZER_FILE)


def word_tokenizer(size: int) -> Tokenizer:
    """Make a vocabulary of so many words, four special tokens among them."""
    words = {f"w{number}": size - number for number in range(size - 4)}
    return Tokenizer.train(words, TokenizerSettings(tokenizer="words", vocabulary_size=size - 4))


def draw_prompts(vocabulary: int, count: int) -> list[list[int]]:
    """Draw prompts of different lengths, the first one the longest."""
    rng = np.random.default_rng(0)
    lengths = [LONGEST_PROMPT, *rng.integers(LONGEST_PROMPT // 3, LONGEST_PROMPT, count - 1).tolist()]
    return [[1, *rng.integers(4, vocabulary, length - 1).tolist()] for length in lengths]


def measure_batch(
    generator: Generator,
    peer: Contestant,
    prompts: list[list[int]],
    threads: list[int],
    arguments: argparse.Namespace,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Time both sides in turn on some prompts."""
    batch = len(prompts)
    settings = GenerationSettings(max_tokens=arguments.tokens, batch_size=batch)

    def ours() -> tuple[float, list[list[int]]]:
        seconds, found = timed(lambda: generator.generate(prompts, settings))
        return seconds, [completion.tokens for completion in found]

    def theirs(count: int) -> tuple[float, list[list[int]]]:
        peer.resume()
        answer = peer.run_round(f"{batch} {count}")
        # Threads of its own would go on waiting busily.
        peer.pause()
        return answer["seconds"], answer["tokens"]

    sides: dict[str, Callable[[], tuple[float, list[list[int]]]]] = {"fedlm": ours}
    sides |= {f"transformers, {count} threads": lambda count=count: theirs(count) for count in threads}
    tokens = {side: run()[1] for side, run in sides.items()}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(arguments.passes):
        for side in list(sides)[:: -1 if number % 2 else 1]:
            seconds[side].append(sides[side]()[0])
    rates = {side: [batch * arguments.tokens / each for each in found] for side, found in seconds.items()}
    best = max(list(sides)[1:], key=lambda side: np.median(rates[side]))
    ratio = pass_ratios(rates["fedlm"], rates[best])
    same = agreement(tokens["fedlm"], tokens[best])
    say(f"{generator.model.name}, {batch} at once: {ratio.median:.2f} times as fast, {same:.1%} of tokens the same")
    return {
        "tokens_per_second": {side: {**spread(found)._asdict()} for side, found in rates.items()},
        "best_of_transformers": best,
        "ratio": ratio._asdict(),
        "same_tokens": same,
        "distinct_tokens": len({token for row in tokens["fedlm"] for token in row}),
    }


def agreement(one: list[list[int]], other: list[list[int]]) -> float:
    """Say how many of the tokens are the same up to where rows part, as a part of all."""
    same = sum(
        next((place for place, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), len(x))
        if len(x) == len(y)
        else 0
        for x, y in zip(one, other, strict=True)
    )
    return same / sum(map(len, other))


if __name__ == "__main__":
    main()
