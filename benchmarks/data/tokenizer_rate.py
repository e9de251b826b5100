"""How fast text becomes token ids: our tokenizers, Hugging Face's `tokenizers`, and plain Python.

The text is the standard library's documentation, and that of files named with --text, one text a line. Three settings:
the WordPiece tokenizer of a store; 10,000 words cut out of raw text; and the same words already separated by spaces,
as published data sets have them. In each, ours, which remembers the pieces of text that it has met (once with nothing
remembered, once with all), runs against `encode_batch` of Hugging Face's library with the same tokenizer.json, and
where words are separated also against the loop over a dict with which such data is read elsewhere. All give the same
ids, which is checked; ours as arrays, the others as lists. They run in turn, and ratios are taken run by run. Run it
when nothing else runs:

    fedlm data import stdlib --out runs/stdlib
    python -m benchmarks.data.tokenizer_rate --data runs/stdlib
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tokenizers

from benchmarks.machine import describe_machine
from fedlm.fl_core.privacy.vocabulary_origin import TOKENIZER_FILE
from fedlm.models.special_tokens import OOV_ID
from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.sources.standard_library import module_files, read_modules, stdlib_root
from fedlm.simulations.data.vocabulary import word_level
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer, count_words
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings

AT_ONCE = 20_000  # as imports do
THREADS = (1, 2)
WORDS = TokenizerSettings(tokenizer="words", vocabulary_size=10_000)
RESULTS = Path(__file__).parent / "results" / "tokenizer_rate.json"

Encode = Callable[[Sequence[str]], Sequence]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="token store whose WordPiece tokenizer is measured")
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="files with more text, one text a line")
    parser.add_argument("--repeats", type=int, default=5, help="how often each is timed")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the JSON file to write")
    arguments = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(max(THREADS))  # read by the library when it first starts threads
    corpora = {"stdlib": stdlib_sentences()}
    corpora |= {path.stem: path.read_text(encoding="utf-8").splitlines() for path in arguments.text}
    wordpiece = Tokenizer.load(arguments.data / TOKENIZER_FILE)
    measured = {name: measure_corpus(texts, wordpiece, arguments.repeats) for name, texts in corpora.items()}
    machine = {**describe_machine(), "tokenizers": version("tokenizers")}
    results = {"machine": machine, "texts_at_once": AT_ONCE, "repeats": arguments.repeats, "corpora": measured}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


def stdlib_sentences() -> list[str]:
    modules = read_modules(module_files(stdlib_root()), SkippedCounts())
    return [sentence for module in modules for sentence in module.sentences]


def measure_corpus(texts: list[str], wordpiece: Tokenizer, repeats: int) -> dict:
    words = Tokenizer.train(count_words(texts, WORDS), WORDS)
    separated_texts = separate(texts)
    separated = Tokenizer.train(count_words(separated_texts, WORDS, True), WORDS, True)
    return {
        "sentences": len(texts),
        "characters": sum(map(len, texts)),
        "wordpiece": measure(texts, wordpiece, repeats),
        "words": measure(texts, words, repeats),
        "words, separated": measure(separated_texts, separated, repeats, plain_python=True),
    }


def separate(texts: list[str]) -> list[str]:
    cutter = word_level.cutter(WORDS, False)
    normalize, split = cutter.normalizer.normalize_str, cutter.splitter.pre_tokenize_str
    return [" ".join(word for word, _ in split(normalize(text))) for text in texts]


def measure(texts: list[str], tokenizer: Tokenizer, repeats: int, plain_python: bool = False) -> dict:
    folder = TemporaryDirectory()
    saved = Path(folder.name) / TOKENIZER_FILE
    tokenizer.save(saved)
    library = tokenizers.Tokenizer.from_file(str(saved))
    vocabulary = library.get_vocab()

    def hugging_face(some: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in library.encode_batch(some)]

    def dict_loop(some: Sequence[str]) -> list[list[int]]:
        return [[vocabulary.get(word, OOV_ID) for word in text.split()] for text in some]

    results = {}
    for threads in THREADS:
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
        runs: dict[str, list[float]] = {}
        for _ in range(repeats):
            ours = Tokenizer.load(saved).encode_batch  # which remembers nothing yet
            entrants = {"ours, first time": ours, "ours, words met before": ours, "hugging face": hugging_face}
            if plain_python:
                entrants["plain python"] = dict_loop
            found = {}
            for name, encode in entrants.items():
                seconds, encoded = timed(encode, texts)
                runs.setdefault(name, []).append(seconds)
                found[name] = [list(map(len, encoded)), np.fromiter(chain.from_iterable(encoded), np.int32).tobytes()]
            assert all(ids == found["hugging face"] for ids in found.values())
        tokens = sum(found["hugging face"][0])
        results[f"{threads} thread{'s' if threads > 1 else ''}"] = summarise(runs, tokens, len(texts))
    return results


def timed(encode: Encode, texts: list[str]) -> tuple[float, list]:
    encoded: list = []
    started = time.perf_counter()
    for first in range(0, len(texts), AT_ONCE):
        encoded += encode(texts[first : first + AT_ONCE])
    return time.perf_counter() - started, encoded


def summarise(runs: dict[str, list[float]], tokens: int, sentences: int) -> dict:
    rates = {
        name: {
            "tokens_per_second": round(tokens / statistics.median(seconds)),
            "sentences_per_second": round(sentences / statistics.median(seconds)),
        }
        for name, seconds in runs.items()
    }
    ratios = {}
    for ours in [name for name in runs if name.startswith("ours")]:
        for peer in [name for name in runs if not name.startswith("ours")]:
            values = [b / a for a, b in zip(runs[ours], runs[peer], strict=True)]
            ratios[f"{ours} / {peer}"] = {
                key: round(function(values), 2)
                for key, function in (("min", min), ("median", statistics.median), ("max", max))
            }
    return {"rates": rates, "ratios": ratios}


if __name__ == "__main__":
    main()
