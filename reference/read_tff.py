"""Prints what TensorFlow Federated reads from an SQLite file: {split: {client id: [example, ..]}}.

Usage: read_tff.py FILE
"""

import json
import sys

import tensorflow as tf
import tensorflow_federated as tff


def main(path: str) -> None:
    """Read every split, client and example."""
    json.dump({split: read(path, split) for split in ("train", "heldout", "test")}, sys.stdout)


def read(path: str, split: str) -> dict[str, list]:
    """Return the examples of every client of a split."""
    spec = {"tokens": tf.TensorSpec([], tf.string)}
    data = tff.simulation.datasets.load_and_parse_sql_client_data(path, spec, split)
    return {
        client_id: [
            {name: value.decode() for name, value in example.items()}
            for example in data.create_tf_dataset_for_client(client_id).as_numpy_iterator()
        ]
        for client_id in data.client_ids
    }


main(*sys.argv[1:])
