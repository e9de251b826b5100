"""What a model trained centrally repeats of its text, with and without differential privacy.

Both twins are pretrained by `fedlm pretrain` on the same packed sequences of a part of a data set, for the same number
of steps, with the same canaries planted: one without privacy and for so many epochs that it overfits, the other with
DP-SGD's promise of (epsilon, delta) for each sequence. `fedlm memorization` then measures both.

    python -m benchmarks.privacy.memorization --data runs/stdlib

A canary that is planted k times is k privacy units: what is promised for it is k times weaker.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.store.writer import StoreWriter

RESULTS = Path(__file__).parent / "results"
LENGTH, SUFFIX, PREFIXES = 100, 50, (10, 25, 50)
REPEATS = (1, 4, 16)
OPTIONS = ("learning-rate=0.003",)
COLOURS = {"not private": "#d55e00", "private": "#0072b2"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("runs/stdlib"), help="a data set with held-out clients")
    parser.add_argument("--clients", type=int, default=10, help="training clients whose text is used")
    parser.add_argument("--model", default="transformer_tiny")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--canaries", type=int, default=4, help=f"for each of {REPEATS} repeats")
    parser.add_argument(
        "--options", nargs="*", default=OPTIONS, metavar="OPTION=VALUE", help="more of both pretrainings"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        take_clients(arguments.data, data, arguments.clients)
        runs = {name: measure(arguments, name, data, Path(folder)) for name in COLOURS}
    record = {
        "machine": describe_machine(),
        "settings": {name: str(value) for name, value in vars(arguments).items() if name != "results"},
        "runs": runs,
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.results / "memorization.json", json.dumps(record, indent=2) + "\n")
    plot(record).savefig(arguments.results / "memorization.png", dpi=120)
    print(json.dumps(record, indent=2))


def take_clients(source: Path, out: Path, clients: int) -> None:
    """Write a store with all of another but some of its training clients, chosen at random but always the same."""
    store = TokenStore.open(source)
    order = np.random.default_rng(0).permutation(store.split("train").num_clients)
    with StoreWriter(out, store.source, store.tokenizer) as writer:
        for name in ("train", "heldout", "test"):
            split = store.split(name)
            for index in np.sort(order[:clients]) if name == "train" else range(split.num_clients):
                examples = split.client(int(index))
                sequences = [examples.example(number) for number in range(examples.num_examples)]
                writer.add(name, split.client_id(int(index)), sequences)


def pretraining(arguments: argparse.Namespace, name: str, data: Path, out: Path) -> list[str]:
    """The options of `fedlm pretrain` for one of the twins."""
    privacy = [f"--epsilon={arguments.epsilon}", f"--delta={arguments.delta}", "--clipping=bookkeeping"]
    return [
        f"--model={arguments.model}",
        f"--data={data}",
        f"--steps={arguments.steps}",
        f"--batch-size={arguments.batch_size}",
        f"--length={LENGTH}",
        "--unit=example",
        "--packing=packed",
        f"--canaries={arguments.canaries}",
        "--canary-repeats",
        *map(str, REPEATS),
        *(["--privacy=none"] if name == "not private" else privacy),
        *(f"--{option}" for option in arguments.options),
        f"--out={out}",
    ]


def measure(arguments: argparse.Namespace, name: str, data: Path, folder: Path) -> dict[str, Any]:
    """Pretrain one of the twins and measure it."""
    out = folder / name.replace(" ", "_")
    fedlm("pretrain", *pretraining(arguments, name, data, out))
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    prefixes = ["--prefix", *map(str, PREFIXES), f"--suffix={SUFFIX}"]
    found = json.loads(fedlm("memorization", f"--checkpoint={out}", f"--data={data}", "--json", *prefixes))
    shutil.rmtree(out)
    scores = {key: value for key, value in summary.items() if key.startswith(("heldout_", "test_"))}
    return {"scores": scores, "memorization": {key: value for key, value in found.items() if key != "run"}}


def fedlm(*words: str) -> str:
    """What a command prints; its progress goes to our stderr."""
    command = [sys.executable, "-m", "fedlm", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def plot(record: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    extraction, exposure = figure.subplots(1, 2)
    for name, run in record["runs"].items():
        found = run["memorization"]
        rows = found["extraction"]
        for split, dash in (("train", "-"), ("heldout", ":")):
            rates = [row[split]["approximate"] for row in rows]
            middle = 100 * np.array([rate["rate"] for rate in rates])
            spread = [middle - [100 * rate["low"] for rate in rates], [100 * rate["high"] for rate in rates] - middle]
            places = [row["prefix"] for row in rows]
            style = {"color": COLOURS[name], "linestyle": dash, "marker": "o", "capsize": 3}
            extraction.errorbar(places, middle, yerr=np.abs(spread), label=f"{name}, {split}", **style)
        repeats = [str(row["repeats"]) for row in found["canaries"]["by_repeats"]]
        means = [row["mean"] for row in found["canaries"]["by_repeats"]]
        exposure.plot(repeats, means, marker="o", color=COLOURS[name], label=name)
        exposure.axhline(found["canaries"]["largest_by_rank"], color="#dde2e7", zorder=0)
        exposure.axhline(found["canaries"]["chance_mean"], color="#5b6570", linestyle=":", zorder=0)
    extraction.set_xlabel("tokens of the prefix")
    extraction.set_ylabel(f"suffixes of {SUFFIX} tokens extracted, %")
    exposure.set_xlabel("times a canary is in the data")
    exposure.set_ylabel("mean exposure, bits (dotted: chance)")
    for axes in (extraction, exposure):
        axes.legend(frameon=False, fontsize=8)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
