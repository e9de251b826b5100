"""Products of arrays as products of matrices, which LiteRT has."""

import math
from typing import Any

from jax.extend.mlir.dialects import stablehlo

from fedlm.fl_core.deployment.plans.litert.reading import dtype_of, shape_of
from fedlm.fl_core.deployment.plans.litert.values import AnyValue, Value, Values


def dot_general(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    """Make the operation of the same name of StableHLO."""
    numbers = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
    left, right = operands
    x, rows, x_turned = _matrices(
        values,
        left,
        batch=list(numbers.lhs_batching_dimensions),
        contracted=list(numbers.lhs_contracting_dimensions),
        last=True,
    )
    y, columns, y_turned = _matrices(
        values,
        right,
        batch=list(numbers.rhs_batching_dimensions),
        contracted=list(numbers.rhs_contracting_dimensions),
        last=False,
    )
    if x_turned:
        # XNNPACK has products with a left side as it is alone.
        x = values.transpose(x, [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2])
    tensor = values.graph.add(
        "BATCH_MATMUL",
        values.whole(x),
        values.whole(y),
        shape=(*x.shape[:-2], rows, columns),
        dtype=dtype_of(operation),
        adjX=False,
        adjY=y_turned,
    )
    return values.reshape(Value(tensor, tensor.shape), shape_of(operation))


def _matrices(
    values: Values, value: AnyValue, *, batch: list[int], contracted: list[int], last: bool
) -> tuple[Value, int, bool]:
    """Make a factor a matrix for each batch.

    Args:
      values: to make it with.
      value: the factor.
      batch: its axes of batches.
      contracted: its axes that are summed over.
      last: whether these are to be the matrix' columns.

    Returns:
      The factor; the length of what is free; whether the matrices are the other way round.
    """
    free = [axis for axis in range(len(value.shape)) if axis not in batch and axis not in contracted]
    turned = [*batch, *contracted, *free] if last else [*batch, *free, *contracted]
    is_turned = turned == sorted(turned) and bool(free)
    order = turned if is_turned else [*batch, *(free if last else contracted), *(contracted if last else free)]
    length, summed = (math.prod(value.shape[axis] for axis in axes) for axes in (free, contracted))
    matrix = (length, summed) if last != is_turned else (summed, length)
    shape = (*(value.shape[axis] for axis in batch), *matrix)
    return values.reshape(values.transpose(value, order), shape), length, is_turned
