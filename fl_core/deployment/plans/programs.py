"""What a plan computes, traced as StableHLO: a local step, what a client sends after its last one, and predictions."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import export
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from fedlm.fl_core.client_algorithms.interface import (
    Broadcast,
    ClientAlgorithm,
    LocalState,
    kept_by_client,
    sent_by_server,
)
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.randomness import device_key
from fedlm.fl_core.rounds.local_sgd import LocalTraining, TrainingSums, algorithm_step
from fedlm.fl_core.updates.compressors import Compressor, compress_update
from fedlm.models.base import Batch, Model, parameter_name
from fedlm.models.precision import Precision, precision_scope

_scalar = jax.ShapeDtypeStruct((), jnp.float32)
_word = jax.ShapeDtypeStruct((), jnp.uint32)


@dataclass(frozen=True)
class Argument:
    """An argument or a result of a program."""

    role: str
    index: int  # among those of its role
    shape: tuple[int, ...]
    dtype: str


class Program(NamedTuple):
    """A function `main` of StableHLO."""

    content: bytes
    inputs: list[Argument]  # those that it uses
    outputs: list[Argument]


class Tensor(NamedTuple):
    """A tensor of the download, or of a client's state."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class PlanPrograms(NamedTuple):
    """What a client runs, and the tensors that go through it."""

    train: Program  # a local step
    finish: Program  # what follows the last one
    infer: Program  # what follows the beginning of a text
    download: list[Tensor]  # what the server sends, in order
    state: list[Tensor]  # what a client carries from step to step
    begins: list[int | None]  # for each of these the tensor of the download that it begins as; zeros where None


def make_programs(
    model: Model, precision: Precision, training: LocalTraining, compressor: Compressor, *, length: int
) -> PlanPrograms:
    """Trace a client's training for CPUs, with fixed shapes.

    Args:
      model: the model, with its precision and dropout.
      precision: the same, resolved.
      training: how clients train.
      compressor: how updates travel.
      length: target tokens of a sequence.

    Raises:
      ConfigurationError: a program calls code of a library, or begins from other tensors than a client has; or clients
        are to keep something from round to round.
    """
    algorithm, params = training.algorithm, jax.eval_shape(model.init, jax.random.key(0))
    if jax.tree_util.tree_leaves(kept_by_client(algorithm, params)):
        raise ConfigurationError(
            f"the client algorithm {type(algorithm).__name__} keeps something on the device from round to round, which "
            "clients of plans cannot"
        )
    server = sent_by_server(algorithm, params)
    local = jax.eval_shape(algorithm.init, server)
    # What every scalar and batch of a step is, whatever the model.
    rows = {
        "tokens": [jax.ShapeDtypeStruct((training.batch_size, length + 1), jnp.int32)],
        "weight": [jax.ShapeDtypeStruct((training.batch_size,), jnp.float32)],
        "learning_rate": [_scalar],
        "random": [jax.ShapeDtypeStruct((training.batch_size, 2), jnp.uint32)] if training.draws_dropout else [],
    }
    sums = jax.eval_shape(TrainingSums.zero)
    with precision_scope(precision):
        train = _lower(
            _step(model, training, server, local),
            {"state": jax.tree_util.tree_leaves(local), "download": jax.tree_util.tree_leaves(server)}
            | {"sums": list(sums)}
            | rows,
        )
        finish = _lower(
            _finish(algorithm, compressor, server, local),
            {"state": jax.tree_util.tree_leaves(local), "download": jax.tree_util.tree_leaves(server)}
            | {"seed": [_word], "round_number": [_word], "client_index": [_word]},
        )
        infer = _infer(model, length)
    return PlanPrograms(train, finish, infer, _tensors(server), _tensors(local), _beginnings(algorithm, server))


_Given = dict[str, list[Any]]


def _step(
    model: Model, training: LocalTraining, server: Broadcast, local: LocalState
) -> Callable[[_Given], dict[str, list[jax.Array]]]:
    def run(given: _Given) -> dict[str, list[jax.Array]]:
        batch = Batch(given["tokens"][0], given["weight"][0])
        if given["random"]:
            batch = batch._replace(dropout=given["random"][0])
        stepped, sums = algorithm_step(
            model,
            training.algorithm,
            _filled(server, given["download"]),
            _filled(local, given["state"]),
            batch=batch,
            learning_rate=given["learning_rate"][0],
            gradient_clip=training.gradient_clip,
        )
        added = [before + one for before, one in zip(given["sums"], sums, strict=True)]
        return {"state": jax.tree_util.tree_leaves(stepped), "sums": added}

    return run


def _finish(
    algorithm: ClientAlgorithm, compressor: Compressor, server: Broadcast, local: LocalState
) -> Callable[[_Given], dict[str, list[jax.Array]]]:
    def run(given: _Given) -> dict[str, list[jax.Array]]:
        update = algorithm.finish(_filled(server, given["download"]), _filled(local, given["state"]))
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree_util.tree_leaves(update)]).all()
        (seed,), (number,), (client,) = given["seed"], given["round_number"], given["client_index"]
        key = jax.random.fold_in(device_key(seed, "upload", number), client)
        compressed = compress_update(compressor, key, update)
        pieces = [_in_bytes(piece) for tensor in compressed for piece in compressor.pieces(tensor)]
        return {"upload": pieces, "finite": [finite.astype(jnp.int32)]}

    return run


def _infer(model: Model, length: int) -> Program:
    """Trace what a model expects after the beginning of a text.

    Args:
      model: the model; it predicts the next token.
      length: tokens of a beginning at most, BOS among them.

    Returns:
      A program of `parameters`, `tokens`, int32 [1, length], and `count`, int32 [1], how many of these there are; its
      result is `logits`, float32 [vocabulary].
    """
    params = jax.eval_shape(model.init, jax.random.key(0))
    decoder = model.decoder

    def run(given: _Given) -> dict[str, list[jax.Array]]:
        filled, (tokens,), (count,) = _filled(params, given["parameters"]), given["tokens"], given["count"]
        if decoder is None:
            logits = jnp.take(model.apply(filled, tokens)[0], count - 1, axis=0, mode="clip")
        else:
            prepared = decoder.prepare(filled)
            logits, _ = decoder.read(prepared, decoder.begin(prepared, 1, length), tokens, count)
        return {"logits": [logits[0].astype(jnp.float32)]}

    tokens, count = jax.ShapeDtypeStruct((1, length), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.int32)
    return _lower(run, {"parameters": jax.tree_util.tree_leaves(params), "tokens": [tokens], "count": [count]})


def _in_bytes(piece: jax.Array) -> jax.Array:
    """Cut codes of 16 bits into bytes, little-endian: runtimes in browsers know no such codes."""
    if piece.dtype != jnp.uint16:
        return piece
    words = piece.astype(jnp.uint32)
    high = words >> 8
    return jnp.stack([words - (high << 8), high], -1).astype(jnp.uint8)


def _filled(like: Any, leaves: Sequence[Any]) -> Any:
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(like), leaves)


def _tensors(tree: Any) -> list[Tensor]:
    named = jax.tree_util.tree_leaves_with_path(tree)
    return [
        Tensor(parameter_name(path, "/").removeprefix("params/"), leaf.shape, leaf.dtype.name) for path, leaf in named
    ]


def _beginnings(algorithm: ClientAlgorithm, server: Broadcast) -> list[int | None]:
    """Find out what a client's state begins as: tensors of the download, or zeros."""
    traced = jax.make_jaxpr(lambda leaves: jax.tree_util.tree_leaves(algorithm.init(_filled(server, leaves))))(
        jax.tree_util.tree_leaves(server)
    ).jaxpr
    places = {id(one): place for place, one in enumerate(traced.invars)}
    found = [places.get(id(one)) for one in traced.outvars]
    ones = jax.tree_util.tree_map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), server)
    made = jax.tree_util.tree_leaves(algorithm.init(ones))
    if any(place is None and bool(jnp.any(leaf)) for place, leaf in zip(found, made, strict=True)):
        raise ConfigurationError(
            f"the client algorithm {type(algorithm).__name__} begins with tensors that are neither sent by the server "
            "nor zero, and a plan has no place for these; take another client algorithm, or clients that have it"
        )
    return found


def _lower(run: Callable[[_Given], dict[str, list[jax.Array]]], given: _Given) -> Program:
    """Lower a function whose arguments and results lie under the names of their roles; what it does not use is left
    out."""
    roles = [(role, index) for role, leaves in given.items() for index, _ in enumerate(leaves)]
    shapes = [leaf for leaves in given.values() for leaf in leaves]

    def flat(*leaves: jax.Array) -> list[jax.Array]:
        named: _Given = {role: [] for role in given}
        for (role, _), leaf in zip(roles, leaves, strict=True):
            named[role].append(leaf)
        return jax.tree_util.tree_leaves(run(named))

    exported = export.export(jax.jit(flat), platforms=("cpu",))(*shapes)
    _refuse_calls(exported.mlir_module())
    inputs = [_argument(*roles[place], shapes[place]) for place in exported.module_kept_var_idx]
    made = jax.eval_shape(run, given)
    outputs = [_argument(role, index, leaf) for role, leaves in made.items() for index, leaf in enumerate(leaves)]
    return Program(exported.mlir_module_serialized, inputs, outputs)


def _argument(role: str, index: int, leaf: Any) -> Argument:
    return Argument(role, index, tuple(leaf.shape), leaf.dtype.name)


def _refuse_calls(text: str) -> None:
    if called := sorted(set(re.findall(r"stablehlo\.custom_call @(\w+)", text))):
        raise ConfigurationError(
            f"a plan cannot call {', '.join(called)}, which LiteRT does not have (factorizations, as in powersgd, do); "
            "choose another compression, client algorithm or model, or clients that have the model"
        )


def read_program(context: ir.Context, artifact: bytes) -> ir.Module:
    """Read a program as a module of StableHLO; raises ValueError where it is none."""
    stablehlo.register_dialect(context)
    return stablehlo.deserialize_portable_artifact(context, artifact)
