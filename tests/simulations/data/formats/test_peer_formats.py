import base64
import sqlite3
import zlib

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.simulations.data.formats import fedjax
from fedlm.simulations.data.formats.fedjax import pack_client, unpack_client
from fedlm.simulations.data.formats.tensorflow_federated import (
    create_indexes,
    create_tables,
    make_example,
    parse_example,
    parse_feature,
)

# Serialized by TensorFlow 2.14, with its deterministic order of features.
EXAMPLE = base64.b64decode(
    "CtgBCi4KDWNyZWF0aW9uX2RhdGUSHQobChkyMDA4LTA4LTEwIDA4OjI4OjUyLjEgVVRDChcKBXNjb3JlEg4aDAoK/f//////////AQoUCgR0YWdz"
    "EgwKCgoIY3NzfGNzczMKGgoFdGl0bGUSEQoPCg1yb3VuZCBjb3JuZXJzCiwKBnRva2VucxIiCiAKHmhvdyBkbyBpIHJvdW5kIDxVUkw+IGNvcm5l"
    "cnMgPwoUCgR0eXBlEgwKCgoIcXVlc3Rpb24KFwoHd2VpZ2h0cxIMEgoKCAAAAD8AAKC/"
)
EXAMPLE_FEATURES = {
    "creation_date": [b"2008-08-10 08:28:52.1 UTC"],
    "score": [-3],
    "tags": [b"css|css3"],
    "title": [b"round corners"],
    "tokens": [b"how do i round <URL> corners ?"],
    "type": [b"question"],
    "weights": [0.5, -1.25],
}

# Written by FedJAX 0.0.17: tokens, score, x, and two values that are no arrays.
CLIENT = base64.b64decode(
    "eJxrXVaSn52aV3ycj2XSRKZJR9hSUzJLFKyOMCwtTs4vSj0uzTh5ItPSzLwSM5MjAmsYIOA/FCysOK7GOHkSE/PytJz8xBJjoyMSEAUN9kDCAYiA"
    "uAGIFzgsK05OzEksusE8eQJcMQsDg4LDsrzS3KTUouPyQJlVyfm5BTmpFYZGFkcEICZ9sIfaeQAARqQ6Zw=="
)

BYTES = st.lists(st.binary(max_size=20), max_size=4)
WHOLE = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)
NUMBERS = st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4)


def test_reads_and_writes_what_tensorflow_wrote():
    assert parse_example(EXAMPLE) == EXAMPLE_FEATURES
    assert make_example(EXAMPLE_FEATURES) == make_example(dict(reversed(EXAMPLE_FEATURES.items()))) == EXAMPLE
    numbers = {"whole": [np.int32(3), np.int64(-4)], "real": [np.float32(0.5), 1]}
    assert parse_example(make_example(numbers)) == {"whole": [3, -4], "real": [0.5, 1.0]}
    assert parse_feature(make_example({"tokens": []}), "tokens") == []
    assert parse_feature(make_example({"tokens": []}), "snippets") is None


@given(st.dictionaries(st.text(max_size=8), BYTES | WHOLE | NUMBERS, max_size=4))
def test_examples_survive_a_round_trip(features):
    assert parse_example(make_example(features)) == features
    assert all(parse_feature(make_example(features), name) == values for name, values in features.items())


@pytest.mark.parametrize("data", [EXAMPLE[:-1], EXAMPLE[3:], b"\xff\xff", EXAMPLE.replace(b"tags", b"t\xffgs")])
def test_damaged_examples_are_refused(data):
    for read in (parse_example, lambda data: parse_feature(data, "tokens")):
        with pytest.raises(ValueError, match=r"tf\.train\.Example"):
            read(data)


def test_reads_what_fedjax_wrote():
    client = unpack_client(CLIENT)
    assert client["tokens"].tolist() == [b"edit :", b""]
    assert client["score"].tolist() == [172, -1]
    assert client["score"].dtype == np.int64
    np.testing.assert_array_equal(client["x"], np.arange(6, dtype=np.float32).reshape(2, 3))
    assert client["scalar"] == np.float32(2.5)
    assert client["number"] == 1 - 2j
    assert list(client) == ["tokens", "score", "x", "scalar", "number"]


def test_writes_what_fedjax_writes():
    arrays = {name: value for name, value in unpack_client(CLIENT).items() if isinstance(value, np.ndarray)}
    # The map has five entries in FedJAX's blob, and three here: everything else is the same.
    expected, packed = zlib.decompress(CLIENT), zlib.decompress(pack_client(arrays))
    assert packed[0] == 0x83
    assert expected[0] == 0x85
    assert len(packed) > 100
    assert expected[1:].startswith(packed[1:])


@given(st.dictionaries(st.text(max_size=8), BYTES, max_size=4), st.sampled_from(["<i4", ">i8", "<f4", "|b1", "|u1"]))
def test_clients_survive_a_round_trip(features, dtype):
    numbers = np.arange(6).reshape(2, 3).astype(dtype)
    client = unpack_client(pack_client({**features, "numbers": numbers, "part": numbers[:, ::2]}))
    np.testing.assert_array_equal(client.pop("numbers"), numbers)
    np.testing.assert_array_equal(client.pop("part"), numbers[:, ::2])
    for name in features.keys() & client.keys():
        assert client[name].tolist() == features[name]


def packed(kind, content):
    return zlib.compress(msgpack.packb({"a": msgpack.ExtType(kind, msgpack.packb(content))}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        CLIENT[:-5],
        CLIENT[:30] + b"\x00" + CLIENT[31:],
        zlib.compress(zlib.decompress(CLIENT)[:-2]),
        zlib.compress(zlib.decompress(CLIENT) + b"\x01"),
        zlib.compress(msgpack.packb([1, 2])),
        packed(1, ((2,), "int64", b"\x00" * 8)),
        packed(1, ((1,), "object", b"\x00" * 8)),
        packed(1, 3),
        packed(2, ("x", 1)),
        packed(4, ((2,), [b"x"])),
        packed(4, ((1,), [1])),
        packed(9, b""),
    ],
)
def test_damaged_clients_are_refused(data):
    with pytest.raises(ValueError, match=r"msgpack|expected features by name"):
        unpack_client(data)


def test_tables_are_those_of_the_peers():
    connection = sqlite3.connect(":memory:")
    create_tables(connection)
    create_indexes(connection)
    fedjax.create_table(connection)
    columns = "SELECT m.name, t.name, t.type FROM sqlite_master m, pragma_table_info(m.name) t WHERE m.type = 'table'"
    assert [" ".join(row) for row in connection.execute(columns)] == [
        *("examples split_name TEXT", "examples client_id TEXT", "examples serialized_example_proto BLOB"),
        *("client_metadata client_id TEXT", "client_metadata split_name TEXT", "client_metadata num_examples INTEGER"),
        *("federated_data client_id BLOB", "federated_data data BLOB", "federated_data num_examples INTEGER"),
    ]
    plan = "EXPLAIN QUERY PLAN SELECT * FROM examples WHERE split_name = '' AND client_id = ''"
    assert "split_name=? AND client_id=?" in connection.execute(plan).fetchone()[3]
