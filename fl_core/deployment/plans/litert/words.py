"""Arithmetic of unsigned 32-bit words, for which LiteRT has products, exclusive or and shifts to the right alone.

Sums are those of signed words, which have the same bits where overflow wraps, as it does in LiteRT's kernels. Words are
CAST to signed ones: the result of a BITCAST shares its operand's memory, which the runtime then writes over too early
(seen in ai-edge-litert 2.3.0).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedlm.fl_core.deployment.plans.litert.graph import Tensor
from fedlm.fl_core.deployment.plans.litert.values import AnyValue, Value, Values

_BITS = 32
_ALL = (1 << _BITS) - 1


def add(values: Values, left: AnyValue, right: AnyValue) -> Value:
    """Add words modulo 2^32."""
    return _as_signed(values, "ADD", np.add, left=left, right=right)


def subtract(values: Values, left: AnyValue, right: AnyValue) -> Value:
    """Subtract words modulo 2^32."""
    return _as_signed(values, "SUB", np.subtract, left=left, right=right)


def exclusive_or(values: Values, left: AnyValue, right: AnyValue) -> Value:
    """Combine words bit by bit."""
    # A factor that is broadcast on the left is read wrongly.
    whole = [Value(values.whole(one), one.shape) for one in (left, right)]
    return values.elementwise("BITWISE_XOR", np.bitwise_xor, *whole)


def either(values: Values, left: AnyValue, right: AnyValue) -> Value | None:
    """Combine words that have no bit in common by or; None where they may have one."""
    if _possible(values.joined(left).tensor) & _possible(values.joined(right).tensor):
        return None
    return exclusive_or(values, left, right)


def masked(values: Values, left: AnyValue, right: AnyValue) -> AnyValue | None:
    """Keep those bits of words that are set in a constant of all bits; None where it is another."""
    for value, mask in ((left, right), (right, left)):
        data = values.joined(mask).tensor.data
        if data is not None and np.all(data == _ALL):
            return value
    return None


def shifted_left(values: Values, value: AnyValue, places: int) -> Value:
    """Shift words to the left."""
    factor = (1 << places) & _ALL if 0 <= places < _BITS else 0
    return values.elementwise("MUL", np.multiply, values.filled(factor, value), value)


def shifted_right(values: Values, value: AnyValue, places: int) -> Value:
    """Shift words to the right, zeros behind them."""
    if not 0 <= places < _BITS:
        return values.filled(0, value)
    return values.elementwise("RIGHT_SHIFT", np.right_shift, value, values.filled(places, value))


def _as_signed(
    values: Values, name: str, compute: Callable[..., np.ndarray], *, left: AnyValue, right: AnyValue
) -> Value:
    signed = [_with_sign(values, one, "int32") for one in (left, right)]
    return _with_sign(values, values.elementwise(name, compute, *signed), "uint32")


def _with_sign(values: Values, value: AnyValue, dtype: str) -> Value:
    value = values.joined(value)
    made: Any = value.tensor.made_by
    if made is not None and made.name == "CAST" and made.inputs[0].dtype == dtype:
        return Value(made.inputs[0], value.shape)
    return values.elementwise("CAST", lambda x: np.asarray(x).view(dtype), value, dtype=dtype)


def _possible(tensor: Tensor) -> int:
    """Say which bits of a tensor's words may be set."""
    if tensor.data is not None:
        return int(np.bitwise_or.reduce(tensor.data, axis=None))
    made: Any = tensor.made_by
    if made is None:
        return _ALL
    if made.name in ("RESHAPE", "BROADCAST_TO"):
        return _possible(made.inputs[0])
    shifts = {"RIGHT_SHIFT": lambda bits, by: bits >> by, "MUL": lambda bits, by: bits * by & _ALL}
    constant = next((one.data for one in made.inputs if one.data is not None and one.data.size == 1), None)
    if made.name not in shifts or constant is None:
        return _ALL
    by = int(constant.item())
    if made.name == "MUL" and by & (by - 1):
        return _ALL
    other = next(one for one in made.inputs if one.data is not constant)
    return shifts[made.name](_possible(other), by)
