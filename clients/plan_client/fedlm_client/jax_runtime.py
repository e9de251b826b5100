"""Runs programs with JAX; imported in the process of `worker.py` alone."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import core, export
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from fedlm_client.manifest import Program
from fedlm_client.operations import check_operations, check_type

Run = Callable[[Sequence[Any]], list[Any]]

_CALLING_CONVENTION = 10


def newest_stablehlo() -> str:
    """Say which version of StableHLO is read."""
    return str(stablehlo.get_current_version())


def check(content: bytes, program: Program) -> None:
    """Refuse, with `PlanError`, a program that does more than compute, or has other shapes than the manifest says."""
    with ir.Context() as context:
        stablehlo.register_dialect(context)
        module = stablehlo.deserialize_portable_artifact(context, content)
        names: list[str] = []
        types: list[str] = []

        def visit(operation: ir.Operation) -> ir.WalkResult:
            names.append(operation.name)
            if operation.name == "func.func" and str(operation.attributes["sym_name"]) == '"main"':
                types.append(str(operation.attributes["function_type"]))
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
    check_operations(names)
    check_type("".join(types), program.inputs, program.outputs)


def load(content: bytes, program: Program) -> Run:
    """Compile a program that `check` has found nothing wrong with."""
    taken = tuple(core.ShapedArray(one.shape, np.dtype(one.dtype)) for one in program.inputs)
    given = tuple(core.ShapedArray(one.shape, np.dtype(one.dtype)) for one in program.outputs)
    nowhere = (None,) * len(taken), (None,) * len(given)
    exported = export.Exported(
        fun_name="main",
        in_tree=jax.tree_util.tree_structure((taken, {})),
        in_avals=taken,
        out_tree=jax.tree_util.tree_structure(given),
        out_avals=given,
        _has_named_shardings=True,
        _in_named_shardings=nowhere[0],
        _out_named_shardings=nowhere[1],
        in_shardings_hlo=nowhere[0],
        out_shardings_hlo=nowhere[1],
        nr_devices=1,
        platforms=("cpu",),
        ordered_effects=(),
        unordered_effects=(),
        disabled_safety_checks=(),
        mlir_module_serialized=content,
        calling_convention_version=_CALLING_CONVENTION,
        module_kept_var_idx=tuple(range(len(taken))),
        uses_global_constants=False,
        _get_vjp=None,
    )
    compiled = jax.jit(exported.call).lower(*taken).compile()
    return lambda arguments: list(compiled(*arguments))
