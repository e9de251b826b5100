"""A private gradient step against the non-private one: ours by each method, jax-privacy's, PyTorch's and Opacus'.

A step is the gradient of a logical batch, without optimizer and noise (`benchmarks/clipping/steps.py`). Each kind is
first swept over microbatches and, on a CPU, over one device with all cores and one device a core; then the fastest
settings of all kinds take turns, in one order and in the reverse order by passes; of our private steps those that need
at most 1.3 times the memory of the non-private one. Ratios are taken pass by pass: over
the best non-private step, over jax-privacy's best setting, over PyTorch's non-private step. Memory is what the compiler
planned for arguments, outputs and temporaries of one device. PyTorch allocates as it goes, and how much of its process
is a step's cannot be told as exactly: its memory is left out.

    python -m benchmarks.clipping.against_peers

`make bench-peers` makes the environment of PyTorch and Opacus; without it they are left out. Run it when nothing else
runs. On an accelerator, `benchmarks.accelerator` measures such steps of large models.
"""

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from benchmarks.clipping.measurement import (
    Candidate,
    Started,
    Trial,
    finalists,
    memory_limit,
    run_passes,
    summarize,
    sweep,
)
from benchmarks.clipping.report import plot, table
from benchmarks.clipping.steps import KINDS, Setting, compile_step, draw_batch
from benchmarks.machine import describe_machine, measured_before
from benchmarks.simulation.contestants import Contestant, ContestantError
from benchmarks.simulation.peers.protocol import timed
from benchmarks.simulation.peers.task import Settings, Task, save_task
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.process_memory import keep_freed_memory
from fedlm.models.base import Batch, Model, Params, WeightedBatch
from fedlm.models.registry import MODELS, create_model

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
LOGS = ROOT / "runs/benchmark/clipping"
PEERS = ROOT / "benchmarks/simulation/peers/.venv/bin/python"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
TABLE_WIDTH = 140
MIB = 2**20


def main() -> None:
    arguments = parse_arguments()
    # As the commands that compute do; PyTorch's process inherits it.
    keep_freed_memory()
    jax.config.update("jax_num_cpu_devices", CORES)
    console = Console()
    console.width = max(console.width, TABLE_WIDTH)
    arguments.results.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": describe_machine(), "setting": setting(arguments), "cases": []}
    results["cases"] = measured_before(arguments.results / "against_peers.json", results, "cases", [])
    partial = arguments.results / "against_peers.partial.json"
    for name in arguments.models:
        for examples, length in arguments.shapes:
            measured = measure_case(name, examples, length, arguments, console.log)
            results["cases"] = with_case(results["cases"], measured)
            write_atomically(partial, json.dumps(results, indent=2) + "\n")
            console.print(table(measured))
    picture = arguments.results / "against_peers.png"
    plot(results["cases"]).savefig(picture.with_suffix(".partial.png"), dpi=120)
    picture.with_suffix(".partial.png").replace(picture)
    partial.replace(arguments.results / "against_peers.json")


def with_case(cases: list[dict[str, Any]], measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Put a case in the place of the one with the same model and shape, or behind all others."""

    def key(case: dict[str, Any]) -> tuple:
        return case["model"], case["examples"], case["length"]

    if key(measured) not in map(key, cases):
        return [*cases, measured]
    return [measured if key(case) == key(measured) else case for case in cases]


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = ("cifg_1m", "si_cifg_1m", "transformer_1m", "si_transformer_1m", "bert_tiny")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(models), metavar="MODEL")
    parser.add_argument(
        "--shapes", nargs="+", type=_shape, default=[(32, 64)], metavar="EXAMPLESxLENGTH", help="logical batches"
    )
    parser.add_argument("--microbatches", nargs="+", type=int, default=[4, 8, 16], help="that are tried")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="what is measured of JAX")
    parser.add_argument("--passes", type=int, default=7, help="how often each of the fastest settings is timed")
    parser.add_argument("--vocabulary", type=int, default=4096, help="number of token ids")
    parser.add_argument("--without-peers", action="store_true", help="leave PyTorch and Opacus out")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that an answer of a peer may take")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    return parser.parse_args(words)


def _shape(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape such as 32x64: 32 examples of 64 tokens")
    return int(match[1]), int(match[2])


def setting(arguments: argparse.Namespace) -> str:
    return (
        "full rows of words with Zipf's frequencies, clip norm 1, float32 parameters and activations, vocabulary "
        f"{arguments.vocabulary}; tied output layers, but untied ones for Opacus, which refuses tied"
    )


def measure_case(
    name: str, examples: int, length: int, arguments: argparse.Namespace, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure all kinds of step on one model and one shape of the batch."""
    case = f"{name}, {examples} x {length}"
    model = create_model(name, arguments.vocabulary)
    params, batch = model.init(jax.random.key(0)), draw_batch(model, examples, length)
    microbatches = [size for size in arguments.microbatches if size <= examples]
    trials: list[Trial] = []
    chosen: list[Trial] = []

    def consider(candidates: list[Candidate]) -> None:
        say(f"{case}: {candidates[0].kind}")
        tried = sweep(candidates)
        keep = finalists(tried, memory_limit(trials))
        chosen.extend(keep)
        # Programs that will not run again need not stay in memory.
        trials.extend(one if one in keep else one._replace(started=Started(_gone, one.started.facts)) for one in tried)

    with contextlib.ExitStack() as stack:
        problems: dict[str, str] = {}
        for kind in arguments.kinds:
            consider(jax_candidates(model, params, batch, kind, microbatches))
        if not arguments.without_peers:
            try:
                peers = stack.enter_context(torch_contestant(name, params, batch, microbatches, arguments))
                for candidates in torch_candidates(peers):
                    consider(candidates)
                say(f"{case}: peers: {peers.ready['configuration']}")
            except ContestantError as error:
                problems["torch"] = str(error)
                say(f"[yellow]{case}: PyTorch and Opacus are left out: {error}[/]")
        seconds = run_passes(chosen, arguments.passes, lambda text: say(f"{case}: {text}"))
    return {
        "model": name,
        "examples": examples,
        "length": length,
        **summarize(trials, seconds),
        "peers": {} if problems or arguments.without_peers else peers.ready,
        "problems": problems,
    }


def _gone() -> float:
    raise RuntimeError("this setting is not among those that are timed in turn")


def jax_candidates(
    model: Model, params: Params, batch: WeightedBatch, kind: str, microbatches: Sequence[int]
) -> list[Candidate]:
    """List the settings of a kind: on one device, and on all where there are more."""
    examples = len(batch.weight)

    def start(setting: Setting) -> Started:
        step = compile_step(model, params, batch, setting)
        facts = {"memory_mib": round(step.memory_bytes / MIB, 2)}
        return Started(lambda: timed(step.run)[0], facts)

    return [
        Candidate(kind, size, devices, lambda size=size, devices=devices: start(Setting(kind, size, devices)))
        for devices in sorted({1, jax.local_device_count()})
        for size in microbatches
        if examples % (devices * size) == 0
    ]


@contextlib.contextmanager
def torch_contestant(
    name: str, params: Params, batch: WeightedBatch, microbatches: Sequence[int], arguments: argparse.Namespace
) -> Iterator[Contestant]:
    """Start PyTorch on the same parameters and batch."""
    if not PEERS.exists():
        raise ContestantError("their environment is missing; `make bench-peers` makes it")
    if isinstance(batch, Batch):
        inputs, targets = batch.tokens[:, :-1], batch.tokens[:, 1:]
    else:
        inputs, targets = batch.inputs, batch.targets  # type: ignore[attr-defined]
    arrays = [np.asarray(part) for part in (inputs, targets)]
    params = jax.tree_util.tree_map(np.asarray, params)
    settings = Settings(name, arguments.vocabulary, len(inputs), 0.0, CORES)
    LOGS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.npz"
        save_task(path, Task(settings, arrays, params, arrays[0]))
        command = [str(PEERS), "-m", "benchmarks.clipping.torch_step", str(path), *map(str, microbatches)]
        log = LOGS / f"{name}-{len(inputs)}x{inputs.shape[1]}.log"
        with contextlib.closing(Contestant(command, log, arguments.timeout, {"PYTHONPATH": str(ROOT)})) as contestant:
            yield contestant


def torch_candidates(contestant: Contestant) -> list[list[Candidate]]:
    """List the settings of each of PyTorch's kinds."""

    def start(variant: str) -> Started:
        loss = contestant.run_round(variant)["loss_after"]
        return Started(lambda: contestant.run_round(variant)["seconds"], {"loss": round(loss, 5)})

    kinds: dict[str, list[Candidate]] = {}
    for variant in contestant.ready["variants"]:
        kind, _, size = variant.partition(" ")
        candidate = Candidate(kind, int(size), None, lambda variant=variant: start(variant))
        kinds.setdefault(kind, []).append(candidate)
    return list(kinds.values())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted; what was measured so far is in against_peers.partial.json")
