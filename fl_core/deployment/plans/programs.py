"""The two programs of a plan, a client's local step and what it sends after its last one, as StableHLO."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import export
from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import stablehlo

from fedlm.fl_core.client_algorithms.interface import Broadcast, ClientAlgorithm, LocalState, sent_by_server
from fedlm.fl_core.compression.compressors import Compressor, compress_update
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.local_sgd import LocalTraining, TrainingSums, algorithm_step
from fedlm.fl_core.randomness import device_key
from fedlm.models.base import Batch, Model
from fedlm.models.decoding import decoder_of
from fedlm.models.precision import Precision, precision_scope

_Requirement = stablehlo.StablehloCompatibilityRequirement
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
    """A function `main` as a portable artifact of StableHLO (VHLO bytecode), without names of files or functions."""

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

    step: Program
    finish: Program
    download: list[Tensor]  # what the server sends, in order
    state: list[Tensor]  # what a client carries from step to step
    begins: list[int | None]  # for each of these the tensor of the download that it begins as; zeros where None


def versions() -> list[str]:
    """List the versions of StableHLO that programs can be made for, the newest first."""
    names = (_Requirement.NONE, _Requirement.WEEK_4, _Requirement.WEEK_12)
    return list(dict.fromkeys(stablehlo.get_version_from_compatibility_requirement(one) for one in names))


def make_programs(
    model: Model, precision: Precision, training: LocalTraining, compressor: Compressor, length: int, version: str
) -> PlanPrograms:
    """Trace and lower a client's training for CPUs, with fixed shapes.

    Args:
      model: the model, with its precision and dropout.
      precision: the same, resolved.
      training: how clients train.
      compressor: how updates travel.
      length: target tokens of a sequence.
      version: of StableHLO, one of `versions()`.

    Raises:
      ConfigurationError: the program would need code that it does not carry, or begins from other tensors than a client
        has.
    """
    algorithm = training.algorithm
    server = sent_by_server(algorithm, jax.eval_shape(model.init, jax.random.key(0)))
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
        step = _lower(
            _step(model, training, server, local),
            {"state": jax.tree_util.tree_leaves(local), "download": jax.tree_util.tree_leaves(server)}
            | {"sums": list(sums)}
            | rows,
            version,
        )
        finish = _lower(
            _finish(algorithm, compressor, server, local),
            {"state": jax.tree_util.tree_leaves(local), "download": jax.tree_util.tree_leaves(server)}
            | {"seed": [_word], "round_number": [_word], "client_index": [_word]},
            version,
        )
    return PlanPrograms(step, finish, _tensors(server), _tensors(local), _beginnings(algorithm, server))


def make_inference(model: Model, precision: Precision, length: int, version: str) -> Program:
    """Trace and lower what a model expects after the beginning of a text, for CPUs.

    Args:
      model: the model; it predicts the next token.
      precision: its own.
      length: tokens of a beginning at most, BOS among them.
      version: of StableHLO, one of `versions()`.

    Returns:
      A program of `parameters`, `tokens`, int32 [1, length], and `count`, int32 [1], how many of these there are; its
      result is `logits`, float32 [vocabulary].

    Raises:
      ConfigurationError: the model does not predict the next token.
    """
    params = jax.eval_shape(model.init, jax.random.key(0))
    decoder = decoder_of(model)

    def run(given: _Given) -> dict[str, list[jax.Array]]:
        prepared = decoder.prepare(_filled(params, given["parameters"]))
        logits, _ = decoder.read(prepared, decoder.begin(prepared, 1, length), given["tokens"][0], given["count"][0])
        return {"logits": [logits[0].astype(jnp.float32)]}

    prompt = {
        "tokens": [jax.ShapeDtypeStruct((1, length), jnp.int32)],
        "count": [jax.ShapeDtypeStruct((1,), jnp.int32)],
    }
    with precision_scope(precision):
        return _lower(run, {"parameters": jax.tree_util.tree_leaves(params)} | prompt, version)


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
            batch,
            given["learning_rate"][0],
            training.gradient_clip,
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
        pieces = [piece for tensor in compressed for piece in compressor.pieces(tensor)]
        return {"upload": pieces, "finite": [finite.astype(jnp.int32)]}

    return run


def _filled(like: Any, leaves: Sequence[Any]) -> Any:
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(like), leaves)


def _tensors(tree: Any) -> list[Tensor]:
    named = jax.tree_util.tree_leaves_with_path(tree)
    return [
        Tensor(
            jax.tree_util.keystr(path, simple=True, separator="/").removeprefix("params/"), leaf.shape, leaf.dtype.name
        )
        for path, leaf in named
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
            f"the client algorithm {type(algorithm).__name__} begins with other tensors than what the server sends and "
            "zeros, for which a plan has no place; take another client algorithm, or clients that have it"
        )
    return found


def _lower(run: Callable[[_Given], dict[str, list[jax.Array]]], given: _Given, version: str) -> Program:
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
    content = _portable(exported.mlir_module_serialized, version)
    inputs = [_argument(*roles[place], shapes[place]) for place in exported.module_kept_var_idx]
    made = jax.eval_shape(run, given)
    outputs = [_argument(role, index, leaf) for role, leaves in made.items() for index, leaf in enumerate(leaves)]
    return Program(content, inputs, outputs)


def _argument(role: str, index: int, leaf: Any) -> Argument:
    return Argument(role, index, tuple(leaf.shape), leaf.dtype.name)


def _refuse_calls(text: str) -> None:
    if called := sorted(set(re.findall(r"stablehlo\.custom_call @(\w+)", text))):
        raise ConfigurationError(
            f"a client's program would call {', '.join(called)}, which is code that a plan does not carry "
            "(factorizations, as in powersgd, are); choose another compression, client algorithm or model"
        )


def _portable(artifact: bytes, version: str) -> bytes:
    """Serialize a module for a version of StableHLO, without what says where our code lies."""
    with ir.Context() as context:
        module = read_program(context, artifact)
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        return bytes(stablehlo.serialize_portable_artifact(module, version))


def count_operations(artifact: bytes) -> dict[str, int]:
    """Count the operations of a program by name; raises ValueError where it is none."""
    found: Counter[str] = Counter()

    def visit(operation: ir.Operation) -> ir.WalkResult:
        found[operation.name] += 1
        return ir.WalkResult.ADVANCE

    with ir.Context() as context:
        read_program(context, artifact).operation.walk(visit)
    return dict(found)


def read_program(context: ir.Context, artifact: bytes) -> ir.Module:
    """Read a program as a module of StableHLO; raises ValueError where it is none."""
    stablehlo.register_dialect(context)
    return stablehlo.deserialize_portable_artifact(context, artifact)
