"""The committed test vectors are what docs/protocol.md says, and what our code makes and takes."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.artifacts import ArtifactAssembly
from fedlm.fl_core.client_algorithms.interface import Broadcast, LocalGradient, sent_by_server
from fedlm.fl_core.client_algorithms.registry import CLIENT_ALGORITHMS, make_algorithm
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.rounds.local_sgd import global_norm
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.updates.compressors import Scheme, decompress_update
from fedlm.fl_core.updates.registry import COMPRESSIONS, compressor_of
from fedlm.fl_core.updates.update_bytes import (
    check_update,
    pack_update,
    plan_digest,
    unpack_parameters,
    unpack_update,
)
from fedlm.models.losses import ExampleSums
from tests.fl_core.deployment.protocol import another_language

DOCUMENT = (Path(__file__).parents[4] / "docs" / "protocol.md").read_text()


def read(name):
    return json.loads((another_language.VECTORS / f"{name}.json").read_text())


def test_the_committed_vectors_are_those_that_follow_from_the_document():
    made = json.loads(json.dumps(another_language.vectors()))
    assert {file.stem for file in another_language.VECTORS.glob("*.json")} == made.keys()
    for name, vector in made.items():
        assert read(name) == vector, f"{name}: run python -m tests.fl_core.deployment.protocol.another_language"


def test_every_scheme_has_a_vector():
    kinds = {compressor.scheme[:2] for compressor in COMPRESSIONS.values()}
    assert kinds == {plan[:2] for plan in another_language.PLANS.values()}


@pytest.mark.long
@pytest.mark.parametrize("name", another_language.PLANS)
def test_an_upload_that_another_language_makes_is_understood(name):
    vector = read(name)
    plan, message = vector["plan"], bytes.fromhex(vector["upload"])
    compressor = compressor_of(Scheme(plan["scheme"], plan["version"], plan["settings"]))
    like = [jax.ShapeDtypeStruct(tuple(shape), jnp.float32) for shape in plan["tensors"]]
    assert plan_digest(compressor.scheme, [leaf.shape for leaf in like]).hex() == vector["plan_digest"]
    check_update(compressor, message, like)
    compressed = unpack_update(compressor, jnp.asarray(np.frombuffer(message, np.uint8)), like)
    assert pack_update(compressor, compressed, like) == message
    key = RoundPlan(vector["round_number"], np.zeros(0, np.int64), vector["seed"], 1.0).upload_key()
    found = decompress_update(compressor, jax.random.fold_in(key, vector["client_index"]), compressed, like)
    for values, expected in zip(found, vector["update"], strict=True):
        np.testing.assert_allclose(np.ravel(values), expected, atol=1e-5)


def gradient_of(step):
    """The same as in another language, as algorithms are given it."""

    def at(params):
        g = jax.tree.map(lambda y: step["curvature"] * (y - jnp.asarray(step["centre"])), params)
        return LocalGradient(g, jnp.float32(1.0), global_norm(g), jnp.float32(step["tokens"]), at)

    return at


def test_a_client_in_another_language_sends_the_same_of_what_it_scored():
    told = read("client_algorithms")["evaluate"]
    algorithm, server = make_algorithm("evaluate", told["constants"]), Broadcast({})
    local = algorithm.init(server)
    for loss, tokens, correct, scored in told["batches"]:
        sums = ExampleSums(*map(jnp.float32, (loss, tokens, 0, scored, correct, 0, 0)))
        local = algorithm.score(local, sums)
    np.testing.assert_allclose(algorithm.finish(server, local)["evaluated"], told["upload"][0], rtol=1e-5)


@pytest.mark.parametrize("name", [name for name, kind in CLIENT_ALGORITHMS.items() if kind.trains])
def test_a_client_in_another_language_trains_by_the_same_algorithm(name):
    vector = read("client_algorithms")
    told = vector["algorithms"][name]
    algorithm = make_algorithm(name, told["constants"])
    like = sent_by_server(algorithm, {"w": jnp.zeros(3)})
    downloaded = np.concatenate(told["download"]).astype("<f4").tobytes()
    server = jax.tree.map(jnp.asarray, unpack_parameters(downloaded, "float32", like))
    local = algorithm.init(server)
    for step in vector["steps"]:
        local = algorithm.step(server, local, gradient_of(step)(local.params), vector["learning_rate"])
    sent = jax.tree.leaves(algorithm.finish(server, local))
    for values, expected in zip(sent, told["upload"], strict=True):
        np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_an_artifact_that_another_language_describes_is_understood():
    vector = read("artifact")
    content = bytes.fromhex(vector["content"])
    served = ServedArtifact([content], vector["encoding"], vector["chunk_bytes"]).description
    assert served.digest.hex() == vector["digest"]
    assert [one.hex() for one in served.chunk_digests] == vector["chunk_digests"]
    ArtifactAssembly(served, len(content))


def test_the_document_names_every_message_status_and_name_of_http():
    from fedlm.fedlm_client.link import protocol
    from fedlm.fedlm_client.link.protocol import PROTOCOL

    named = [
        *messages.UploadReply.Status.keys()[1:],
        protocol.CHECK_IN, protocol.UPLOAD, protocol.ARTIFACTS, protocol.FIRST_CHUNK,
        protocol.UPLOAD_HEADER, protocol.CHUNK_BYTES, protocol.MESSAGE, "fedlm-client", protocol.ENROL,
    ]  # fmt: skip
    assert [name for name in named if name not in DOCUMENT] == []
    words = set(re.findall(r"\w+", DOCUMENT))
    assert {name for name in messages.DESCRIPTOR.message_types_by_name if name not in words} <= {"TensorShape"}
    assert f"this page describes **{PROTOCOL}**" in DOCUMENT
