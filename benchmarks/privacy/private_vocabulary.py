"""What a vocabulary that is made with differential privacy costs, against one made of the same text without.

Each data set is imported with a plain vocabulary and with private ones at several epsilons for each client. On the test
clients' text: which share of the plain vocabulary's pieces a private one has, tokens a word, and words that it cannot
spell. Then one small model is pretrained on each, without privacy, for the same number of steps of equally many tokens,
and scored in bits a character of the test text, which does not depend on how text is cut.

    python -m benchmarks.privacy.private_vocabulary --stackexchange cooking.stackexchange.com.7z
"""

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.machine import describe_machine
from benchmarks.privacy.memorization import fedlm
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.models.special_tokens import OOV_ID
from fedlm.simulations.data.describing.description import count_split
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.vocabulary.tokenization import count_words
from fedlm.simulations.plot_style import FAMILIES, MARKERS, MUTED, new_figure, style_frame, to_png

RESULTS = Path(__file__).parent / "results"
PLAIN = "plain"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stackexchange", nargs="*", default=[], metavar="FILE", help="dumps, of one data set")
    parser.add_argument("--epsilons", nargs="*", type=float, default=[1.0, 4.0, 16.0])
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--model", default="transformer_tiny")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    arguments = parser.parse_args()
    sources = {"standard library": ["stdlib"]}
    if arguments.stackexchange:
        sources["Stack Exchange"] = ["stackexchange", *arguments.stackexchange]
    found = {name: compare(arguments, words) for name, words in sources.items()}
    settings = {name: getattr(arguments, name) for name in ("epsilons", "delta", "model", "steps", "length")}
    record = {"machine": describe_machine(), "settings": settings, "data": found}
    arguments.results.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.results / "private_vocabulary.json", json.dumps(record, indent=2) + "\n")
    (arguments.results / "private_vocabulary.png").write_bytes(to_png(plot(record)))
    print(json.dumps(record, indent=2))


def compare(arguments: argparse.Namespace, source: list[str]) -> dict[str, Any]:
    """Import a source with every vocabulary, and measure each."""
    options = {PLAIN: []} | {
        f"{epsilon:g}": [f"--vocabulary-epsilon={epsilon}", f"--vocabulary-delta={arguments.delta}"]
        for epsilon in arguments.epsilons
    }
    with tempfile.TemporaryDirectory() as folder:
        stores = {}
        for name, words in options.items():
            fedlm("data", "import", *source, *words, "--out", f"{folder}/{name}")
            stores[name] = TokenStore.open(Path(folder) / name)
        text = test_text(stores[PLAIN])
        words = count_words(text).total()
        characters = sum(map(len, text))
        pieces = set(vocabulary(stores[PLAIN]))
        measured = {}
        for name, store in stores.items():
            counts = count_split(store.split("test"), store.vocabulary_size)
            tokens, loss = int(counts.tokens.sum()), pretrained_loss(arguments, store, Path(folder) / f"{name}-run")
            measured[name] = {
                "origin": store.header.vocabulary_origin.as_json(),
                "tokens_in_vocabulary": store.vocabulary_size,
                "share_of_plain": len(pieces & set(vocabulary(store))) / len(pieces),
                "tokens_a_word": tokens / words,
                "unknown_share_of_words": int(counts.tokens[OOV_ID]) / words,
                "examples_cut": int(counts.lengths[arguments.length :].sum()) / int(counts.lengths.sum()),
                # An end is predicted after each sentence, and stands for a character of the text.
                "bits_a_character": loss * (tokens + len(text)) / math.log(2) / (characters + len(text)),
            }
        clients = stores[PLAIN].header.splits["train"].clients
        return {"train_clients": clients, "words": words, "characters": characters, "vocabularies": measured}


def test_text(store: TokenStore) -> list[str]:
    split = store.split("test")
    return [
        store.tokenizer.decode(client.example(number))
        for client in map(split.client, range(split.num_clients))
        for number in range(client.num_examples)
    ]


def vocabulary(store: TokenStore) -> list[str]:
    return list(json.loads((store.path / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"])


def pretrained_loss(arguments: argparse.Namespace, store: TokenStore, out: Path) -> float:
    """Mean loss of the test text's tokens, in nats, of a model that is pretrained on a store."""
    fedlm(
        "pretrain",
        "--privacy=none",
        f"--model={arguments.model}",
        f"--data={store.path}",
        f"--steps={arguments.steps}",
        f"--length={arguments.length}",
        "--batch-size=16",
        "--unit=example",
        "--packing=packed",
        "--learning-rate=0.003",
        f"--out={out}",
    )
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))["test_loss"]


def plot(record: dict[str, Any]) -> Figure:
    figure = new_figure(2.6)
    measures = {"tokens_a_word": "tokens a word", "bits_a_character": "bits a character"}
    for axes, (measure, label) in zip(figure.subplots(1, 2), measures.items(), strict=True):
        for (name, data), colour, marker in zip(record["data"].items(), FAMILIES, MARKERS, strict=False):
            found = data["vocabularies"]
            epsilons = record["settings"]["epsilons"]
            values = [found[f"{epsilon:g}"][measure] for epsilon in epsilons]
            axes.plot(epsilons, values, color=colour, marker=marker, label=name)
            axes.axhline(found[PLAIN][measure], color=colour, linestyle=":")
        style_frame(axes)
        axes.set_xscale("log")
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
        axes.set_xlabel("epsilon of the vocabulary (dotted: plain)", fontsize=8, color=MUTED)
        axes.set_title(label, fontsize=9, loc="left")
        axes.margins(y=0.1)
        axes.set_ylim(bottom=0)
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    main()
