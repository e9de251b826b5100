"""Writes an SQLite file as TensorFlow Federated does, with Stack Overflow's features.

Usage: write_tff.py FILE CLIENTS, where the JSON file CLIENTS is {split: {client id: [sentence, ..]}}.
"""

import json
import sys
from pathlib import Path

import tensorflow as tf
import tensorflow_federated as tff


def main(path: str, clients: str) -> None:
    """Write every client; one that is in two splits is refused."""
    by_split = json.loads(Path(clients).read_text())
    splits = {client_id: split for split, of_split in by_split.items() for client_id in of_split}
    if len(splits) != sum(map(len, by_split.values())):
        raise ValueError("a client is in two splits")

    def examples(client_id: str) -> tf.data.Dataset:
        sentences = by_split[splits[client_id]][client_id]
        count = len(sentences)
        return tf.data.Dataset.from_tensor_slices(
            {
                "creation_date": ["2008-08-10 08:28:52.1 UTC"] * count,
                "score": tf.constant(range(-1, count - 1), tf.int64),
                "tags": ["html|css"] * count,
                "title": ["a title"] * count,
                "tokens": sentences,
                "type": ["question"] * count,
            }
        )

    tff.simulation.datasets.save_to_sql_client_data(list(splits), examples, path, split_names_by_client_id=splits)
    json.dump({"clients": len(splits)}, sys.stdout)


main(*sys.argv[1:])
