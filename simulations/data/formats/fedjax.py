"""FedJAX's data format: an SQLite table with one client a row, its arrays packed with msgpack and zlib."""

import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

COLUMNS = ("client_id", "data", "num_examples")
"""Of the table `federated_data`."""

_TABLE = (
    "CREATE TABLE federated_data"
    " (client_id BLOB NOT NULL PRIMARY KEY, data BLOB NOT NULL, num_examples INTEGER NOT NULL)"
)
_ARRAY, _COMPLEX, _SCALAR, _BYTES_ARRAY = 1, 2, 3, 4  # numbers of msgpack extension types


def create_table(connection: sqlite3.Connection) -> None:
    """Create the empty table `federated_data`; raises sqlite3.Error where it exists or cannot be written."""
    connection.execute(_TABLE)


def pack_client(features: Mapping[str, np.ndarray | Sequence[bytes]]) -> bytes:
    """Return a client's examples as FedJAX stores them: by feature, an array of numbers, or bytes of any shape.

    Raises ValueError where a feature holds something else.
    """
    packed = {name: _pack_feature(name, values) for name, values in features.items()}
    return zlib.compress(msgpack.packb(packed))


def unpack_client(data: bytes) -> dict[str, Any]:
    """Return a client's features by name: arrays of numbers, which cannot be written to, and arrays of `bytes` objects.

    Raises ValueError where the data is damaged.
    """
    try:
        features = msgpack.unpackb(zlib.decompress(data), ext_hook=_unpack_extension)
    except (zlib.error, msgpack.UnpackException, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"not msgpack with arrays, compressed by zlib ({error})") from error
    if not isinstance(features, dict):
        raise ValueError(f"found {type(features).__name__}, expected features by name")
    return features


def _pack_feature(name: str, values: np.ndarray | Sequence[bytes]) -> msgpack.ExtType:
    if isinstance(values, np.ndarray) and values.dtype.kind in "biufc":
        little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        return msgpack.ExtType(_ARRAY, msgpack.packb((values.shape, values.dtype.name, little.tobytes())))
    if isinstance(values, np.ndarray):
        shape, flat = values.shape, values.ravel().tolist()
    else:
        shape, flat = (len(values),), list(values)
    if not all(isinstance(value, bytes) for value in flat):
        raise ValueError(f"feature {name!r} holds neither numbers nor only bytes")
    return msgpack.ExtType(_BYTES_ARRAY, msgpack.packb((shape, flat)))


def _unpack_extension(code: int, data: bytes) -> Any:
    if code == _ARRAY:
        return _unpack_array(data)
    if code == _SCALAR:
        return _unpack_array(data)[()]
    if code == _COMPLEX:
        real, imaginary = msgpack.unpackb(data)
        return complex(real, imaginary)
    if code == _BYTES_ARRAY:
        return _unpack_bytes_array(data)
    raise ValueError(f"unknown extension type {code}")


def _unpack_array(data: bytes) -> np.ndarray:
    shape, name, content = msgpack.unpackb(data, raw=True)
    dtype = np.dtype(name.decode()) if isinstance(name, bytes) else None
    if dtype is None or dtype.kind not in "biufc":
        raise ValueError(f"an array of {name!r}")
    return np.frombuffer(content, dtype.newbyteorder("<")).reshape(shape)


def _unpack_bytes_array(data: bytes) -> np.ndarray:
    shape, flat = msgpack.unpackb(data, raw=True)
    if not isinstance(flat, list) or not all(isinstance(value, bytes) for value in flat):
        raise ValueError("an array that should hold bytes")
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return array.reshape(shape)
