"""Standard normal noise that is a function of (secret seed, what it is for), so that it can be made again, but not
twice differently.

A draw is named by a few integers. HMAC-SHA256 of the name, keyed by a secret of 256 bits, is the key of ChaCha20; the
number of the parameter leaf is its nonce, and each block of the key stream gives four normal numbers. All is float64.
"""

import functools
import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fedlm.fl_core.privacy.chacha20 import KEY_BYTES, WORDS, chacha20_blocks
from fedlm.models.base import Params

Name = tuple[int, ...]
"""Integers that name one draw of noise."""

Draw = Callable[[Sequence[tuple[float, Name]]], Params]
"""From (coefficient, name) pairs to the sum of coefficient times the named draw."""

SECRET_BYTES = KEY_BYTES
NOISE_FORMAT = "ChaCha20, float64, rounded to a grid"
"""How noise follows from its secret: a run goes on only with the noise that it began with."""
_AT_ONCE = 64
_NORMALS = 4
"""Of a block."""
_BLOCKS_ON_CPU, _BLOCKS = 1 << 14, 1 << 20
"""That are made at once: as many as a core's cache holds, or as fill an accelerator. No bit depends on it."""
_MOST_TWICE = 1 << 26
"""Numbers that are drawn by one loop, at most: they lie in memory twice for a moment. No bit depends on it."""


def fresh_secret() -> bytes:
    """Take a seed for noise, which nobody else has ever seen, from the operating system's entropy."""
    return secrets.token_bytes(SECRET_BYTES)


def noise_from(secret: bytes, like: Params, shardings: Params | None = None) -> Draw:
    """Make the noise of a secret: float64, of the structure and shapes of `like`, and spread by `shardings`.

    The function that draws may be given a name again, and gives the same noise.
    """
    structure = jax.tree_util.tree_structure(like)
    drawn_leaves, combine = _program(like, shardings)

    def draw(terms: Sequence[tuple[float, Name]]) -> Params:
        with jax.enable_x64(True):
            total = None
            for start in range(0, len(terms), _AT_ONCE):
                part = terms[start : start + _AT_ONCE]
                keys = np.zeros((_AT_ONCE, KEY_BYTES // 4), np.uint32)
                coefficients = np.zeros(_AT_ONCE)
                for place, (coefficient, name) in enumerate(part):
                    keys[place], coefficients[place] = noise_key(secret, name), coefficient
                drawn = combine(drawn_leaves, keys, coefficients, len(part))
                total = drawn if total is None else tuple(map(jnp.add, total, drawn))
            if total is None:
                total = tuple(jnp.zeros(leaf.shape, jnp.float64) for leaf in drawn_leaves)
            return jax.tree_util.tree_unflatten(structure, total)

    return draw


def lower_draw(like: Params, shardings: Params | None = None) -> jax.stages.Lowered:
    """Lower the program that draws for `noise_from`; nothing is drawn."""
    leaves, combine = _program(like, shardings)
    with jax.enable_x64(True):
        return combine.lower(leaves, np.zeros((_AT_ONCE, KEY_BYTES // 4), np.uint32), np.zeros(_AT_ONCE), 1)


def _program(like: Params, shardings: Params | None) -> tuple[tuple["_Leaf", ...], Any]:
    """Give the leaves that are drawn, and what draws them."""
    shapes = [tuple(leaf.shape) for leaf in jax.tree_util.tree_leaves(like)]
    spread = [None] * len(shapes) if shardings is None else jax.tree_util.tree_leaves(shardings)
    leaves = tuple(map(_Leaf, shapes, spread))
    if shardings is None:
        return leaves, jax.jit(_combine, static_argnums=0)
    return leaves, jax.jit(_combine_parts, static_argnums=0)


def commitment(secret: bytes) -> str:
    """Compute what tells that a secret is the same without giving it away: a SHA-256 in hex."""
    return hashlib.sha256(b"commitment" + secret).hexdigest()


def noise_key(secret: bytes, name: Name) -> np.ndarray:
    """Make the key of one draw: uint32 [8], the words of a key of ChaCha20."""
    message = b"noise" + b"".join(int(part).to_bytes(8, "little", signed=True) for part in name)
    return np.frombuffer(hmac.digest(secret, message, "sha256"), "<u4")


def standard_normals(
    key: jax.Array,
    number: int | jax.Array,
    shape: tuple[int, ...],
    counter: Callable[[jax.Array], jax.Array] = lambda block: block,
) -> jax.Array:
    """Draw the normal numbers of one leaf; to be traced where JAX's 64-bit types are enabled.

    Args:
      key: uint32 [8], of `noise_key`.
      number: of the leaf.
      shape: of the leaf, or of the part of it that is drawn.
      counter: maps a block's number within the shape, uint32, to that within the leaf.

    Returns:
      float64 of the shape.
    """
    blocks = max(1, -(-math.prod(shape) // _NORMALS))
    at_once = min(blocks, _BLOCKS_ON_CPU if jax.default_backend() == "cpu" else _BLOCKS)
    nonce = jnp.asarray([number, 0, 0], jnp.uint32)

    def drawn(first: jax.Array) -> jax.Array:
        words = chacha20_blocks(key, nonce, counter(first + jnp.arange(at_once, dtype=jnp.uint32)))
        half = WORDS // 2
        return jnp.stack([*normal_pair(*words[:half]), *normal_pair(*words[half:])], axis=-1)

    firsts = at_once * jnp.arange(-(-blocks // at_once), dtype=jnp.uint32)
    return jax.lax.map(drawn, firsts).reshape(-1)[: math.prod(shape)].reshape(shape)


def normal_pair(*words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Turn random bits into two independent standard normal numbers (Box and Muller 1958).

    Half the squared radius is exponentially distributed, which has no memory: ln 2 for each leading zero of 128 bits,
    and what 64 other bits say beyond them. So both ends have float64's precision, and numbers reach 13.3 standard
    deviations. Beyond that the distribution is cut where all 128 bits are zero, so even 2^60 pairs are within
    2^-68 = 3.4e-21 of uncut ones in total variation; the smallest delta that is accepted is 1e-15.

    Args:
      *words: eight of uint32 [...]: four whose leading zeros count, two below those, two for the angle.

    Returns:
      float64 [...] each.
    """
    zeros = jnp.zeros(words[0].shape, jnp.int32)
    for word in reversed(words[:4]):
        zeros = jax.lax.clz(word).astype(jnp.int32) + jnp.where(word == 0, zeros, 0)
    squared = 2 * (zeros * math.log(2) - jnp.log1p(-_uniform(*words[4:6]) / 2))
    radius, angle = jnp.sqrt(squared), 2 * math.pi * _uniform(*words[6:])
    return radius * jnp.cos(angle), radius * jnp.sin(angle)


def _uniform(high: jax.Array, low: jax.Array) -> jax.Array:
    return high.astype(jnp.float64) * 2.0**-32 + low.astype(jnp.float64) * 2.0**-64


class _Leaf(NamedTuple):
    """An array of noise: its shape, and how it is spread, where it is."""

    shape: tuple[int, ...]
    sharding: NamedSharding | None

    @property
    def part(self) -> tuple[int, ...]:
        """Shape of what a device has."""
        return self.shape if self.sharding is None else self.sharding.shard_shape(self.shape)

    @property
    def axis(self) -> int | None:
        """Which axis is spread; None where every device has all."""
        spec = () if self.sharding is None else self.sharding.spec
        return next((axis for axis, name in enumerate(spec) if name is not None), None)


def _combine(leaves: tuple[_Leaf, ...], keys: jax.Array, coefficients: jax.Array, count: jax.Array) -> tuple:
    def drawn(place: jax.Array) -> tuple[jax.Array, ...]:
        found: dict[int, jax.Array] = {}
        for numbers in _alike(leaves):
            part = functools.partial(_part, keys[place], leaf=leaves[numbers[0]])
            stacked = jax.lax.map(part, jnp.asarray(numbers, jnp.uint32))
            found |= {number: coefficients[place] * stacked[index] for index, number in enumerate(numbers)}
        return tuple(found[number] for number in range(len(leaves)))

    def add(place: jax.Array, total: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return tuple(map(jnp.add, total, drawn(place)))

    return jax.lax.fori_loop(1, count, add, drawn(jnp.zeros((), int)))


def _combine_parts(leaves: tuple[_Leaf, ...], keys: jax.Array, coefficients: jax.Array, count: jax.Array) -> tuple:
    """Let every device draw what it keeps, and nothing else."""
    shardings = [leaf.sharding for leaf in leaves if leaf.sharding is not None]
    on_device = jax.shard_map(
        functools.partial(_combine, leaves),
        mesh=shardings[0].mesh,
        in_specs=PartitionSpec(),
        out_specs=tuple(sharding.spec for sharding in shardings),
        check_vma=False,
    )
    return on_device(keys, coefficients, jnp.asarray(count))


def _alike(leaves: tuple[_Leaf, ...]) -> list[list[int]]:
    """Put the numbers of leaves of one form together, which one loop draws and the compiler sees once, as far as they
    may lie in memory twice."""
    groups: dict[_Leaf, list[list[int]]] = {}
    for number, leaf in enumerate(leaves):
        most = max(1, _MOST_TWICE // max(1, math.prod(leaf.part)))
        of_form = groups.setdefault(leaf, [[]])
        if len(of_form[-1]) == most:
            of_form.append([])
        of_form[-1].append(number)
    return [numbers for of_form in groups.values() for numbers in of_form]


def _part(key: jax.Array, number: jax.Array, leaf: _Leaf) -> jax.Array:
    """Draw this device's part of a leaf: the numbers that the whole leaf has there."""
    shape, axis = leaf.shape, leaf.axis
    if axis is None:
        return standard_normals(key, number, shape)
    assert leaf.sharding is not None
    index = jax.lax.axis_index(leaf.sharding.spec[axis])
    local = leaf.part
    # Of the numbers in their order, a device has runs as long as this.
    run = math.prod(local[axis:])
    if run % _NORMALS:
        whole = standard_normals(key, number, shape)
        return jax.lax.dynamic_slice_in_dim(whole, index * local[axis], local[axis], axis)
    blocks, parts = run // _NORMALS, shape[axis] // local[axis]

    def counter(block: jax.Array) -> jax.Array:
        return (block // blocks) * (blocks * parts) + index.astype(jnp.uint32) * blocks + block % blocks

    return standard_normals(key, number, local, counter)
