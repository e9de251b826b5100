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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fedlm.fl_core.privacy.noise.chacha20 import KEY_BYTES, WORDS, chacha20_blocks
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
_MOST_TWICE = 1 << 22
"""Numbers that are drawn by one loop, at most, or those of one larger leaf: they lie in memory twice for a moment. No
bit depends on it."""


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


def normal_blocks(key: jax.Array, numbers: jax.Array, counters: jax.Array) -> jax.Array:
    """Draw normal numbers by their blocks; to be traced where JAX's 64-bit types are enabled.

    Args:
      key: uint32 [8], of `noise_key`.
      numbers: uint32 [...], of the leaf that each block is of.
      counters: uint32 [...], of the block within that leaf.

    Returns:
      float64 [..., 4], which no order and no company of blocks changes.
    """
    words = chacha20_blocks(key, (numbers, 0, 0), counters)
    half = WORDS // 2
    pairs = (jnp.stack(pair, axis=-1) for pair in zip(words[:half], words[half:], strict=True))
    return jnp.stack(normal_pair(*pairs), axis=-1).reshape(*counters.shape, _NORMALS)


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

    @property
    def run(self) -> int:
        """Numbers that a device has one after another, of the whole leaf in its order."""
        return math.prod(self.part[self.axis or 0 :])

    @property
    def is_drawn_whole(self) -> bool:
        """By each device, and cut: what it has is not made of whole blocks."""
        return self.axis is None or self.run % _NORMALS > 0

    @property
    def blocks(self) -> int:
        """That a device draws."""
        return max(1, -(-math.prod(self.shape if self.is_drawn_whole else self.part) // _NORMALS))

    @property
    def parts(self) -> int:
        """Into which the axis is divided."""
        return 1 if self.axis is None else self.shape[self.axis] // self.part[self.axis]

    def device(self) -> jax.Array:
        """Trace which of the parts is this device's."""
        if self.sharding is None or self.axis is None:
            return jnp.zeros((), jnp.uint32)
        return jax.lax.axis_index(self.sharding.spec[self.axis]).astype(jnp.uint32)

    def strides(self) -> jax.Array:
        """Trace uint32 [3]: blocks that a device draws one after another, those of others between such runs, and those
        before the first."""
        if self.is_drawn_whole:
            return jnp.asarray([self.blocks, 0, 0], jnp.uint32)
        run = self.run // _NORMALS
        return jnp.stack([jnp.uint32(run), jnp.uint32(run * (self.parts - 1)), run * self.device()])


def _combine(leaves: tuple[_Leaf, ...], keys: jax.Array, coefficients: jax.Array, count: jax.Array) -> tuple:
    return tuple(
        _cut(numbers, leaf)
        for first, group in _together(leaves)
        for numbers, leaf in zip(_total(first, group, keys, coefficients, count=count), group, strict=True)
    )


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


def _together(leaves: tuple[_Leaf, ...]) -> Iterator[tuple[int, list[_Leaf]]]:
    """Part leaves into groups, each of which one loop draws, and give the number of each one's first leaf.

    Few loops compile soon, but what one draws lies in memory twice.
    """
    group: list[_Leaf] = []
    blocks = 0
    for number, leaf in enumerate(leaves):
        if group and _NORMALS * (blocks + leaf.blocks) > _MOST_TWICE:
            yield number - len(group), group
            group, blocks = [], 0
        group.append(leaf)
        blocks += leaf.blocks
    if group:
        yield len(leaves) - len(group), group


def _total(
    first: int, leaves: list[_Leaf], keys: jax.Array, coefficients: jax.Array, *, count: jax.Array
) -> list[jax.Array]:
    """Add up the draws of leaves that follow one another; a flat array for each, as long as its blocks are."""
    drawn = _drawing(first, leaves)
    form = jax.eval_shape(drawn, keys[0])

    def add(place: jax.Array, total: jax.Array) -> jax.Array:
        return total + coefficients[place] * drawn(keys[place])

    total = jax.lax.fori_loop(0, count, add, jnp.zeros(form.shape, form.dtype)).reshape(-1)
    return jnp.split(total, _NORMALS * np.cumsum([leaf.blocks for leaf in leaves]))[:-1]


def _drawing(first: int, leaves: list[_Leaf]) -> Callable[[jax.Array], jax.Array]:
    """Give what draws, by a key, all blocks of leaves one after another, and more that fill its last pass."""
    ends = np.cumsum([leaf.blocks for leaf in leaves], dtype=np.uint32)
    starts = jnp.asarray(np.append(0, ends[:-1]), jnp.uint32)
    strides = jnp.stack([leaf.strides() for leaf in leaves], axis=-1)
    is_spread = not all(leaf.is_drawn_whole for leaf in leaves)
    at_once = min(int(ends[-1]), _BLOCKS_ON_CPU if jax.default_backend() == "cpu" else _BLOCKS)

    def some(key: jax.Array, start: jax.Array) -> jax.Array:
        place = start + jnp.arange(at_once, dtype=jnp.uint32)
        leaf = jnp.searchsorted(ends, place, side="right", method="compare_all").astype(jnp.uint32)
        block = place - starts[leaf]
        if is_spread:
            run, skipped, before = strides[:, leaf]
            block += block // run * skipped + before
        return normal_blocks(key, first + leaf, block)

    passes = at_once * jnp.arange(-(-int(ends[-1]) // at_once), dtype=jnp.uint32)
    return lambda key: jax.lax.map(functools.partial(some, key), passes)


def _cut(numbers: jax.Array, leaf: _Leaf) -> jax.Array:
    """Bring the numbers of a leaf into its shape, or of this device's part of it."""
    if leaf.is_drawn_whole and leaf.axis is not None:
        whole, size = numbers[: math.prod(leaf.shape)].reshape(leaf.shape), leaf.part[leaf.axis]
        return jax.lax.dynamic_slice_in_dim(whole, leaf.device() * size, size, leaf.axis)
    return numbers[: math.prod(leaf.part)].reshape(leaf.part)
