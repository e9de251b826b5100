"""What a program may consist of: operations on numbers alone, and one function `main` of the shapes in the manifest."""

import re
from collections.abc import Iterable, Sequence

from fedlm_client.errors import PlanError
from fedlm_client.manifest import Argument

_STRUCTURE = {"module", "func", "call", "return"}
_ARITHMETIC = """
abs add and atan2 cbrt ceil clamp compare complex convert cosine count_leading_zeros divide exponential
exponential_minus_one floor imag is_finite log log_plus_one logistic maximum minimum multiply negate not or
optimization_barrier popcnt power real reduce_precision remainder round_nearest_afz round_nearest_even rsqrt select
shift_left shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor
"""
_TENSORS = """
bitcast_convert broadcast_in_dim concatenate constant dot_general convolution dynamic_slice dynamic_update_slice gather
iota pad reduce reduce_window reshape reverse scatter select_and_scatter slice sort transpose
"""
_CONTROL = "case if while tuple get_tuple_element"
ALLOWED = frozenset([*_STRUCTURE, *_ARITHMETIC.split(), *_TENSORS.split(), *_CONTROL.split()])
"""Operations by their names in StableHLO. What reads or writes anything else than tensors (custom_call, infeed, send,
collectives, ...) is not among them."""

_NAME = re.compile(r"(?:builtin|func|stablehlo|vhlo)\.([a-z0-9_]+?)(?:_v\d+)?")
_TYPE = re.compile(r"tensor(?:_v1)?<((?:\d+x)*)!?(?:vhlo\.)?([a-z0-9]+?)(?:_v1)?>")
_DTYPES = {"f32": "float32", "i32": "int32", "ui32": "uint32", "ui8": "uint8", "ui16": "uint16"}


def check_operations(names: Iterable[str]) -> None:
    """Refuse, with `PlanError`, a program that has another operation than those allowed."""
    for name in names:
        found = _NAME.fullmatch(name)
        if found is None or found[1] not in ALLOWED:
            raise PlanError(f"the plan's program has the operation {name[:80]!r}, which this client does not run")


def check_type(text: str, inputs: Sequence[Argument], outputs: Sequence[Argument]) -> None:
    """Refuse, with `PlanError`, a function of another type than the manifest has.

    Args:
      text: its type, as MLIR writes it: `(tensor<...>, ...) -> (tensor<...>, ...)`.
      inputs: what it takes by the manifest.
      outputs: what it gives by the manifest.
    """
    before, _, after = text.partition("->")
    for what, side, arguments in (("takes", before, inputs), ("gives", after, outputs)):
        found = [_argument(*one) for one in _TYPE.findall(side)]
        expected = [(one.shape, one.dtype) for one in arguments]
        if found != expected or side.count("tensor") != len(expected):
            raise PlanError(f"the plan's program {what} other tensors than its manifest says")


def _argument(dimensions: str, kind: str) -> tuple[tuple[int, ...], str]:
    return tuple(int(one) for one in dimensions.split("x")[:-1]), _DTYPES.get(kind, kind)
