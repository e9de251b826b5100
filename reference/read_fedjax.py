"""Prints what FedJAX reads from SQLite files: for each [[client id, size, {feature: {dtype, shape, values}}], ..].

Usage: read_fedjax.py FILE ..
"""

import json
import sys
from typing import Any

import fedjax
import numpy as np


def main(*paths: str) -> None:
    """Read every client, in the files' order."""
    json.dump([read(path) for path in paths], sys.stdout)


def read(path: str) -> list[list[Any]]:
    """Return the clients of a file."""
    data = fedjax.SQLiteFederatedData.new(path)
    sizes = dict(data.client_sizes())
    return [
        [client_id.decode(), sizes[client_id], {name: describe(a) for name, a in client.all_examples().items()}]
        for client_id, client in data.clients()
    ]


def describe(array: np.ndarray) -> dict[str, Any]:
    """Return an array in words of JSON."""
    values = [value.decode() for value in array] if array.dtype == object else array.tolist()
    return {"dtype": str(array.dtype), "shape": array.shape, "values": values}


main(*sys.argv[1:])
