"""Operations of StableHLO by LiteRT's.

An index outside of an array means what StableHLO says, so that LiteRT, which would not look, never sees one.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir

from fedlm.fl_core.deployment.plans.litert import words
from fedlm.fl_core.deployment.plans.litert.indexing import gather, scatter
from fedlm.fl_core.deployment.plans.litert.matrices import dot_general
from fedlm.fl_core.deployment.plans.litert.reading import (
    dtype_of,
    integer_of,
    integers_of,
    known_number,
    name_of,
    only_operation,
    refusal,
    shape_of,
)
from fedlm.fl_core.deployment.plans.litert.values import MOST_FOLDED, AnyValue, Value, Values

Operation = Callable[[Values, Any, list[AnyValue]], AnyValue]

_ELEMENTWISE: dict[str, tuple[str, Callable[..., np.ndarray]]] = {
    "abs": ("ABS", np.abs),
    "add": ("ADD", np.add),
    "cosine": ("COS", np.cos),
    "divide": ("DIV", np.divide),
    "exponential": ("EXP", np.exp),
    "floor": ("FLOOR", np.floor),
    "log": ("LOG", np.log),
    "logistic": ("LOGISTIC", lambda x: 1 / (1 + np.exp(-x))),
    "maximum": ("MAXIMUM", np.maximum),
    "minimum": ("MINIMUM", np.minimum),
    "multiply": ("MUL", np.multiply),
    "negate": ("NEG", np.negative),
    "power": ("POW", np.power),
    "rsqrt": ("RSQRT", lambda x: 1 / np.sqrt(x)),
    "sign": ("SIGN", np.sign),
    "sine": ("SIN", np.sin),
    "sqrt": ("SQRT", np.sqrt),
    "subtract": ("SUB", np.subtract),
    "tanh": ("TANH", np.tanh),
}
_LOGICAL: dict[str, tuple[str, Callable[..., np.ndarray]]] = {
    "and": ("LOGICAL_AND", np.logical_and),
    "or": ("LOGICAL_OR", np.logical_or),
    "not": ("LOGICAL_NOT", np.logical_not),
    "xor": ("NOT_EQUAL", np.not_equal),
}
_SUMS_OF_WORDS = {"add": words.add, "subtract": words.subtract}
_BITS_OF_WORDS: dict[str, Callable[..., AnyValue | None]] = {
    "and": words.masked,
    "or": words.either,
    "xor": words.exclusive_or,
}
_COMPARISONS: dict[str, tuple[str, Callable[..., np.ndarray]]] = {
    "EQ": ("EQUAL", np.equal),
    "NE": ("NOT_EQUAL", np.not_equal),
    "LT": ("LESS", np.less),
    "LE": ("LESS_EQUAL", np.less_equal),
    "GT": ("GREATER", np.greater),
    "GE": ("GREATER_EQUAL", np.greater_equal),
}
# What a reduction applies, LiteRT's reduction by it, and what it begins with.
_REDUCTIONS: dict[str, tuple[str, float]] = {
    "add": ("SUM", 0),
    "multiply": ("REDUCE_PROD", 1),
    "maximum": ("REDUCE_MAX", -math.inf),
    "minimum": ("REDUCE_MIN", math.inf),
    "and": ("REDUCE_ALL", True),
    "or": ("REDUCE_ANY", False),
}


def _elementwise(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    if dtype_of(operation) == "uint32" and name_of(operation) in _SUMS_OF_WORDS:
        return _SUMS_OF_WORDS[name_of(operation)](values, *operands)
    name, compute = _ELEMENTWISE[name_of(operation)]
    return values.elementwise(name, compute, *operands)


def _logical(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    if dtype_of(operation) == "bool":
        name, compute = _LOGICAL[name_of(operation)]
        return values.elementwise(name, compute, *operands)
    combine = _BITS_OF_WORDS.get(name_of(operation)) if dtype_of(operation) == "uint32" else None
    made = combine and combine(values, *operands)
    if made is None:
        raise refusal(name_of(operation), f"is of {dtype_of(operation)}, and depends on data")
    return made


def _shift(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    value, places = map(values.joined, operands)
    number = known_number(places)
    if value.known and places.known:
        shift = np.left_shift if name_of(operation) == "shift_left" else np.right_shift
        return values.elementwise("", shift, value, places)
    if dtype_of(operation) != "uint32" or number is None:
        raise refusal(name_of(operation), f"is of {dtype_of(operation)}, or by as many places as data says")
    shifted = words.shifted_left if name_of(operation) == "shift_left" else words.shifted_right
    return shifted(values, value, int(number))


def _compare(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    direction = str(operation.attributes["comparison_direction"]).split()[-1].rstrip(">")
    name, compute = _COMPARISONS[direction]
    return values.elementwise(name, compute, *operands, dtype="bool")


def _clamp(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    least, value, most = operands
    return values.elementwise("MINIMUM", np.minimum, most, values.elementwise("MAXIMUM", np.maximum, least, value))


def _is_finite(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    size = values.elementwise("ABS", np.abs, *operands)
    return values.elementwise("LESS", np.less, size, values.filled(np.inf, size), dtype="bool")


def _cast(values: Values, operand: AnyValue, dtype: str) -> Value:
    value = values.joined(operand)
    if dtype == value.dtype:
        return value
    return values.elementwise("CAST", lambda x: x.astype(dtype), value, dtype=dtype)


def _constant(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    dtype, shape = dtype_of(operation), shape_of(operation)
    attribute: Any = ir.DenseElementsAttr(operation.attributes["value"])
    if attribute.is_splat:
        return values.constant(np.broadcast_to(np.asarray(attribute.get_splat_value().value, dtype), shape))
    return values.constant(np.array(attribute).astype(dtype).reshape(shape))


def _iota(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    shape, axis = shape_of(operation), integer_of(operation, "iota_dimension")
    length, dtype = shape[axis], dtype_of(operation)
    if length <= MOST_FOLDED:
        return values.broadcast(values.constant(np.arange(length).astype(dtype)), [axis], shape)
    ends = (values.graph.constant(np.int32(number)) for number in (0, length, 1))
    column = Value(values.graph.add("RANGE", *ends, shape=(length,), dtype="int32"), (length,))
    return values.broadcast(_cast(values, column, dtype), [axis], shape)


def _broadcast(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    return values.broadcast(operands[0], integers_of(operation, "broadcast_dimensions"), shape_of(operation))


def _pad(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    low, high, inside = (integers_of(operation, name) for name in names)
    if min(*low, *high) < 0 or any(inside):
        raise refusal("pad", "cuts, or lies between entries")
    value, padding = map(values.joined, operands)
    around = values.graph.constant(np.stack([low, high], axis=1).astype(np.int32))
    tensor = values.graph.add(
        "PADV2", values.whole(value), around, values.whole(padding), shape=shape_of(operation), dtype=value.dtype
    )
    return Value(tensor, tensor.shape)


def _slice(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    places = (integers_of(operation, name) for name in ("start_indices", "limit_indices", "strides"))
    return values.slice(operands[0], *places)


def _dynamic_slice(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    value, sizes = operands[0], integers_of(operation, "slice_sizes")
    starts = _starts(operation, operands[1:], value.shape, sizes)
    limits = [start + size for start, size in zip(starts, sizes, strict=True)]
    return values.slice(value, starts, limits, [1] * len(sizes))


def _dynamic_update_slice(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    value, new = operands[:2]
    return values.update(value, new, _starts(operation, operands[2:], value.shape, new.shape))


def _starts(operation: Any, places: list[AnyValue], shape: Sequence[int], sizes: Sequence[int]) -> list[int]:
    starts = []
    for place, length, size in zip(places, shape, sizes, strict=True):
        start = known_number(place)
        if start is None:
            raise refusal(name_of(operation), "begins where data says")
        starts.append(min(max(int(start), 0), length - size))
    return starts


def _reduce(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    value, start = map(values.joined, operands)
    applied = only_operation(operation)
    dtype, shape = dtype_of(operation), shape_of(operation)
    if applied not in _REDUCTIONS or (applied in ("and", "or")) != (dtype == "bool"):
        raise refusal("reduce", f"applies {applied or 'several operations'} to {dtype}")
    axes = integers_of(operation, "dimensions")
    name, begins = _REDUCTIONS[applied]
    if all(value.shape[axis] == 1 for axis in axes):
        reduced = values.reshape(value, shape)
    else:
        tensor = values.graph.add(
            name, values.whole(value), values.integers(axes), shape=shape, dtype=dtype, keepDims=False
        )
        reduced = Value(tensor, shape)
    if math.isinf(begins) and dtype == "int32":
        begins = np.iinfo(np.int32).min if begins < 0 else np.iinfo(np.int32).max
    if known_number(start) == begins:
        return reduced
    combine, compute = (_LOGICAL if dtype == "bool" else _ELEMENTWISE)[applied]
    return values.elementwise(combine, compute, start, reduced)


OPERATIONS: dict[str, Operation] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_LOGICAL, _logical),
    "broadcast_in_dim": _broadcast,
    "clamp": _clamp,
    "compare": _compare,
    "concatenate": lambda values, operation, operands: values.concatenate(operands, integer_of(operation, "dimension")),
    "constant": _constant,
    "convert": lambda values, operation, operands: _cast(values, operands[0], dtype_of(operation)),
    "dot_general": dot_general,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": gather,
    "iota": _iota,
    "is_finite": _is_finite,
    "pad": _pad,
    "reduce": _reduce,
    "reshape": lambda values, operation, operands: values.reshape(operands[0], shape_of(operation)),
    "scatter": scatter,
    "select": lambda values, operation, operands: values.elementwise("SELECT_V2", np.where, *operands),
    "shift_left": _shift,
    "shift_right_logical": _shift,
    "slice": _slice,
    "transpose": lambda values, operation, operands: values.transpose(
        operands[0], integers_of(operation, "permutation")
    ),
}
"""What each operation of StableHLO becomes; calls, loops and branches are not among them."""
