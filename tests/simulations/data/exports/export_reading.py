"""Reading exports in tests: {feature: {split: {client id: [value, ..]}}}, with clients in the files' order."""

import sqlite3
from collections import defaultdict
from contextlib import closing

import pyarrow.parquet as pq

from fedlm.simulations.data.formats.fedjax import unpack_client
from fedlm.simulations.data.formats.tensorflow_federated import parse_example
from fedlm.simulations.data.splits import SPLITS

FEDJAX_SPLITS = {"train": "train", "heldout": "held_out", "test": "test"}


def new_features():
    return defaultdict(lambda: {split: {} for split in SPLITS})


def rows(path, query, *values):
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(query, values).fetchall()


def read_tff(path):
    features = new_features()
    clients = rows(path, "SELECT client_id, split_name FROM client_metadata ORDER BY rowid")
    examples = defaultdict(list)
    query = "SELECT split_name, client_id, serialized_example_proto FROM examples ORDER BY rowid"
    for split, client_id, data in rows(path, query):
        examples[split, client_id].append(parse_example(data))
    names = {name for some in examples.values() for example in some for name in example}
    for client_id, split in clients:
        for name in names:
            values = [example[name] for example in examples[split, client_id]]
            if name == "tokens":
                values = [text.decode() for (text,) in values]
            features[name][split][client_id] = values
    return features


def read_fedjax(path):
    features = new_features()
    for split, name_of_split in FEDJAX_SPLITS.items():
        (file,) = path.glob(f"*_{name_of_split}.sqlite")
        for client_id, data, count in rows(file, "SELECT * FROM federated_data ORDER BY rowid"):
            for name, array in unpack_client(data).items():
                assert len(array) == count
                features[name][split][client_id.decode()] = [text.decode() for text in array]
    return features


def read_parquet(path):
    features = new_features()
    names = {"text": "tokens", "tokens": "ids", "position": "position"}
    for row in pq.read_table(path).to_pylist():
        for column, name in names.items():
            features[name][row["split"]].setdefault(row["client_id"], []).append(row[column])
    return features


READERS = {"tff": read_tff, "fedjax": read_fedjax, "parquet": read_parquet}
