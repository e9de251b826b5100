"""Greedy decoding of many sequences at once, with nothing of a model but its logits.

Every pass runs the model over whole sequences whose continuation is a guess, and takes the most likely token at every
position for the next guess. After k passes the first k tokens are those that decoding one by one would have given;
where a guess no longer changes, all of them are (Jacobi decoding: Santilli et al. 2023, "Accelerating transformer
inference for translation via parallel decoding"). The true continuation is the first guess, so that a sequence which
the model knows by heart takes one pass, and none takes more than it has tokens to decode. Who only asks whether the
continuation is nearly the true one can end earlier: the tokens that are settled bound the edit distance from below.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from numpy.typing import NDArray

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.processes import from_first
from fedlm.models.base import Model, Params
from fedlm.simulations.data.federated_data import InMemoryData, device_batches


def greedy_suffixes(
    model: Model,
    params: Params,
    sequences: NDArray[np.int32],
    prefix: int,
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
    refuse_other_objectives(model)
    params = from_first(params)
    suffixes: list[NDArray[np.int32]] = [np.zeros((0, sequences.shape[1] - prefix), np.int32)]
    done = 0
    for batch in device_batches(InMemoryData([sequences]), sequences.shape[1] - 1):
        found, _ = decode(model, params, batch.tokens, prefix, most_edits)
        suffixes.append(np.asarray(found)[: len(sequences) - done])
        done += len(suffixes[-1])
        observe(done)
    return np.concatenate(suffixes)


def refuse_other_objectives(model: Model) -> None:
    """Raise ConfigurationError where a model does not predict the next token."""
    if model.objective != "causal":
        raise ConfigurationError(
            f"model {model.name!r} has the {model.objective} objective and does not continue text; give a run of a "
            "causal model (`fedlm models` lists them)"
        )


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def decode(
    model: Model, params: Params, tokens: jax.Array, prefix: int, most_edits: int | None = None
) -> tuple[jax.Array, jax.Array]:
    """Decode a batch, int32 [batch, prefix + suffix], each device its own rows without waiting for others.

    What follows the prefix is the first guess; see `greedy_suffixes`. Returns int32 [batch, suffix], and int32
    [devices]: the passes that it took, from 1 to suffix.
    """
    everywhere, by_device = PartitionSpec(), PartitionSpec("devices")
    return jax.shard_map(
        functools.partial(_decode_rows, model, prefix, most_edits),
        mesh=Mesh(np.array(jax.devices()), "devices"),
        in_specs=(everywhere, by_device),
        out_specs=by_device,
        check_vma=False,
    )(params, tokens)


class _Decoding(NamedTuple):
    """What a pass leaves: rows are settled where nothing changes any more, or where they are given up."""

    inputs: jax.Array  # int32 [rows, prefix + suffix - 1]
    found: jax.Array  # int32 [rows, suffix]
    passes: jax.Array  # how many there were; so many tokens of `found` are final
    # int32 [rows, suffix + 1], edit distances of the final tokens to each beginning of the true suffix
    edits: jax.Array
    active: jax.Array  # bool [rows]


def _decode_rows(
    model: Model, prefix: int, most_edits: int | None, params: Params, tokens: jax.Array
) -> tuple[jax.Array, jax.Array]:
    true = tokens[:, prefix:]
    rows, suffix = true.shape

    def one_pass(state: _Decoding) -> _Decoding:
        found = jnp.argmax(model.apply(params, state.inputs)[:, prefix - 1 :], axis=-1).astype(jnp.int32)
        inputs = state.inputs.at[:, prefix:].set(found[:, :-1])
        active, edits = jnp.any(inputs != state.inputs, axis=1), state.edits
        if most_edits is not None:
            edits = _after_one_token(edits, true, found[:, state.passes])
            # Of the lengths that are left, those of the longer one must be inserted.
            least = jnp.min(edits + jnp.abs(jnp.arange(suffix + 1) - (state.passes + 1)), axis=1)
            active &= least <= most_edits
        return _Decoding(inputs, found, state.passes + 1, edits, active)

    edits = jnp.tile(jnp.arange(suffix + 1, dtype=jnp.int32), (rows, 1))
    start = _Decoding(tokens[:, :-1], true, jnp.int32(0), edits, jnp.ones(rows, bool))
    end = jax.lax.while_loop(lambda state: state.active.any() & (state.passes < suffix), one_pass, start)
    return end.found, end.passes[None]


def _after_one_token(edits: jax.Array, true: jax.Array, token: jax.Array) -> jax.Array:
    """Make the next row of Levenshtein's table: int32 [rows, suffix + 1] again, with one token [rows] more."""
    replaced_or_deleted = jnp.minimum(edits[:, :-1] + (true != token[:, None]), edits[:, 1:] + 1)
    row = jnp.concatenate([edits[:, :1] + 1, replaced_or_deleted], axis=1)
    places = jnp.arange(row.shape[1])
    # Insertions cost 1 a place: the least over places before, less the way from there.
    return (jax.lax.cummin(row - places, axis=1) + places).astype(jnp.int32)
