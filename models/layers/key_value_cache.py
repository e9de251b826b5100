"""The keys and values of tokens that attention layers have read, kept for those that follow.

Rows are read side by side in columns of one array, so that adding to it writes one block. Where a row has fewer tokens
than there are columns the rest is padding, which no query sees; every token has its row's own position.
Dimension letters: B batch, T time, K key and value heads, D head size.
"""

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp


class KeyValueCache(NamedTuple):
    """Keys and values of all layers.

    Attributes:
      keys: of each layer, float [batch, heads, columns, head size].
      values: the same of values.
      positions: int32 [batch, columns], the place in its row of each column's token, -1 where there is none.
      used: int32 [], the columns that are in use.
      lengths: int32 [batch], the tokens of each row.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    positions: jax.Array
    used: jax.Array
    lengths: jax.Array

    def reading(self, time: int, counts: jax.Array) -> tuple[Self, jax.Array]:
        """Make room for tokens [batch, time], of which the first `counts`, int32 [batch], are read.

        Returns the cache, to which each layer's keys and values are to be added, and the tokens' places in their rows,
        int32 [batch, time].
        """
        places = self.lengths[:, None] + jnp.arange(time)
        found = jnp.where(jnp.arange(time) < counts[:, None], places, -1)
        positions = jax.lax.dynamic_update_slice(self.positions, found, (0, self.used))
        return self._replace(positions=positions, used=self.used + time, lengths=self.lengths + counts), places

    def visible(self, places: jax.Array, window: int = 0) -> jax.Array:
        """Mark what each token that is being read sees: bool [batch, time, columns].

        Args:
          places: of the tokens, as `reading` gives them.
          window: how many places back a token sees, its own among them; 0 for all.
        """
        back = places[:, :, None] - self.positions[:, None]
        seen = (self.positions[:, None] >= 0) & (back >= 0)
        if window:
            seen &= back < window
        # Padding sees itself, for who sees nothing gets numbers that are none.
        time, columns = places.shape[1], self.positions.shape[1]
        return seen | (jnp.arange(columns) == self.used - time + jnp.arange(time)[:, None])

    def add(self, layer: int, k_btkd: jax.Array, v_btkd: jax.Array) -> tuple[Self, jax.Array, jax.Array]:
        """Add a layer's keys and values of what is being read; returns the cache, and all of the layer's."""
        column = self.used - k_btkd.shape[1]

        def added(of_layers: tuple[jax.Array, ...], x_btkd: jax.Array) -> tuple[jax.Array, ...]:
            kept = jax.lax.dynamic_update_slice(of_layers[layer], jnp.swapaxes(x_btkd, 1, 2), (0, 0, column, 0))
            return (*of_layers[:layer], kept, *of_layers[layer + 1 :])

        cache = self._replace(keys=added(self.keys, k_btkd), values=added(self.values, v_btkd))
        return cache, jnp.swapaxes(cache.keys[layer], 1, 2), jnp.swapaxes(cache.values[layer], 1, 2)


def empty_cache(
    *, layers: int, batch: int, columns: int, heads: int, head_size: int, dtype: jax.typing.DTypeLike
) -> KeyValueCache:
    """Make a cache in which nothing is."""
    zeros = jnp.zeros((batch, heads, columns, head_size), dtype)
    nowhere = jnp.full((batch, columns), -1, jnp.int32)
    return KeyValueCache((zeros,) * layers, (zeros,) * layers, nowhere, jnp.int32(0), jnp.zeros(batch, jnp.int32))


def last_read(x: jax.Array, counts: jax.Array) -> jax.Array:
    """Take of float [batch, time, width] what belongs to each row's last token, int32 counts [batch]: [batch, width].

    The first where a row has none.
    """
    return jnp.take_along_axis(x, jnp.maximum(counts - 1, 0)[:, None, None], axis=1)[:, 0]
