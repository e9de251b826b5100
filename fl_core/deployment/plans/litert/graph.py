"""Graphs of LiteRT's built-in operations, and their file; the format is that of LiteRT's schema.fbs, version 3."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedlm.fl_core.extras import extra

_VERSIONS = {"BROADCAST_TO": 2, "GATHER": 5}
# Where an operation has options at all; the names of the others follow from their operations'.
_OPTIONS = {
    "SUM": "Reducer",
    "REDUCE_MAX": "Reducer",
    "REDUCE_MIN": "Reducer",
    "REDUCE_PROD": "Reducer",
    "REDUCE_ANY": "Reducer",
    "REDUCE_ALL": "Reducer",
    "MAXIMUM": "MaximumMinimum",
    "MINIMUM": "MaximumMinimum",
    "BATCH_MATMUL": "BatchMatMul",
    "PADV2": "PadV2",
    "SELECT_V2": "SelectV2",
    "REVERSE_V2": "ReverseV2",
}
_WITHOUT_OPTIONS = {"FLOOR", "LOG", "LOGISTIC", "ROUND", "RSQRT", "SIN", "SQRT", "TANH"}


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a graph: a constant where `data` is not None, an argument where nothing makes it."""

    shape: tuple[int, ...]
    dtype: str
    data: np.ndarray | None = None
    made_by: "Operation | None" = None


@dataclass(frozen=True, eq=False)
class Operation:
    """A built-in operation with one result, which refers to it."""

    name: str  # in the schema
    inputs: tuple[Tensor, ...]
    options: tuple[tuple[str, Any], ...] = ()


@dataclass
class Graph:
    """Makes operations, each only once for the same inputs."""

    _made: dict[Any, Tensor] = field(default_factory=dict)
    _constants: dict[Any, Tensor] = field(default_factory=dict)

    def constant(self, value: Any) -> Tensor:
        """Return the tensor of an array."""
        data = np.ascontiguousarray(value).reshape(np.shape(value))
        key = (data.shape, data.dtype.name, data.tobytes())
        return self._constants.setdefault(key, Tensor(data.shape, data.dtype.name, data))

    def add(self, name: str, *inputs: Tensor, shape: Sequence[int], dtype: str, **options: Any) -> Tensor:
        """Return the result of an operation, float32 or of whatever type and shape it has."""
        operation = Operation(name, inputs, tuple(options.items()))
        key = (name, tuple(map(id, inputs)), operation.options, tuple(shape), dtype)
        return self._made.setdefault(key, Tensor(tuple(shape), dtype, None, operation))

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return a tensor's entries as another type; of integers of 32 bits, signed or not, with the same bits."""
        if dtype == tensor.dtype:
            return tensor
        return self.add("CAST", tensor, shape=tensor.shape, dtype=dtype)


@dataclass(frozen=True)
class Signature:
    """A function of a model: its arguments and results by name."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


def load_schema() -> Any:
    """Import the module with the classes of LiteRT's schema.

    Raises:
      MissingExtraError: it is not installed.
    """
    with extra("litert"):
        from ai_edge_litert import schema_py_generated
    return schema_py_generated


def write_model(signatures: Mapping[str, Signature], description: str) -> bytes:
    """Make the file of a model whose functions share nothing but their constants; the same signatures give the same
    bytes.

    Args:
      signatures: by name. An argument may be a result too, and a result have several names.
      description: of the model, for those who look into it.

    Raises:
      MissingExtraError: ai-edge-litert is not installed.
    """
    return _File(load_schema()).write(signatures, description)


def count_operations(model: bytes) -> dict[str, dict[str, int]]:
    """Count the operations of each function of a model by their names in the schema, custom ones as CUSTOM.

    Raises:
      MissingExtraError: ai-edge-litert is not installed.
    """
    schema = load_schema()
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    read = schema.ModelT.InitFromPackedBuf(model, 0)
    used = [names[one.builtinCode] for one in read.operatorCodes]
    return {
        definition.signatureKey.decode(): dict(
            Counter(used[one.opcodeIndex] for one in read.subgraphs[definition.subgraphIndex].operators)
        )
        for definition in read.signatureDefs
    }


class _File:
    def __init__(self, schema: Any):
        self._schema = schema
        self._model = schema.ModelT()
        self._model.version = 3
        # Buffer 0 is that of tensors which have no data.
        self._model.buffers = [schema.BufferT()]
        self._model.operatorCodes, self._model.subgraphs, self._model.signatureDefs = [], [], []
        self._codes: dict[str, int] = {}
        self._buffers: dict[int, int] = {}
        self._copies: list[Tensor] = []  # whose identities are those of no other tensor as long as they are kept

    def write(self, signatures: Mapping[str, Signature], description: str) -> bytes:
        import flatbuffers

        self._model.description = description
        for name, signature in signatures.items():
            self._add(name, signature)
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(self._model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _add(self, name: str, signature: Signature) -> None:
        subgraph = self._schema.SubGraphT()
        subgraph.name, subgraph.tensors, subgraph.operators = name, [], []
        places: dict[int, int] = {}
        for argument, tensor in signature.inputs.items():
            places[id(tensor)] = self._tensor(subgraph, tensor, argument)
        subgraph.inputs = list(places.values())
        taken = set(places)
        outputs: dict[str, int] = {}
        for result, tensor in signature.outputs.items():
            # The runtime wants each result to be made by an operation, and to be a tensor of its own.
            if tensor.made_by is None or id(tensor) in taken:
                tensor = _copied(tensor)
                self._copies.append(tensor)
            taken.add(id(tensor))
            self._operations(subgraph, tensor, places)
            outputs[result] = places[id(tensor)]
        subgraph.outputs = list(outputs.values())
        self._model.subgraphs.append(subgraph)
        definition = self._schema.SignatureDefT()
        definition.signatureKey, definition.subgraphIndex = name, len(self._model.subgraphs) - 1
        definition.inputs = [self._map(one, places[id(tensor)]) for one, tensor in signature.inputs.items()]
        definition.outputs = [self._map(one, place) for one, place in outputs.items()]
        self._model.signatureDefs.append(definition)

    def _map(self, name: str, place: int) -> Any:
        made = self._schema.TensorMapT()
        made.name, made.tensorIndex = name, place
        return made

    def _operations(self, subgraph: Any, last: Tensor, places: dict[int, int]) -> None:
        """Add the operations that a tensor depends on, each after those that it depends on."""
        waiting = [last]
        while waiting:
            tensor = waiting[-1]
            if id(tensor) in places:
                waiting.pop()
            elif tensor.made_by is None:
                places[id(tensor)] = self._tensor(subgraph, tensor, f"constant{len(subgraph.tensors)}")
            elif missing := [one for one in tensor.made_by.inputs if id(one) not in places]:
                waiting.extend(reversed(missing))
            else:
                places[id(tensor)] = self._tensor(subgraph, tensor, f"value{len(subgraph.tensors)}")
                subgraph.operators.append(self._operator(tensor.made_by, places, places[id(tensor)]))

    def _tensor(self, subgraph: Any, tensor: Tensor, name: str) -> int:
        made = self._schema.TensorT()
        made.name, made.shape = name, list(tensor.shape)
        made.type = getattr(self._schema.TensorType, tensor.dtype.upper())
        made.buffer = 0 if tensor.data is None else self._buffer(tensor)
        subgraph.tensors.append(made)
        return len(subgraph.tensors) - 1

    def _buffer(self, tensor: Tensor) -> int:
        if id(tensor) not in self._buffers:
            made = self._schema.BufferT()
            made.data = np.frombuffer(tensor.data.tobytes(), np.uint8)  # type: ignore[union-attr]
            self._model.buffers.append(made)
            self._buffers[id(tensor)] = len(self._model.buffers) - 1
        return self._buffers[id(tensor)]

    def _operator(self, operation: Operation, places: dict[int, int], result: int) -> Any:
        made = self._schema.OperatorT()
        made.opcodeIndex = self._code(operation.name)
        made.inputs, made.outputs = [places[id(one)] for one in operation.inputs], [result]
        if operation.name not in _WITHOUT_OPTIONS:
            kind = _OPTIONS.get(operation.name) or "".join(map(str.capitalize, operation.name.split("_")))
            made.builtinOptionsType = getattr(self._schema.BuiltinOptions, f"{kind}Options")
            made.builtinOptions = getattr(self._schema, f"{kind}OptionsT")()
            for name, value in operation.options:
                setattr(made.builtinOptions, name, list(value) if isinstance(value, tuple) else value)
        return made

    def _code(self, name: str) -> int:
        if name not in self._codes:
            made = self._schema.OperatorCodeT()
            made.builtinCode = getattr(self._schema.BuiltinOperator, name)
            # Readers of older files look for codes below 127 in this field.
            made.deprecatedBuiltinCode = min(made.builtinCode, 127)
            made.version = _VERSIONS.get(name, 1)
            self._model.operatorCodes.append(made)
            self._codes[name] = len(self._model.operatorCodes) - 1
        return self._codes[name]


def _copied(tensor: Tensor) -> Tensor:
    shape = Tensor((len(tensor.shape),), "int32", np.array(tensor.shape, np.int32))
    return Tensor(tensor.shape, tensor.dtype, None, Operation("RESHAPE", (tensor, shape)))
