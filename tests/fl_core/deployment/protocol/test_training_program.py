"""What the server says of a run is what the client reads of it, and what it cannot do it refuses."""

from dataclasses import fields
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.clients.device.server_instructions import ANYTHING, program_of
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.client_algorithms.registry import CLIENT_ALGORITHMS
from fedlm.fl_core.client_algorithms.sgd import PLAIN_SGD
from fedlm.fl_core.deployment.protocol.training_program import (
    read_compressor,
    read_local_training,
    write_training_program,
)
from fedlm.fl_core.deployment.roles import agreement
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.updates.compressors import shapes_of
from fedlm.fl_core.updates.registry import COMPRESSIONS, ROTATED
from fedlm.fl_core.updates.update_bytes import WireError
from fedlm.models.base import Batch
from fedlm.models.registry import create_model
from tests.deployment import small_deployment as small

MODEL = small.task(small.deployment()).model
SHAPES = jax.eval_shape(MODEL.init, jax.random.key(0))


def written(**changes):
    settings = small.deployment(**changes)
    program = write_training_program(settings.model, MODEL, settings.training)
    return settings, messages.TrainingProgram.FromString(program.SerializeToString())


@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize("rotation", [False, True])
def test_a_compression_is_read_as_it_was_written(name, rotation):
    if not rotation or name in ROTATED:
        settings, program = written(compression=name, upload_rotation=rotation)
        assert read_compressor(program, MODEL, PLAIN_SGD) == settings.training.compressor()


def test_local_training_is_read_as_it_was_written():
    every = {
        "client_batch_size": 3,
        "client_epochs": 2,
        "client_max_batches": 7,
        "client_gradient_clip": 0.25,
        "client_max_examples": 9,
        "client_cap_order": "cap_then_shuffle",
        "client_batches_across_epochs": True,
        "dropout": 0.25,
    }
    for changes in ({}, every):
        settings, program = written(**changes)
        assert read_local_training(program) == settings.training.local_training()
    without_defaults = {field.name for field, _ in written(**every)[1].ListFields()}
    assert without_defaults == set(messages.TrainingProgram.DESCRIPTOR.fields_by_name) - {"algorithm"}


@pytest.mark.parametrize("name", ["sgd", "fedprox"])
def test_layers_that_stay_on_devices_are_read_as_they_were_written(name):
    settings, program = written(client_algorithm=name, personal_layers=("head",))
    assert list(program.algorithm.personal_layers) == ["head"]
    assert read_local_training(program) == settings.training.local_training()
    assert [list(one.dimensions) for one in program.upload.tensors] == [[small.VOCABULARY, 32]]


@pytest.mark.long
def test_a_client_drops_what_the_server_asks_it_to_or_refuses():
    settings = small.deployment(model="gru4rec_tiny", dropout=0.5)
    model = create_model("gru4rec_tiny", 40)
    program = write_training_program("gru4rec_tiny", model, settings.training)
    read = program_of(program, ANYTHING, 10)
    assert read.training.draws_dropout
    assert program_of(program, ANYTHING, 10).model is read.model
    params, batch = model.init(jax.random.key(0)), Batch(jnp.array([[1, 5, 6, 2]]), jnp.ones(1))
    keyed = batch._replace(dropout=jnp.ones((1, 2), jnp.uint32))
    drops, whole = (jax.jit(each.loss) for each in (read.model, model))
    np.testing.assert_allclose(drops(params, batch).loss, whole(params, keyed).loss, rtol=1e-6)
    assert abs(float(drops(params, keyed).loss[0] - whole(params, keyed).loss[0])) > 1e-3
    program.dropout = 1.0
    with pytest.raises(ConfigurationError, match=r"dropout is 1\.0, but must be at least 0 and below 1"):
        program_of(program, ANYTHING, 10)
    program.dropout, program.model = 0.5, "cifg_tiny"
    with pytest.raises(ConfigurationError, match="'cifg_tiny' has none"):
        program_of(program, ANYTHING, 10)


@pytest.mark.parametrize("name", CLIENT_ALGORITHMS)
def test_a_client_algorithm_is_read_as_it_was_written(name):
    constants = {f"{name}_{field.name}": field.default / 2 for field in fields(CLIENT_ALGORITHMS[name])}
    beside = {"update_clip_norm": 1.0, "upload_bits": 32, "init_from": Path("run"), "max_participations": 1}
    sent = {} if CLIENT_ALGORITHMS[name].trains else beside
    settings, program = written(client_algorithm=name, **constants, **sent)
    read = read_local_training(program)
    assert read == settings.training.local_training()
    assert (read.algorithm == CLIENT_ALGORITHMS[name]()) == (not constants)
    assert read_compressor(program, MODEL, read.algorithm) == settings.training.compressor()
    # Where none is named, a client trains with SGD.
    assert program.HasField("algorithm") == (name != "sgd")


def test_an_algorithm_that_a_client_does_not_have_is_refused():
    _, program = written()
    for algorithm, told in (
        (messages.ClientAlgorithm(name="newer"), "client_algorithm is 'newer', but must be one of"),
        (
            messages.ClientAlgorithm(name="sgd", constants={"mu": 1.0}),
            r"sgd has the constants \[\], but \['mu'\] are given",
        ),
    ):
        program.algorithm.CopyFrom(algorithm)
        with pytest.raises(ConfigurationError, match=told):
            read_local_training(program)


def test_a_client_imports_no_module_because_a_server_says_so():
    _, program = written()
    program.model = "tests.deployment.small_deployment:BIGRAM"
    program.algorithm.name = "tests.support.own_algorithms:REMEMBERING"
    with pytest.raises(ConfigurationError, match="REMEMBERING', which this client does not allow"):
        program_of(program, small.ALLOWED, 100)


def test_what_a_client_does_not_have_is_refused():
    for change in ({"scheme": 99}, {"version": 2}, {"settings": {"bits": 8, "rotation": 2}}, {"settings": {"more": 1}}):
        _, program = written()
        for name, value in change.items():
            if name == "settings":
                program.upload.settings.update(value)
            else:
                setattr(program.upload, name, value)
        with pytest.raises(ConfigurationError, match="there is no compression of scheme"):
            read_compressor(program, MODEL, PLAIN_SGD)


def test_a_model_of_other_tensors_is_refused():
    for change in (lambda tensors: tensors.pop(), lambda tensors: tensors[0].dimensions.append(1)):
        _, program = written()
        change(program.upload.tensors)
        with pytest.raises(WireError, match="has other tensors than this software's"):
            read_compressor(program, MODEL, PLAIN_SGD)


def test_the_order_of_tensors_is_that_of_their_sorted_names():
    update = {"b": SHAPES["table"], "a": [SHAPES["head"], SHAPES["table"]]}
    assert shapes_of(update) == [(32, 40), (40, 32), (40, 32)]


def test_coordinator_and_aggregators_agree_where_all_settings_are_the_same():
    def of(**changes):
        return agreement(small.task(small.deployment(**changes)))

    assert of() == of()
    different = [
        {}, {"compression": "uniform4"}, {"update_clip_norm": 1.0}, {"download_encoding": "bfloat16"},
        {"weighting": "uniform"}, {"client_gradient_clip": 1.0}, {"length": 7},
        {"client_algorithm": "tests.support.own_algorithms:REMEMBERING"},
        {"rounds": 77}, {"seed": 77}, {"cohort_size": 77}, {"minimum_reports": 7}, {"over_selection": 2.0},
        {"window_seconds": 7.0}, {"selection_seconds": 7.0}, {"reporting_seconds": 7.0}, {"drain_seconds": 7.0},
        {"check_in_seconds": 7.0}, {"chunk_bytes": 1 << 15}, {"checkpoint_every": 7}, {"evaluate_every": 7},
        {"min_separation": 7}, {"max_participations": 7}, {"population": "another"},
        {"client_learning_rate": 0.7}, {"server_learning_rate": 0.7}, {"server_optimizer": "fedavgm"},
        {"server_warmup_rounds": 7}, {"update_norm_bound": "none"},
    ]  # fmt: skip
    assert len({of(**changes) for changes in different}) == len(different)
