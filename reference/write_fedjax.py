"""Writes the three SQLite files of Stack Overflow as FedJAX does.

Usage: write_fedjax.py FOLDER CLIENTS, where the JSON file CLIENTS is {split: {client id: [sentence, ..]}}.
"""

import json
import sys
from pathlib import Path

import fedjax
import numpy as np

NAMES = {"train": "train", "heldout": "held_out", "test": "test"}


def main(folder: str, clients: str) -> None:
    """Write every client."""
    by_split = json.loads(Path(clients).read_text())
    for split, of_split in by_split.items():
        path = Path(folder) / f"stackoverflow_{NAMES[split]}.sqlite"
        with fedjax.SQLiteFederatedDataBuilder(str(path)) as builder:
            builder.add_many((client_id.encode(), features(sentences)) for client_id, sentences in of_split.items())
    json.dump({"clients": sum(map(len, by_split.values()))}, sys.stdout)


def features(sentences: list[str]) -> dict[str, np.ndarray]:
    """Return a client's examples."""
    count = len(sentences)
    text = {
        "creation_date": ["2008-08-10 08:28:52.1 UTC"] * count,
        "tags": ["html|css"] * count,
        "title": ["a title"] * count,
        "tokens": sentences,
        "type": ["question"] * count,
    }
    arrays = {name: np.array([value.encode() for value in values], object) for name, values in text.items()}
    return {**arrays, "score": np.arange(-1, count - 1)}


main(*sys.argv[1:])
