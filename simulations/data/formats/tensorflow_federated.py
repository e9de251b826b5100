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
    field = descriptor_pb2.FieldDescriptorProto
    for name, value_type in (
        ("BytesList", field.TYPE_BYTES),
        ("FloatList", field.TYPE_FLOAT),
        ("Int64List", field.TYPE_INT64),
    ):
        values = file.message_type.add(name=name)
        values.field.add(name="value", number=1, label=field.LABEL_REPEATED, type=value_type)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, list_type) in enumerate(
        (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")), start=1
    ):
        feature.field.add(
            name=name,
            number=number,
            label=field.LABEL_OPTIONAL,
            type=field.TYPE_MESSAGE,
            type_name=f".tensorflow.{list_type}",
            oneof_index=0,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
    entry.field.add(
        name="value", number=2, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, type_name=".tensorflow.Feature"
    )
    features.field.add(
        name="feature",
        number=1,
        label=field.LABEL_REPEATED,
        type=field.TYPE_MESSAGE,
        type_name=".tensorflow.Features.FeatureEntry",
    )
    example = file.message_type.add(name="Example")
    example.field.add(
        name="features", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, type_name=".tensorflow.Features"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


_Example = _example_class()
