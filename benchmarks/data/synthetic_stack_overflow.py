"""A made-up Stack Overflow in TensorFlow Federated's published form, of any share of its size.

Users have Pareto many sentences with the published minimum of 100 and mean of 397; sentences are those of the
standard library's documentation, so that words are distributed as in real text. The real file has 342,477 training
users with 135.8 M sentences.
"""

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.formats.tensorflow_federated import create_indexes, create_tables, make_example
from fedlm.simulations.data.sources.standard_library import module_files, read_modules, stdlib_root

MINIMUM, MEAN, MAXIMUM = 100, 397, 200_000


def client_sizes(clients: int, seed: int = 0) -> np.ndarray:
    """Draw how many sentences users have; their mean is `MEAN`, whatever the few largest are."""
    shape = MEAN / (MEAN - MINIMUM)
    uniform = (np.random.default_rng(seed).permutation(clients) + 0.5) / clients
    sizes = np.minimum(MINIMUM * uniform ** (-1 / shape), MAXIMUM)
    excess = sizes - MINIMUM
    return (MINIMUM + excess * (MEAN - MINIMUM) / excess.mean()).astype(int)


def write_database(path: Path, clients: int) -> None:
    """Write the database; users of heldout and test are one hundredth as many as those of train."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    connection = sqlite3.connect(partial, isolation_level=None)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    create_tables(connection)
    examples = _examples()
    for split, count in (("train", clients), ("heldout", clients // 100), ("test", clients // 100)):
        sizes = client_sizes(count)
        connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", _rows(split, sizes, examples))
        users = [(f"{split}{user:07d}", split, int(size)) for user, size in enumerate(sizes)]
        connection.executemany("INSERT INTO client_metadata VALUES (?, ?, ?)", users)
    create_indexes(connection)
    connection.execute("COMMIT")
    connection.close()
    partial.rename(path)


def _rows(split: str, sizes: np.ndarray, examples: list[bytes]) -> Iterator[tuple[str, str, bytes]]:
    rng = random.Random(split)
    for user, size in enumerate(sizes):
        for example in rng.choices(examples, k=int(size)):
            yield split, f"{split}{user:07d}", example


def _examples() -> list[bytes]:
    texts = read_modules(module_files(stdlib_root()), SkippedCounts())
    return [
        make_example(
            {
                "creation_date": [b"2016-04-21 08:28:52.12 UTC"],
                "score": [3],
                "tags": [b"python|documentation"],
                "title": [b"how to read the documentation of a module"],
                "tokens": [_separate_words(sentence).encode()],
                "type": [b"answer"],
            }
        )
        for text in texts
        for sentence in text.sentences
    ]


def _separate_words(sentence: str) -> str:
    spaced = "".join(letter if letter.isalnum() or letter in " '-_" else f" {letter} " for letter in sentence.lower())
    return " ".join(spaced.split())
