"""Values of StableHLO as tensors of a graph, written out only where an operation needs them whole."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedlm.fl_core.deployment.plans.litert.graph import Graph, Tensor

MOST_FOLDED = 1 << 12
"""Entries of a constant that is computed here, at most; larger ones would make files large."""
# Ranks beyond which LiteRT's operations do not broadcast.
_BROADCAST_RANK = 4


@dataclass(frozen=True)
class Value:
    """A value of a shape, to which its tensor is broadcast as NumPy does."""

    tensor: Tensor
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    @property
    def known(self) -> bool:
        """Whether it is a constant."""
        return self.tensor.data is not None


@dataclass(frozen=True)
class Rows:
    """A value by its rows, the parts of length 1 along the first axis: what loops read and write by number."""

    rows: tuple[Value, ...]
    shape: tuple[int, ...]


AnyValue = Value | Rows


class Values:
    """Makes values in a graph; what depends on constants alone is computed here, by NumPy."""

    def __init__(self, graph: Graph):
        self.graph = graph

    def constant(self, array: np.ndarray) -> Value:
        """Return a constant; where all its entries are the same, as one."""
        if array.size > 1 and (array == array.flat[0]).all():
            return Value(self.graph.constant(array.flat[0]), array.shape)
        return Value(self.graph.constant(array), array.shape)

    def filled(self, number: float, like: AnyValue) -> Value:
        """Return a constant that has the shape and type of a value, and one number throughout."""
        return Value(self.graph.constant(np.array(number, self.joined(like).dtype)), like.shape)

    def integers(self, numbers: Sequence[int]) -> Tensor:
        """Return a constant int32 [n]: shapes and the like."""
        return self.graph.constant(np.array(numbers, np.int32))

    def joined(self, value: AnyValue) -> Value:
        """Return a value as one that has a tensor."""
        if isinstance(value, Value):
            return value
        return self.concatenate(value.rows, 0)

    def whole(self, value: AnyValue) -> Tensor:
        """Return the tensor of a value in its own shape."""
        value = self.joined(value)
        tensor = value.tensor
        if tensor.shape == value.shape:
            return tensor
        if tensor.data is not None:
            return self.graph.constant(np.broadcast_to(tensor.data, value.shape))
        if np.prod(tensor.shape) == np.prod(value.shape):
            return self.reshape(Value(tensor, tensor.shape), value.shape).tensor
        return self.graph.add("BROADCAST_TO", tensor, self.integers(value.shape), shape=value.shape, dtype=tensor.dtype)

    def elementwise(
        self,
        name: str,
        compute: Callable[..., np.ndarray],
        *operands: AnyValue,
        dtype: str | None = None,
        **options: Any,
    ) -> Value:
        """Apply an operation to values of one shape, or scalars, entry by entry.

        Args:
          name: of LiteRT's operation.
          compute: the same in NumPy.
          operands: the values, the last of the shape of the result.
          dtype: of the result; that of the last operand where it is None.
          options: of LiteRT's operation.
        """
        values = [self.joined(one) for one in operands]
        shape, dtype = values[-1].shape, dtype or values[-1].dtype
        tensors = [one.tensor for one in values]
        small = np.broadcast_shapes(*(one.shape for one in tensors))
        if all(one.data is not None for one in tensors) and np.prod(small) <= MOST_FOLDED:
            with np.errstate(all="ignore"):
                made = compute(*(one.data for one in tensors))
            return Value(self.graph.constant(np.asarray(made).astype(dtype)), shape)
        if len(small) > _BROADCAST_RANK:
            tensors = [self.whole(Value(one, small)) for one in tensors]
        return Value(self.graph.add(name, *tensors, shape=small, dtype=dtype, **options), shape)

    def broadcast(self, value: AnyValue, dimensions: Sequence[int], shape: Sequence[int]) -> Value:
        """Repeat a value so that its dimensions become those named, in ascending order, of a shape."""
        value = self.joined(value)
        lengths = dict(zip(dimensions, _with_rank(value.tensor.shape, len(value.shape)), strict=True))
        spread = [lengths.get(axis, 1) for axis in range(len(shape))]
        while spread and spread[0] == 1:
            spread.pop(0)
        return Value(self.reshape(Value(value.tensor, value.tensor.shape), spread).tensor, tuple(shape))

    def reshape(self, value: AnyValue, shape: Sequence[int]) -> Value:
        """Give the entries of a value another shape."""
        value, shape = self.joined(value), tuple(shape)
        if value.tensor.shape == () and np.prod(value.shape) != 1:
            return Value(value.tensor, shape)
        tensor = self.whole(value)
        while tensor.made_by is not None and tensor.made_by.name == "RESHAPE":
            tensor = tensor.made_by.inputs[0]
        if tensor.shape == shape:
            return Value(tensor, shape)
        if tensor.data is not None:
            return Value(self.graph.constant(tensor.data.reshape(shape)), shape)
        return Value(self.graph.add("RESHAPE", tensor, self.integers(shape), shape=shape, dtype=tensor.dtype), shape)

    def transpose(self, value: AnyValue, order: Sequence[int]) -> Value:
        """Put the dimensions of a value into another order."""
        value = self.joined(value)
        shape = tuple(value.shape[axis] for axis in order)
        if value.tensor.shape == ():
            return Value(value.tensor, shape)
        moved = [axis for axis in order if value.shape[axis] != 1]
        if moved == sorted(moved):
            return self.reshape(value, shape)
        tensor = self.whole(value)
        if tensor.data is not None:
            return Value(self.graph.constant(tensor.data.transpose(order)), shape)
        return Value(self.graph.add("TRANSPOSE", tensor, self.integers(order), shape=shape, dtype=tensor.dtype), shape)

    def concatenate(self, parts: Sequence[AnyValue], axis: int) -> Value:
        """Lay values one behind the other along an axis."""
        values = [self.joined(one) for one in parts]
        shape = list(values[0].shape)
        shape[axis] = sum(one.shape[axis] for one in values)
        if len(values) == 1:
            return values[0]
        if len({id(one.tensor) for one in values}) == 1 and values[0].tensor.shape == ():
            return Value(values[0].tensor, tuple(shape))
        tensors = [self.whole(one) for one in values]
        if all(one.data is not None for one in tensors):
            return self.constant(np.concatenate([one.data for one in tensors], axis))
        return Value(
            self.graph.add("CONCATENATION", *tensors, shape=shape, dtype=tensors[0].dtype, axis=axis), tuple(shape)
        )

    def slice(self, value: AnyValue, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> AnyValue:
        """Take the entries from `starts` to `limits`, every `strides`th."""
        shape = tuple(len(range(*one)) for one in zip(starts, limits, strides, strict=True))
        if shape == value.shape:
            return value
        if isinstance(value, Rows):
            if shape[1:] == value.shape[1:]:
                taken = value.rows[starts[0] : limits[0] : strides[0]]
                return taken[0] if len(taken) == 1 else Rows(taken, shape)
            value = self.joined(value)
        if value.tensor.shape == ():
            return Value(value.tensor, shape)
        tensor = self.whole(value)
        if tensor.data is not None:
            return self.constant(tensor.data[tuple(map(slice, starts, limits, strides))])
        if all(stride == 1 for stride in strides):
            places = self.integers(starts), self.integers(shape)
            return Value(self.graph.add("SLICE", tensor, *places, shape=shape, dtype=tensor.dtype), shape)
        places3 = self.integers(starts), self.integers(limits), self.integers(strides)
        return Value(self.graph.add("STRIDED_SLICE", tensor, *places3, shape=shape, dtype=tensor.dtype), shape)

    def update(self, value: AnyValue, new: AnyValue, starts: Sequence[int]) -> AnyValue:
        """Replace the entries from `starts` on."""
        if new.shape == value.shape:
            return new
        if new.shape[1:] == value.shape[1:] and new.shape[0] == 1:
            rows = list(self.rows(value))
            rows[starts[0]] = self.joined(new)
            return Rows(tuple(rows), value.shape)
        old = self.joined(value)
        places = (self.whole(old), self.whole(new), self.integers(starts))
        return Value(self.graph.add("DYNAMIC_UPDATE_SLICE", *places, shape=old.shape, dtype=old.dtype), old.shape)

    def rows(self, value: AnyValue) -> tuple[Value, ...]:
        """Cut a value into its rows."""
        if isinstance(value, Rows):
            return value.rows
        one = (1,) * len(value.shape)
        cut = []
        for row in range(value.shape[0]):
            starts = (row, *(0 for _ in value.shape[1:]))
            cut.append(self.joined(self.slice(value, starts, (row + 1, *value.shape[1:]), one)))
        return tuple(cut)


def _with_rank(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape
