"""The bytes of an upload: a short header, every tensor as its compressor packs it, a checksum. And those of a download.

Layout of an upload, little-endian: magic `FLU2` (4 bytes), the first 4 bytes of its plan's digest (scheme and shapes),
the packed tensors in the order of `jax.tree_util.tree_leaves`, CRC-32 of all that precedes (4 bytes). A download is the
model's tensors in that order and nothing else. docs/protocol.md says it for other languages.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from fedlm.fl_core.errors import UserError
from fedlm.fl_core.updates.compressors import Buffer, Compressor, Scheme, Shape, keys_of_tensors, shapes_of
from fedlm.models.base import Params

DownloadEncoding = Literal["float32", "bfloat16"]
_DOWNLOAD_TYPES: dict[str, type] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
_HEADER = struct.Struct("<4s4s")
_CHECKSUM = struct.Struct("<I")


class WireError(UserError):
    """Bytes are not an upload for this plan, or were damaged on the way."""


class DamagedError(WireError):
    """Bytes were changed, or cut off, on the way; the sender may send them again."""


def pack_update(compressor: Compressor, compressed: list, like: Params) -> bytes:
    """Serialize the result of `compress_update` into `upload_bytes` bytes; `like` has the update's shapes."""
    pieces = [piece for tensor in compressed for piece in compressor.pieces(tensor)]
    body = upload_header(compressor, like) + b"".join(np.asarray(piece).tobytes() for piece in pieces)
    return body + _CHECKSUM.pack(_checksum(body))


def check_update(compressor: Compressor, message: Buffer, like: Params) -> None:
    """Check what claims to be what `pack_update` wrote, trusting nothing about it.

    Raises:
      WireError: the length or header is not that of such an update, or a float is not finite.
      DamagedError: the checksum does not match.
    """
    message, expected = memoryview(message), upload_bytes(compressor, like)
    if len(message) != expected:
        raise WireError(f"the upload has {len(message)} bytes, but an update of this model has {expected}")
    body, (checksum,) = message[: -_CHECKSUM.size], _CHECKSUM.unpack(message[-_CHECKSUM.size :])
    if checksum != _checksum(body):
        raise DamagedError("the upload's checksum does not match: it was damaged on the way; send it again")
    if body[: _HEADER.size] != upload_header(compressor, like):
        raise WireError("the upload was not made for this plan: its header names another compression or shapes")
    for index, (start, end, _) in enumerate(_places(compressor, like)):
        if not compressor.is_finite(body[start:end]):
            raise WireError(f"tensor {index} of the upload holds a number that is not finite")


def unpack_update(compressor: Compressor, message: jax.Array, like: Params) -> list:
    """Read a message, uint8 [bytes], in which `check_update` has found nothing wrong; traceable by JAX.

    Returns:
      The compressed tensors for `decompress_update`.
    """
    return [compressor.unpack(message[start:end], shape) for start, end, shape in _places(compressor, like)]


def squared_norm(compressor: Compressor, key: jax.Array, message: jax.Array, like: Params) -> jax.Array:
    """Sum the squares of all values that `decompress_update` would give of a message; traceable by JAX."""
    total, places = jnp.float32(0.0), list(_places(compressor, like))
    for keys, (start, _, shape) in zip(keys_of_tensors(compressor, key, len(places)), places, strict=True):
        total += compressor.squared_norm(keys, message, start, shape)
    return total


def upload_bytes(compressor: Compressor, like: Params) -> int:
    """Compute the exact size of an upload without making one."""
    tensors = sum(compressor.packed_bytes(leaf.shape) for leaf in jax.tree_util.tree_leaves(like))
    return _HEADER.size + tensors + _CHECKSUM.size


def download_bytes(params: Params) -> int:
    """Compute the size of a model that is broadcast as float32."""
    return 4 * sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))


def pack_parameters(params: Params, encoding: DownloadEncoding = "float32") -> Iterator[memoryview]:
    """Serialize a model, float32 arrays, for its download, tensor by tensor; bfloat16 rounds it."""
    for leaf in jax.tree_util.tree_leaves(params):
        yield np.ascontiguousarray(leaf, _DOWNLOAD_TYPES[encoding]).reshape(-1).view(np.uint8).data


def unpack_parameters(content: Buffer, encoding: str, like: Params) -> Params:
    """Read what `pack_parameters` wrote into float32 NumPy arrays, which may share its memory.

    Raises:
      WireError: the encoding is not known, or the length is not that of this model.
    """
    if encoding not in _DOWNLOAD_TYPES:
        raise WireError(f"the download's encoding is {encoding!r}, but must be one of {', '.join(_DOWNLOAD_TYPES)}")
    kind, offset = np.dtype(_DOWNLOAD_TYPES[encoding]), 0
    leaves, structure = jax.tree_util.tree_flatten(like)
    expected = kind.itemsize * sum(leaf.size for leaf in leaves)
    if len(content) != expected:
        raise WireError(f"the download has {len(content)} bytes, but this model has {expected}: it is another model")
    arrays = []
    for leaf in leaves:
        array = np.frombuffer(content, kind, leaf.size, offset)
        arrays.append(array.astype(np.float32, copy=False).reshape(leaf.shape))
        offset += array.nbytes
    return jax.tree_util.tree_unflatten(structure, arrays)


def _places(compressor: Compressor, like: Params) -> Iterator[tuple[int, int, Shape]]:
    """Say where in an upload each tensor begins and ends, and its shape."""
    start = _HEADER.size
    for leaf in jax.tree_util.tree_leaves(like):
        end = start + compressor.packed_bytes(leaf.shape)
        yield start, end, leaf.shape
        start = end


def _checksum(body: Buffer) -> int:
    # Simulations only count bytes; they run where this package is not installed.
    from isal import isal_zlib

    return isal_zlib.crc32(body)


def upload_header(compressor: Compressor, like: Params) -> bytes:
    """Make what an upload of this plan begins with; `like` has the update's shapes."""
    return _HEADER.pack(b"FLU2", plan_digest(compressor.scheme, shapes_of(like)))


def plan_digest(scheme: Scheme, shapes: Sequence[Shape]) -> bytes:
    """Compute the SHA-256 of how an update becomes bytes, laid out as docs/protocol.md says."""
    settings = sorted((name.encode(), value) for name, value in scheme.settings.items())
    digest = hashlib.sha256(struct.pack("<III", scheme.number, scheme.version, len(settings)))
    for name, value in settings:
        digest.update(struct.pack(f"<I{len(name)}sI", len(name), name, value))
    digest.update(struct.pack("<I", len(shapes)))
    for shape in shapes:
        digest.update(struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
    return digest.digest()
