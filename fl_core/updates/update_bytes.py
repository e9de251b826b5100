"""The bytes of an upload: a short header, every tensor as its compressor packs it, a checksum. And those of a download.

Layout of an upload, little-endian: magic `FLU2` (4 bytes), the first 4 bytes of its plan's digest (scheme and shapes),
the packed tensors in the order of `jax.tree_util.tree_leaves`, CRC-32 of all that precedes (4 bytes). A download is the
model's tensors in that order and nothing else. docs/protocol.md says it for other languages.
"""

import math
import mmap
import struct
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from fedlm.fedlm_client.link.protocol import UPLOAD_MAGIC, upload_plan_digest
from fedlm.fl_core.errors import UserError
from fedlm.fl_core.updates.compressors import Buffer, Compressor, Cut, Scheme, Shape, keys_of_tensors, shapes_of
from fedlm.models.base import Params

DownloadEncoding = Literal["float32", "bfloat16"]
_DOWNLOAD_TYPES: dict[str, type] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
_HEADER = struct.Struct("<4s4s")
_CHECKSUM = struct.Struct("<I")
_VALUES_AT_ONCE, _BYTES_AT_ONCE, _ALIGNMENT = 1 << 20, 1 << 22, 64


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
    message, expected, crc = memoryview(message), upload_bytes(compressor, like), 0
    if len(message) != expected:
        raise WireError(f"the upload has {len(message)} bytes, but an update of this model has {expected}")
    body, (checksum,) = message[: -_CHECKSUM.size], _CHECKSUM.unpack(message[-_CHECKSUM.size :])
    for start in range(0, len(body), _BYTES_AT_ONCE):
        crc = _checksum(body[start : start + _BYTES_AT_ONCE], crc)
        _let_go(message)
    if checksum != crc:
        raise DamagedError("the upload's checksum does not match: it was damaged on the way; send it again")
    if body[: _HEADER.size] != upload_header(compressor, like):
        raise WireError("the upload was not made for this plan: its header names another compression or shapes")
    for part in parts_of(compressor, shapes_of(like)):
        content = part.content(message).data
        for index, (start, end, _) in enumerate(_places(compressor, part.shapes, part.skip)):
            if not compressor.is_finite(content[start:end]):
                raise WireError(f"tensor {part.first + index} of the upload holds a number that is not finite")


class Part(NamedTuple):
    """What of an upload is worked on at once: tensors that follow one another, or some values of a large one, which
    are a tensor of one axis by themselves.

    Attributes:
      first: place of the first tensor among all.
      shapes: of the tensors.
      skip: bytes before the first of them.
      spans: where the bytes lie in the upload, which are to be laid end to end.
      value: which value of its tensor the first one is; None where tensors are whole.
    """

    first: int
    shapes: tuple[Shape, ...]
    skip: int
    spans: tuple[tuple[int, int], ...]
    value: int | None = None

    def content(self, message: memoryview) -> np.ndarray:
        """Take the bytes out of an upload, uint8 [bytes]; of one that is in a file, no other stays in memory."""
        pieces = [np.frombuffer(message[start:end], np.uint8) for start, end in self.spans]
        found = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        if isinstance(message.obj, mmap.mmap):
            found = found.copy() if len(pieces) == 1 else found
            _let_go(message)
        return found


def parts_of(compressor: Compressor, shapes: Sequence[Shape], most: int = _VALUES_AT_ONCE) -> list[Part]:
    """Cut an upload of tensors of these shapes into parts of so many values at most, where its compressor allows."""
    parts: list[Part] = []
    group: list[tuple[int, int, Shape]] = []

    def close(first: int) -> None:
        if group:
            start, end = group[0][0], group[-1][1]
            skip = start % _ALIGNMENT  # JAX takes memory as it is only from there
            tensors = tuple(shape for _, _, shape in group)
            parts.append(Part(first - len(group), tensors, skip, ((start - skip, end),)))
            group.clear()

    for index, place in enumerate(_places(compressor, shapes, _HEADER.size)):
        size = math.prod(place[2])
        if size + sum(math.prod(shape) for _, _, shape in group) > most:
            close(index)
        if size > most and compressor.cut is not None:
            parts += _pieces(compressor.cut, index, place, most)
        else:
            group.append(place)
    close(len(shapes))
    return parts


def _pieces(cut: Cut, index: int, place: tuple[int, int, Shape], most: int) -> Iterator[Part]:
    start, _, shape = place
    codes, size = start + cut.head, math.prod(shape)
    for value in range(0, size, most):
        count = min(most, size - value)
        begin, end = codes + value * cut.bits // 8, codes - (-(value + count) * cut.bits // 8)
        spans = ((start, codes), (begin, end)) if cut.head else ((begin, end),)
        yield Part(index, ((count,),), 0, spans, value)


def unpack_update(compressor: Compressor, message: jax.Array, like: Params) -> list:
    """Read a message, uint8 [bytes], in which `check_update` has found nothing wrong; traceable by JAX.

    Returns:
      The compressed tensors for `decompress_update`.
    """
    return unpack_tensors(compressor, message, shapes_of(like), _HEADER.size)


def unpack_tensors(compressor: Compressor, message: jax.Array, shapes: Sequence[Shape], skip: int) -> list:
    """Read tensors of these shapes that lie in a message behind so many bytes; see `unpack_update`."""
    return [compressor.unpack(message[start:end], shape) for start, end, shape in _places(compressor, shapes, skip)]


def squared_norm(
    compressor: Compressor,
    key: jax.Array,
    message: jax.Array,
    shapes: Sequence[Shape],
    *,
    skip: int = _HEADER.size,
    first: jax.Array | int = 0,
) -> jax.Array:
    """Sum the squares of all values that `decompress_update` would give of tensors in a message; traceable by JAX.

    Args:
      key: of the update.
      message: uint8 [bytes], with the tensors behind `skip` bytes.
      shapes: of the tensors.
      first: place of the first of them in the update.
    """
    total, all_keys = jnp.float32(0.0), keys_of_tensors(compressor, key, len(shapes), first)
    for keys, (start, _, shape) in zip(all_keys, _places(compressor, shapes, skip), strict=True):
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


def _places(compressor: Compressor, shapes: Sequence[Shape], start: int) -> Iterator[tuple[int, int, Shape]]:
    """Say where each tensor begins and ends, the first at `start`, and its shape."""
    for shape in shapes:
        end = start + compressor.packed_bytes(shape)
        yield start, end, shape
        start = end


def _checksum(body: Buffer, before: int = 0) -> int:
    # Simulations only count bytes; they run where this package is not installed.
    from isal import isal_zlib

    return isal_zlib.crc32(body, before)


def _let_go(message: memoryview) -> None:
    """Keep nothing in memory of an upload that is in a file; it is read again where it is looked at again."""
    if isinstance(message.obj, mmap.mmap):
        message.obj.madvise(mmap.MADV_DONTNEED)


def upload_header(compressor: Compressor, like: Params) -> bytes:
    """Make what an upload of this plan begins with; `like` has the update's shapes."""
    return _HEADER.pack(UPLOAD_MAGIC, plan_digest(compressor.scheme, shapes_of(like)))


def plan_digest(scheme: Scheme, shapes: Sequence[Shape]) -> bytes:
    """Compute the SHA-256 of how an update becomes bytes."""
    return upload_plan_digest(scheme.number, scheme.version, scheme.settings, shapes)
