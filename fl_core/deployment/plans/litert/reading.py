"""Reads what an operation of StableHLO says of itself, and says why one cannot be a model of LiteRT."""

from typing import Any

from jax.extend.mlir import ir

from fedlm.fl_core.deployment.plans.litert.values import AnyValue, Value
from fedlm.fl_core.errors import ConfigurationError

_TYPES = {
    "f32": "float32",
    "i1": "bool",
    "i32": "int32",
    "i64": "int64",
    "ui8": "uint8",
    "ui16": "uint16",
    "ui32": "uint32",
    "ui64": "uint64",
}


def refusal(name: str, why: str) -> ConfigurationError:
    """Say why a program cannot be a model of LiteRT."""
    return ConfigurationError(
        f"LiteRT has no built-in operation for {name} of StableHLO here: it {why}; choose another model, client "
        "algorithm, compression or precision, or clients that have the model"
    )


def known_number(value: AnyValue) -> float | None:
    """Return the number that all entries of a value are, where that is known."""
    if not isinstance(value, Value) or value.tensor.data is None or value.tensor.data.size != 1:
        return None
    return value.tensor.data.item()


def name_of(operation: Any) -> str:
    """Name an operation."""
    return operation.name.removeprefix("stablehlo.")


def _type_of(operation: Any) -> ir.RankedTensorType:
    return ir.RankedTensorType(operation.results[0].type)


def shape_of(operation: Any) -> tuple[int, ...]:
    """Say what shape it makes."""
    return tuple(_type_of(operation).shape)


def dtype_of(operation: Any) -> str:
    """Say of which type, as NumPy calls it; raises ConfigurationError where no model has such."""
    element = str(_type_of(operation).element_type)
    if element not in _TYPES:
        raise refusal(name_of(operation), f"has values of the type {element}")
    return _TYPES[element]


def integers_of(operation: Any, name: str) -> list[int]:
    """Read an attribute."""
    return list(ir.DenseI64ArrayAttr(operation.attributes[name]))


def integer_of(operation: Any, name: str) -> int:
    """Read an attribute."""
    return ir.IntegerAttr(operation.attributes[name]).value


def only_operation(operation: Any) -> str:
    """Name the operation that a region applies to its arguments; nothing where it does more."""
    body = list(operation.regions[0].blocks[0].operations)
    if len(body) != 2 or list(body[0].operands) != list(operation.regions[0].blocks[0].arguments):
        return ""
    return name_of(body[0])
