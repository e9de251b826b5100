"""How an update travels from client to server: what every way of it must do, tensor by tensor.

All of it is traceable by JAX, and a simulation runs the same arithmetic as a client. Numbers
travel with their low bytes first, as all machines that JAX runs on have them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedlm.models.base import Params

Buffer = bytes | bytearray | memoryview
Shape = tuple[int, ...]
_BLOCK = 1 << 14
_ADDED_IN_A_ROW = 1 << 12


class Scheme(NamedTuple):
    """What a compressor is called on the wire.

    Attributes:
      number: of the scheme; never that of another one.
      version: of what travels; another one where a byte means something else.
      settings: all that tells the scheme's compressors apart, by name.
    """

    number: int
    version: int
    settings: dict[str, int]


class Cut(NamedTuple):
    """What values `[a, b)` of a tensor need of its bytes, and are then a tensor of their own: the head, and theirs."""

    head: int  # bytes at the beginning, which all values need
    bits: int  # of each value behind it; a power of two


class Compressor(Protocol):
    """Turns each tensor of an update into what travels, and back; hashable."""

    @property
    def scheme(self) -> Scheme: ...

    def keys(self, key: jax.Array) -> Any:
        """Make of a tensor's key, used once, a pytree of the keys that the methods below take."""
        ...

    def compress(self, keys: Any, values: jax.Array) -> Any:
        """Compress a finite float32 tensor, on the client, into a pytree of arrays."""
        ...

    def decompress(self, keys: Any, compressed: Any, shape: Shape) -> jax.Array:
        """Make a float32 tensor of what `compress` returned for the same keys; on the server."""
        ...

    def pieces(self, compressed: Any) -> list[jax.Array]:
        """Cut what `compress` returned into arrays whose bytes, laid end to end, are the `packed_bytes(shape)` bytes
        that travel; traceable by JAX."""
        ...

    def unpack(self, packed: jax.Array, shape: Shape) -> Any:
        """Read the bytes of `pieces`, uint8 [packed_bytes(shape)]; traceable by JAX."""
        ...

    def is_finite(self, packed: Buffer) -> bool:
        """Say whether all floats in the bytes of `pieces` are finite."""
        ...

    @property
    def cut(self) -> "Cut | None":
        """How the bytes of `pieces` may be cut, so that some of a tensor's values are read without the others; None
        where each value depends on all bytes."""
        ...

    def squared_norm(self, keys: Any, message: jax.Array, start: int, shape: Shape) -> jax.Array:
        """Compute the sum of squares of what `decompress` gives, float32, if possible without having it in memory.

        The bytes of `pieces` lie at `start` in the message, uint8 [bytes], which are not trusted.
        """
        ...

    def packed_bytes(self, shape: Shape) -> int:
        """Compute how many bytes a tensor travels as."""
        ...


def shapes_of(update: Params) -> list[Shape]:
    """List the shapes of an update's tensors in the order in which they travel, that of its sorted names."""
    return [tuple(leaf.shape) for leaf in jax.tree_util.tree_leaves(update)]


def compress_update(compressor: Compressor, key: jax.Array, update: Params) -> list:
    """Compress every tensor of an update, in the order of `jax.tree_util.tree_leaves`.

    Args:
      compressor: how.
      key: PRNG key of this client in this round.
      update: float32 arrays, all values finite.
    """
    leaves = jax.tree_util.tree_leaves(update)
    keys = keys_of_tensors(compressor, key, len(leaves))
    return [_compress(compressor, of_tensor, leaf) for of_tensor, leaf in zip(keys, leaves, strict=True)]


def decompress_update(
    compressor: Compressor, key: jax.Array, compressed: list, like: Params, *, first: jax.Array | int = 0
) -> Params:
    """Undo `compress_update`, as far as the compressor can; `like` are arrays, or shapes, of the update's structure,
    and `first` is the place of the first of them where they are a part of it."""
    leaves, structure = jax.tree_util.tree_flatten(like)
    keys = keys_of_tensors(compressor, key, len(leaves), first)
    restored = [
        _decompress(compressor, of_tensor, tensor, tuple(leaf.shape))
        for of_tensor, tensor, leaf in zip(keys, compressed, leaves, strict=True)
    ]
    return jax.tree_util.tree_unflatten(structure, restored)


def keys_of_tensors(compressor: Compressor, key: jax.Array, number: int, first: jax.Array | int = 0) -> list:
    """Make the keys of each of so many tensors, from the first of them on, from the key of this client in this
    round."""
    # Drawn one by one, each would be a loop of its own, which takes long to compile.
    keys = jax.vmap(lambda index: compressor.keys(jax.random.fold_in(key, index)))(first + jnp.arange(number))
    return [jax.tree_util.tree_map(lambda leaf: leaf[index], keys) for index in range(number)]  # noqa: B023


# Tensors of one shape are traced and lowered once: a Transformer's layers have many of each.
@partial(jax.jit, static_argnums=0)
def _compress(compressor: Compressor, keys: Any, values: jax.Array) -> Any:
    return compressor.compress(keys, values)


@partial(jax.jit, static_argnums=(0, 3))
def _decompress(compressor: Compressor, keys: Any, compressed: Any, shape: Shape) -> jax.Array:
    return compressor.decompress(keys, compressed, shape)


def sum_of_squares(values: Callable[[jax.Array | int, int], jax.Array], size: int) -> jax.Array:
    """Add up squares, float32, block by block, so that the values are never in memory together.

    Args:
      values: from a place and a count to so many float32 values from there on; places are multiples of the block.
      size: number of values.
    """
    blocks = size // _BLOCK

    def add(number: jax.Array, sums: jax.Array) -> jax.Array:
        return sums + jnp.square(values(number * _BLOCK, _BLOCK))

    # More squares, one after another, could lose too much to rounding.
    whole = jnp.float32(0.0)
    for first in range(0, blocks, _ADDED_IN_A_ROW):
        last = min(first + _ADDED_IN_A_ROW, blocks)
        whole += jnp.sum(jax.lax.fori_loop(first, last, add, jnp.zeros(_BLOCK)))
    rest = size - blocks * _BLOCK
    return whole + jnp.sum(jnp.square(values(blocks * _BLOCK, rest))) if rest else whole
