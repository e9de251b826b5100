"""A plan as a model of LiteRT: a local step, what a client sends after its last one, and predictions for a keyboard."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.mlir import ir

from fedlm.fl_core.deployment.plans.litert.graph import (
    Graph,
    Signature,
    Tensor,
    count_operations,
    load_schema,
    write_model,
)
from fedlm.fl_core.deployment.plans.litert.lowering import lower
from fedlm.fl_core.deployment.plans.plan import PlanSource, make_plan, model_of_clients
from fedlm.fl_core.deployment.plans.programs import Argument, Program, make_inference, read_program, versions
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.local_sgd import TrainingSums

FORMAT, VERSION = "fedlm-litert", 1
# Types at the boundary that LiteRT.js lacks, and those of the same bits that stand for them there.
_SIGNED = {"uint32": "int32"}
# Of the plan's manifest, what holds whatever runs its programs.
_SHARED = ("about", "download", "state", "upload", "examples", "batches", "shuffle", "tokenizer")


@dataclass(frozen=True)
class LitertPlan:
    """What clients train, for LiteRT."""

    manifest: bytes  # JSON in UTF-8
    model: bytes

    @property
    def digest(self) -> str:
        """Its name: the SHA-256, in hex, of the manifest, which has that of the model."""
        return hashlib.sha256(self.manifest).hexdigest()


def make_litert_plan(source: PlanSource) -> LitertPlan:
    """Make the plan of a model for LiteRT, and run each of its functions once; the same arguments give the same bytes.

    Raises:
      ConfigurationError: ai-edge-litert is not installed; LiteRT's built-in operations cannot compute a program, or the
        model does not predict the next token.
    """
    load_schema()
    # Whichever version of StableHLO a client reads, its plan computes what this model does.
    plans = [make_plan(source, version) for version in versions()]
    version, plan = versions()[0], plans[0]
    inference = make_inference(
        *model_of_clients(source.name, source.vocabulary_size, source.settings), source.settings.length, version
    )
    manifest = json.loads(plan.manifest)
    programs = {
        "train": Program(plan.step, *_sides(manifest["programs"]["step"])),
        "finish": Program(plan.finish, *_sides(manifest["programs"]["finish"])),
        "infer": inference,
    }
    names = _names(manifest)
    graph = Graph()
    signatures = {key: _signature(graph, program, names) for key, program in programs.items()}
    model = write_model(signatures, f"fedlm {source.name}")
    operations = count_operations(model)
    _try(model, programs, names)
    described = {
        "format": FORMAT,
        "version": VERSION,
        **{one: manifest[one] for one in _SHARED},
        "plans": [one.digest for one in plans],
        "model": {"sha256": hashlib.sha256(model).hexdigest(), "bytes": len(model)},
        "signatures": {
            key: {
                "inputs": _described(program.inputs, names),
                "outputs": _described(program.outputs, names),
                "operations": operations[key],
            }
            for key, program in programs.items()
        },
    }
    return LitertPlan(json.dumps(described, separators=(",", ":")).encode(), model)


_Names = dict[str, list[str]]


def _sides(described: dict[str, Any]) -> tuple[list[Argument], list[Argument]]:
    inputs, outputs = (
        [Argument(**one | {"shape": tuple(one["shape"])}) for one in described[side]] for side in ("inputs", "outputs")
    )
    return inputs, outputs


def _names(manifest: dict[str, Any]) -> _Names:
    """Name the arguments of those roles that have several."""
    download = [one["name"] for one in manifest["download"]["tensors"]]
    return {
        "download": download,
        "parameters": download,
        "state": [one["name"] for one in manifest["state"]],
        "sums": list(TrainingSums._fields),
    }


def _name(argument: Argument, names: _Names) -> str:
    if argument.role == "upload":
        return f"upload/{argument.index}"
    if argument.role in names:
        return f"{argument.role}/{names[argument.role][argument.index]}"
    return argument.role


def _described(arguments: Sequence[Argument], names: _Names) -> list[dict[str, Any]]:
    return [
        {"name": _name(one, names), **dataclasses.asdict(one), "shape": list(one.shape), "dtype": _outside(one)}
        for one in arguments
    ]


def _outside(argument: Argument) -> str:
    """Say of what type an argument or a result is at the boundary of a function."""
    return _SIGNED.get(argument.dtype, argument.dtype)


def _signature(graph: Graph, program: Program, names: _Names) -> Signature:
    inputs = {_name(one, names): Tensor(one.shape, _outside(one)) for one in program.inputs}
    arguments = [graph.cast(made, one.dtype) for one, made in zip(program.inputs, inputs.values(), strict=True)]
    with ir.Context() as context:
        results = lower(read_program(context, program.content), graph, arguments)
    outputs = zip(program.outputs, results, strict=True)
    return Signature(inputs, {_name(one, names): graph.cast(made, _outside(one)) for one, made in outputs})


def _try(model: bytes, programs: dict[str, Program], names: _Names) -> None:
    """Run each function on zeros: what the runtime does not compute it says no earlier."""
    from ai_edge_litert.interpreter import Interpreter

    try:
        interpreter = Interpreter(model_content=model, num_threads=1)
        interpreter.allocate_tensors()
        for key, program in programs.items():
            zeros = {_name(one, names): np.zeros(one.shape, _outside(one)) for one in program.inputs}
            interpreter.get_signature_runner(key)(**zeros)
    except (RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"LiteRT does not run the model that was made: {error}; choose another model, client algorithm, "
            f"compression or precision, or export the plan with {setting('format', 'stablehlo')}"
        ) from error
