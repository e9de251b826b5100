"""TensorFlow Federated's data format: SQLite tables with one `tf.train.Example` a row, without TensorFlow."""

import sqlite3
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

EXAMPLES_COLUMNS = ("split_name", "client_id", "serialized_example_proto")
"""Of the table `examples`: one row is one example."""
METADATA_COLUMNS = ("client_id", "split_name", "num_examples")
"""Of the table `client_metadata`: one row is one client in one split."""

_TABLES = (
    "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, serialized_example_proto BLOB NOT NULL)",
    "CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL)",
)
_INDEXES = (
    "CREATE INDEX idx_examples_client_id ON examples (client_id)",
    "CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id)",
    "CREATE INDEX idx_metadata_client_id ON client_metadata (client_id)",
)

FeatureValues = list[bytes] | list[int] | list[float]


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the empty tables `examples` and `client_metadata`; raises sqlite3.Error where they exist."""
    for statement in _TABLES:
        connection.execute(statement)


def create_indexes(connection: sqlite3.Connection) -> None:
    """Create the indexes by which a client's examples are found; quickest once the tables are full."""
    for statement in _INDEXES:
        connection.execute(statement)


def make_example(features: Mapping[str, Sequence[bytes] | Sequence[int] | Sequence[float]]) -> bytes:
    """Return a serialized `tf.train.Example`; the same features give the same bytes.

    A feature's values are of one kind. Whole numbers have 64 bits, other numbers 32. Raises ValueError where a value is
    of another kind, or a whole number is too large.
    """
    example: Any = _Example()
    for name, values in features.items():
        feature = example.features.feature[name]
        if all(isinstance(value, bytes) for value in values):
            feature.bytes_list.value.extend(values)
        elif all(isinstance(value, Integral) for value in values):
            feature.int64_list.value.extend(int(cast(int, value)) for value in values)
        elif all(isinstance(value, Real) for value in values):
            feature.float_list.value.extend(float(value) for value in values)
        else:
            kinds = ", ".join(sorted({type(value).__name__ for value in values}))
            raise ValueError(f"feature {name!r} has values of {kinds}, expected only bytes or only numbers")
    return example.SerializeToString(deterministic=True)


def parse_example(data: bytes) -> dict[str, FeatureValues]:
    """Return the features of a serialized `tf.train.Example`; an empty list where one has no values, whatever its kind.

    Raises ValueError where the bytes are damaged.
    """
    return {name: _values(feature) for name, feature in _features(data).items()}


def parse_feature(data: bytes, name: str) -> FeatureValues | None:
    """Return one feature of a `tf.train.Example`, None where it lacks it, several times faster than all of them.

    Raises ValueError where the bytes are damaged.
    """
    features = _features(data)
    return _values(features[name]) if name in features else None


def _features(data: bytes) -> Any:
    example: Any = _Example()
    try:
        example.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"not a tf.train.Example ({error})") from error
    return example.features.feature


def _values(feature: Any) -> FeatureValues:
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


def _example_class() -> type[Message]:
    """Build the message class in a pool of its own, where it cannot clash with an installed TensorFlow's."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    lists = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}

    def add(message: Any, number: int, name: str, kind: str, *, repeated: bool = False, **rest: Any) -> None:
        """Add a field, of a scalar type or of a message named `kind`."""
        scalar = getattr(kinds, f"TYPE_{kind}", None)
        message.field.add(
            name=name,
            number=number,
            label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL,
            type=scalar or kinds.TYPE_MESSAGE,
            type_name=None if scalar else f".tensorflow.{kind}",
            **rest,
        )

    for message, scalar in zip(lists.values(), ("BYTES", "FLOAT", "INT64"), strict=True):
        add(file.message_type.add(name=message), 1, "value", scalar, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, message) in enumerate(lists.items(), start=1):
        add(feature, number, name, message, oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, 1, "key", "STRING")
    add(entry, 2, "value", "Feature")
    add(features, 1, "feature", "Features.FeatureEntry", repeated=True)
    add(file.message_type.add(name="Example"), 1, "features", "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


_Example = _example_class()
