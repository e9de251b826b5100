"""Greedy decoding of the continuations of many sequences, each device its own rows.

Prefixes are read once, and then a token a step. Who only asks whether the continuation is nearly the true one can end
earlier: the tokens that are there bound the edit distance from below, and few sequences of a text are known by heart.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from numpy.typing import NDArray

from fedlm.fl_core.processes import from_first
from fedlm.models.base import Model, Params
from fedlm.models.decoding import decoder_of
from fedlm.simulations.data.federated_data import InMemoryData, device_batches


def greedy_suffixes(
    model: Model,
    params: Params,
    sequences: NDArray[np.int32],
    prefix: int,
    *,
    most_edits: int | None = None,
    observe: Callable[[int], None] = lambda done: None,
) -> NDArray[np.int32]:
    """Decode what a causal model says after the beginnings of sequences, int32 [n, prefix + suffix], without PAD.

    One program is compiled for all sequences, and their rows are spread over all devices. The model is shown at least
    one token. With `most_edits` a sequence is given up once its continuation is more edits than these from the true
    one, whatever follows; the tokens that are then returned are too. `observe` is called with how many sequences are
    done.

    Returns int32 [n, suffix]: the most likely token at every position, given the prefix and those before it. Raises
    ConfigurationError where the model is not causal.
    """
    decoder_of(model)  # which refuses models that do not continue text
    params = from_first(params)
    suffixes: list[NDArray[np.int32]] = [np.zeros((0, sequences.shape[1] - prefix), np.int32)]
    done = 0
    for batch in device_batches(InMemoryData([sequences]), sequences.shape[1] - 1):
        found, _ = decode(model, params, batch.tokens, prefix=prefix, most_edits=most_edits)
        suffixes.append(np.asarray(found)[: len(sequences) - done])
        done += len(suffixes[-1])
        observe(done)
    return np.concatenate(suffixes)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("prefix", "most_edits"))
def decode(
    model: Model, params: Params, tokens: jax.Array, *, prefix: int, most_edits: int | None = None
) -> tuple[jax.Array, jax.Array]:
    """Decode a batch, int32 [batch, prefix + suffix], each device its own rows without waiting for others.

    What follows the prefix is the true continuation; see `greedy_suffixes`. Returns int32 [batch, suffix], and int32
    [devices]: how many tokens were decoded, from 1 to suffix; what follows them is PAD.
    """
    everywhere, by_device = PartitionSpec(), PartitionSpec("devices")
    return jax.shard_map(
        functools.partial(_decode_rows, model, prefix=prefix, most_edits=most_edits),
        mesh=Mesh(np.array(jax.devices()), "devices"),
        in_specs=(everywhere, by_device),
        out_specs=by_device,
        check_vma=False,
    )(params, tokens)


class _Decoding(NamedTuple):
    """What a step leaves."""

    state: Any  # what the decoder goes on with
    found: jax.Array  # int32 [rows, suffix], PAD where nothing is decoded yet
    steps: jax.Array  # how many tokens are
    # int32 [rows, suffix + 1], edit distances of the tokens to each beginning of the true suffix
    edits: jax.Array
    active: jax.Array  # bool [rows], False where a sequence is given up


def _decode_rows(
    model: Model, params: Params, tokens: jax.Array, *, prefix: int, most_edits: int | None
) -> tuple[jax.Array, jax.Array]:
    decoder, true = decoder_of(model), tokens[:, prefix:]
    rows, suffix = true.shape
    weights = decoder.prepare(params)

    def with_next(decoding: _Decoding, logits: jax.Array) -> _Decoding:
        token, edits, active = jnp.argmax(logits, axis=-1).astype(jnp.int32), decoding.edits, decoding.active
        found = jax.lax.dynamic_update_slice(decoding.found, token[:, None], (0, decoding.steps))
        if most_edits is not None:
            edits = _after_one_token(edits, true, token)
            # Of the lengths that are left, those of the longer one must be inserted.
            least = jnp.min(edits + jnp.abs(jnp.arange(suffix + 1) - (decoding.steps + 1)), axis=1)
            active &= least <= most_edits
        return _Decoding(decoding.state, found, decoding.steps + 1, edits, active)

    def step(decoding: _Decoding) -> _Decoding:
        last = jax.lax.dynamic_slice(decoding.found, (0, decoding.steps - 1), (rows, 1))
        logits, state = decoder.read(weights, decoding.state, last, jnp.ones(rows, jnp.int32))
        return with_next(decoding._replace(state=state), logits)

    counts = jnp.full(rows, prefix, jnp.int32)
    logits, state = decoder.read(weights, decoder.begin(weights, rows, tokens.shape[1] - 1), tokens[:, :prefix], counts)
    edits = jnp.tile(jnp.arange(suffix + 1, dtype=jnp.int32), (rows, 1))
    nothing = _Decoding(state, jnp.zeros_like(true), jnp.int32(0), edits, jnp.ones(rows, bool))
    end = jax.lax.while_loop(
        lambda decoding: decoding.active.any() & (decoding.steps < suffix), step, with_next(nothing, logits)
    )
    return end.found, end.steps[None]


def _after_one_token(edits: jax.Array, true: jax.Array, token: jax.Array) -> jax.Array:
    """Make the next row of Levenshtein's table: int32 [rows, suffix + 1] again, with one token [rows] more."""
    replaced_or_deleted = jnp.minimum(edits[:, :-1] + (true != token[:, None]), edits[:, 1:] + 1)
    row = jnp.concatenate([edits[:, :1] + 1, replaced_or_deleted], axis=1)
    places = jnp.arange(row.shape[1])
    # Insertions cost 1 a place: the least over places before, less the way from there.
    return (jax.lax.cummin(row - places, axis=1) + places).astype(jnp.int32)
