"""Programs of a plan as one model of LiteRT."""

import dataclasses
from collections.abc import Sequence
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
from fedlm.fl_core.deployment.plans.programs import Argument, PlanPrograms, Program, read_program
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.local_sgd import TrainingSums

# Types at the boundary that LiteRT.js lacks, and those of the same bits that stand for them there.
_SIGNED = {"uint32": "int32"}


def make_model(programs: PlanPrograms, name: str, compression: str) -> tuple[bytes, dict[str, Any]]:
    """Make a model with a function for each program, and run each once; the same programs give the same bytes.

    Args:
      programs: what it computes.
      name: of the model that is trained, which its description and errors have.
      compression: of uploads, for errors.

    Returns:
      Its file, and its signatures as a manifest has them.

    Raises:
      ConfigurationError: ai-edge-litert is not installed, or LiteRT's built-in operations cannot compute a program.
    """
    load_schema()
    made = {"train": programs.train, "finish": programs.finish, "infer": programs.infer}
    parts = {
        "train": f"a local step of {name}",
        "finish": f"uploads by {compression}",
        "infer": f"predictions of {name}",
    }
    names = _names(programs)
    graph = Graph()
    signatures = {}
    for key, program in made.items():
        try:
            signatures[key] = _signature(graph, program, names)
        except ConfigurationError as error:
            raise ConfigurationError(f"{parts[key]} cannot be part of a plan: {error}") from error
    model = write_model(signatures, f"fedlm {name}")
    operations = count_operations(model)
    _try(model, made, names)
    described = {
        key: {
            "inputs": _described(program.inputs, names),
            "outputs": _described(program.outputs, names),
            "operations": operations[key],
        }
        for key, program in made.items()
    }
    return model, described


_Names = dict[str, list[str]]


def _names(programs: PlanPrograms) -> _Names:
    """Name the arguments of those roles that have several."""
    download = [one.name for one in programs.download]
    return {
        "download": download,
        "parameters": download,
        "state": [one.name for one in programs.state],
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
            "compression or precision, or clients that have the model"
        ) from error
