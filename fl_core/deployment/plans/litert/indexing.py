"""Gathers and scatters of StableHLO by LiteRT's."""

from typing import Any

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from fedlm.fl_core.deployment.plans.litert.reading import integers_of, known_number, only_operation, refusal, shape_of
from fedlm.fl_core.deployment.plans.litert.values import AnyValue, Value, Values


def gather(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    """Take whole parts of an array by indices; an index outside is the nearest inside."""
    numbers = stablehlo.GatherDimensionNumbers(operation.attributes["dimension_numbers"])
    operand, indices = map(values.joined, operands)
    axes, batch = list(numbers.start_index_map), list(numbers.operand_batching_dims)
    others = [axis for axis in range(len(operand.shape)) if axis not in (*axes, *batch)]
    sizes = integers_of(operation, "slice_sizes")
    if any(sizes[axis] != 1 for axis in axes) or any(sizes[axis] != operand.shape[axis] for axis in others):
        raise refusal("gather", "takes parts of an array that begin where data says")
    if len(axes) != 1 and batch:
        raise refusal("gather", "has batches and several indices")
    places, left = _indices(values, indices, list(numbers.start_indices_batching_dims), numbers.index_vector_dim)
    places = _moved_inside(values, places, [operand.shape[axis] for axis in axes])
    operand = values.transpose(operand, [*batch, *axes, *others])
    outer, inner = places.shape[:-1], tuple(operand.shape[len(batch) + len(axes) :])
    if len(axes) == 1:
        # Indices that are the same for all batches are not taken for LiteRT's.
        name, options = "GATHER", {"axis": len(batch), "batchDims": len(batch)}
        places = values.reshape(places, outer)
    else:
        name, options = "GATHER_ND", {}
    tensor = values.graph.add(
        name, values.whole(operand), values.whole(places), shape=outer + inner, dtype=operand.dtype, **options
    )
    # Where each axis of the result comes from: the indices, but for those that parts of the operand have.
    offset = list(numbers.offset_dims)
    kept = [axis for axis in range(len(operand.shape)) if axis not in (*numbers.collapsed_slice_dims, *batch)]
    windows = dict(zip(offset, kept, strict=True))
    shape = shape_of(operation)
    outer_axes = iter(left)
    order = []
    for axis in range(len(shape)):
        if axis not in windows:
            order.append(next(outer_axes))
        elif windows[axis] in others:
            order.append(len(outer) + others.index(windows[axis]))
    return values.reshape(values.transpose(Value(tensor, tensor.shape), order), shape)


def _indices(values: Values, indices: Value, batch: list[int], vector: int) -> tuple[Value, list[int]]:
    """Lay out indices for LiteRT.

    Args:
      values: to make them with.
      indices: int32.
      batch: their axes of batches.
      vector: the axis along which the parts of an index lie, or none of them where an index is one number.

    Returns:
      Indices with batches first and their parts last; the place in it of each axis but that of parts, in its order.
    """
    if vector == len(indices.shape):
        indices = values.reshape(indices, (*indices.shape, 1))
    axes = [axis for axis in range(len(indices.shape)) if axis != vector]
    order = [*batch, *(axis for axis in axes if axis not in batch)]
    return values.transpose(indices, [*order, vector]), [order.index(axis) for axis in axes]


def _moved_inside(values: Values, places: Value, lengths: list[int]) -> Value:
    """Move indices to the nearest within axes of these lengths."""
    most = values.constant(np.array([length - 1 for length in lengths], np.int32))
    most = values.broadcast(most, [len(places.shape) - 1], places.shape)
    places = values.elementwise("MINIMUM", np.minimum, most, places)
    return values.elementwise("MAXIMUM", np.maximum, values.filled(0, places), places)


def scatter(values: Values, operation: Any, operands: list[AnyValue]) -> AnyValue:
    """Add whole parts to an array by indices; an index outside adds nothing."""
    if len(operands) != 3 or only_operation(operation) != "add":
        raise refusal("scatter", "does something else than to add")
    numbers = stablehlo.ScatterDimensionNumbers(operation.attributes["scatter_dimension_numbers"])
    operand, indices, updates = map(values.joined, operands)
    axes, windows = list(numbers.scattered_dims_to_operand_dims), list(numbers.update_window_dims)
    others = [axis for axis in range(len(operand.shape)) if axis not in axes]
    whole = [updates.shape[axis] for axis in windows] == [operand.shape[axis] for axis in others]
    if list(numbers.input_batching_dims) or sorted(numbers.inserted_window_dims) != sorted(axes) or not whole:
        raise refusal("scatter", "has batches, or adds to parts that begin where data says")
    places, _ = _indices(values, indices, [], numbers.index_vector_dim)
    rest = [axis for axis in range(len(updates.shape)) if axis not in windows]
    updates = values.transpose(updates, [*rest, *windows])
    inside = _moved_inside(values, places, [operand.shape[axis] for axis in axes])
    is_inside = values.elementwise("EQUAL", np.equal, inside, places, dtype="bool")
    outer = places.shape[:-1]
    if len(axes) == 1:
        is_inside = values.reshape(is_inside, outer)
    else:
        tensor = values.graph.add(
            "REDUCE_ALL",
            values.whole(is_inside),
            values.integers([len(outer)]),
            shape=outer,
            dtype="bool",
            keepDims=False,
        )
        is_inside = Value(tensor, outer)
    is_inside = values.broadcast(is_inside, range(len(outer)), updates.shape)
    updates = values.elementwise("SELECT_V2", np.where, is_inside, updates, values.filled(0, updates))
    shape = tuple(operand.shape[axis] for axis in (*axes, *others))
    added = values.graph.add(
        "SCATTER_ND",
        values.whole(inside),
        values.whole(updates),
        values.integers(shape),
        shape=shape,
        dtype=operand.dtype,
    )
    back = [(*axes, *others).index(axis) for axis in range(len(shape))]
    total = values.transpose(Value(added, shape), back)
    if known_number(operand) == 0:
        return total
    return values.elementwise("ADD", np.add, operand, total)
