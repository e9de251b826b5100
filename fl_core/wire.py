"""The bytes of an upload: a short header, every tensor as its compressor packs it, a checksum.

Layout, little-endian: magic `FLU1` (4 bytes), CRC-32 of the plan (compressor and shapes, 4 bytes), the packed
tensors in the order of `jax.tree_util.tree_leaves`, CRC-32 of all that precedes (4 bytes).
"""

import struct
import zlib

import jax
import numpy as np

from fl_core.compression import Compressor
from fl_core.errors import UserError
from models.base import Params

_HEADER = struct.Struct("<4sI")
_CHECKSUM = struct.Struct("<I")


class WireError(UserError):
    """Bytes are not an upload for this plan, or were damaged on the way."""


def pack_update(compressor: Compressor, compressed: list, like: Params) -> bytes:
    """Serialize a compressed update.

    Args:
      compressor: what compressed it.
      compressed: the result of `compress_update`.
      like: arrays, or shapes, of the update's structure.

    Returns:
      The bytes to send; as many as `upload_bytes` says.
    """
    body = _header(compressor, like) + b"".join(map(compressor.pack, compressed))
    return body + _CHECKSUM.pack(zlib.crc32(body))


def unpack_update(compressor: Compressor, message: bytes, like: Params) -> list:
    """Read what `pack_update` wrote, trusting nothing about it.

    Args:
      compressor: what the plan told the client to compress with.
      message: the bytes received.
      like: arrays, or shapes, of the update's structure.

    Returns:
      The compressed tensors for `decompress_update`, as NumPy arrays.

    Raises:
      WireError: the length, header or checksum is not that of such an update, or a float is not finite.
    """
    expected = upload_bytes(compressor, like)
    if len(message) != expected:
        raise WireError(f"the upload has {len(message)} bytes, but an update of this model has {expected}")
    body, (checksum,) = message[: -_CHECKSUM.size], _CHECKSUM.unpack(message[-_CHECKSUM.size :])
    if checksum != zlib.crc32(body):
        raise WireError("the upload's checksum does not match: it was damaged on the way; send it again")
    if body[: _HEADER.size] != _header(compressor, like):
        raise WireError("the upload was not made for this plan: its header names another compression or shapes")
    tensors = []
    offset = _HEADER.size
    for index, leaf in enumerate(jax.tree_util.tree_leaves(like)):
        end = offset + compressor.packed_bytes(leaf.size)
        tensors.append(compressor.unpack(body[offset:end], leaf.size))
        if not all(np.isfinite(part).all() for part in jax.tree_util.tree_leaves(tensors[-1])):
            raise WireError(f"tensor {index} of the upload holds a number that is not finite")
        offset = end
    return tensors


def upload_bytes(compressor: Compressor, like: Params) -> int:
    """Compute the exact size of an upload without making one.

    Args:
      compressor: how updates are compressed.
      like: arrays, or shapes, of the update's structure.

    Returns:
      The length of what `pack_update` returns.
    """
    tensors = sum(compressor.packed_bytes(leaf.size) for leaf in jax.tree_util.tree_leaves(like))
    return _HEADER.size + tensors + _CHECKSUM.size


def download_bytes(params: Params) -> int:
    """Compute the size of a model that is broadcast as float32.

    Args:
      params: its parameters, or their shapes.

    Returns:
      Four bytes for every parameter.
    """
    return 4 * sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))


def _header(compressor: Compressor, like: Params) -> bytes:
    shapes = [tuple(leaf.shape) for leaf in jax.tree_util.tree_leaves(like)]
    return _HEADER.pack(b"FLU1", zlib.crc32(repr((compressor, shapes)).encode()))
