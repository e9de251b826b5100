"""Runs a plan's model by LiteRT; imported in the process of `worker.py` alone."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

from ..errors import PlanError
from .manifest import Argument, Manifest, Signature

ALLOWED = frozenset(
    """
ABS ADD BATCH_MATMUL BITWISE_XOR BROADCAST_TO CAST CONCATENATION COS DIV DYNAMIC_UPDATE_SLICE EQUAL EXP FLOOR GATHER
GATHER_ND GREATER GREATER_EQUAL LESS LESS_EQUAL LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR LOGISTIC MAXIMUM MINIMUM MUL NEG
NOT_EQUAL PADV2 POW RANGE REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD RESHAPE REVERSE_V2 RIGHT_SHIFT ROUND
RSQRT SCATTER_ND SELECT_V2 SIGN SIN SLICE SQRT STRIDED_SLICE SUB SUM TANH TRANSPOSE
""".split()
)
"""Operations by their names in LiteRT's schema, those that fedlm writes: all compute with tensors, and keep nothing."""

Run = Callable[[Sequence[Any]], list[Any]]
_NUMBERS = {getattr(schema.BuiltinOperator, name): name for name in vars(schema.BuiltinOperator) if name[0] != "_"}


def load(content: bytes, manifest: Manifest) -> tuple[Run, Run]:
    """Load a model; returns its functions train and finish, which take and give tensors in the manifest's order.

    Raises:
      PlanError: it does more than compute, or has other tensors than the manifest says.
    """
    check_operations(content)
    interpreter = Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    known = interpreter.get_signature_list()
    if missing := {"train", "finish"} - set(known):
        raise PlanError(f"the plan's model lacks the signature {min(missing)}")
    return _function(interpreter, "train", manifest.train), _function(interpreter, "finish", manifest.finish)


def check_operations(content: bytes) -> None:
    """Refuse, with `PlanError`, a model that has another operation than those allowed, or data in other files."""
    model = schema.Model.GetRootAs(content)
    if not (model.ExternalBuffersIsNone() and model.ExternalBufferGroupsIsNone()):
        raise PlanError("the plan's model asks for other files")
    for place in range(model.OperatorCodesLength()):
        code = model.OperatorCodes(place)
        # Older files have it in the one field, newer ones in the other.
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        name = _NUMBERS.get(number, str(number))
        if name not in ALLOWED:
            raise PlanError(f"the plan's model has the operation {name}, which this client does not run")


def _function(interpreter: Interpreter, name: str, signature: Signature) -> Run:
    runner = interpreter.get_signature_runner(name)
    _check_side(f"{name} takes", signature.inputs, runner.get_input_details())
    _check_side(f"{name} gives", signature.outputs, runner.get_output_details())

    def run(arguments: Sequence[Any]) -> list[Any]:
        given = zip(signature.inputs, arguments, strict=True)
        made = runner(**{one.name: np.asarray(value, one.dtype) for one, value in given})
        return [made[one.name] for one in signature.outputs]

    return run


def _check_side(what: str, arguments: Sequence[Argument], found: dict[str, dict[str, Any]]) -> None:
    types = {name: (tuple(map(int, one["shape"])), np.dtype(one["dtype"]).name) for name, one in found.items()}
    if types != {one.name: (one.shape, one.dtype) for one in arguments}:
        raise PlanError(f"the plan's model {what} other tensors than its manifest says")
