"""What every client algorithm must do, in the engine as in the plain loop; registered ones and others."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.clients.device.local_training import ClientProgram
from fedlm.fl_core.client_algorithms.interface import check_private, check_usable, sent_by_client, sent_by_server
from fedlm.fl_core.client_algorithms.registry import CLIENT_ALGORITHMS, make_algorithm
from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.fl_core.rounds.cohorts import UniformSampler
from fedlm.fl_core.rounds.round_loop import Rounds
from fedlm.simulations.data.federated_data import InMemoryData
from fedlm.simulations.engine.cohort_engine import ClientWork, CohortEngine
from fedlm.simulations.engine.lane_count import copies_beyond_sgd
from tests.clients.in_process import InProcessRunner
from tests.deployment import small_deployment as small
from tests.deployment.plain_loop import simulate
from tests.support.own_algorithms import Remembering

OWN = "tests.support.own_algorithms:REMEMBERING"
NAMES = (*CLIENT_ALGORITHMS, OWN)
MODEL = small.task(small.deployment()).model
PARAMS = MODEL.init(jax.random.key(0))
DATA = InMemoryData([small.examples_of(client) for client in range(small.CLIENTS)])
SAMPLER = UniformSampler(small.CLIENTS, 8, 5)


def settings_of(name, **changes):
    return small.deployment(client_algorithm=name, upload_bits=32, server_optimizer="fedavgm", **changes)


def work_of(settings):
    training = settings.training
    return ClientWork(MODEL, training.local_training(), training.compressor(), settings.aggregation_rules())


def engine_of(settings, devices=1, lanes=1, **others):
    lanes_of = {"devices": jax.devices()[:devices], "lanes_per_device": lanes, "steps_per_chunk": 5}
    return CohortEngine(work_of(settings), DATA, small.LENGTH, **lanes_of, **others)


def loop_of(settings):
    work = work_of(settings)
    program = ClientProgram(work.model, work.training, work.compressor)
    return InProcessRunner(program, work.rules, DATA.sequences)


def after_rounds(settings, runner, rounds=2):
    """The server's state after rounds, and what the last cohort cost."""
    optimization = settings.optimization()
    state = optimization.first_state(PARAMS)
    for result in Rounds(state, range(rounds), runner, SAMPLER, optimization=optimization):
        state, cohort = result.state, result.cohort
    return state, cohort


def assert_close(found, expected):
    for a, b in zip(*map(jax.tree_util.tree_leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["mime_lite", "local_adam", OWN])
def test_the_engine_does_what_the_plain_loop_does_on_devices_of_several_lanes(name):
    settings = settings_of(name, client_gradient_clip=0.5)
    expected, cost = after_rounds(settings, loop_of(settings))
    found, cohort = after_rounds(settings, engine_of(settings, devices=2, lanes=3))
    assert_close(found, expected)
    assert cohort[1:] == cost[1:]


@pytest.mark.long
def test_a_run_that_is_resumed_ends_with_the_same_bits_but_not_with_another_algorithm(tmp_path):
    whole, _ = simulate(settings_of(OWN, rounds=2), SAMPLER, tmp_path / "whole")
    simulate(settings_of(OWN, rounds=1), SAMPLER, tmp_path / "halves")
    with pytest.raises(CheckpointError):
        simulate(settings_of("sgd", rounds=2), SAMPLER, tmp_path / "halves")
    halves, _ = simulate(settings_of(OWN, rounds=2), SAMPLER, tmp_path / "halves")
    jax.tree_util.tree_map(np.testing.assert_array_equal, whole, halves)


@pytest.mark.parametrize("name", NAMES)
def test_an_algorithm_is_usable_sends_float32_numbers_and_is_private_exactly_where_it_sends_its_delta_alone(name):
    algorithm, params = make_algorithm(name), PARAMS
    check_usable(algorithm, jax.eval_shape(lambda: params))
    # Nothing is compiled twice for equal constants.
    assert (make_algorithm(name), hash(make_algorithm(name))) == (algorithm, hash(algorithm))
    sent = sent_by_client(algorithm, params)
    for tree in (sent_by_server(algorithm, params), sent):
        assert {leaf.dtype for leaf in jax.tree_util.tree_leaves(tree)} == {np.dtype(np.float32)}
    memory = algorithm.init_server(params)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree_util.tree_leaves(memory))
    if not algorithm.trains:
        check_private(algorithm, params)
    elif jax.tree_util.tree_structure(sent) == jax.tree_util.tree_structure(params):
        check_private(algorithm, params)
        small.deployment(**small.PRIVACY, client_algorithm=name)
    else:
        with pytest.raises(ConfigurationError, match="a client sends more than its update"):
            small.deployment(**small.PRIVACY, client_algorithm=name)


def test_a_private_run_of_a_script_is_refused_too(tmp_path, monkeypatch):
    """Settings would refuse it; a run that is put together without them does as well."""
    monkeypatch.setattr("fedlm.fl_core.client_algorithms.settings.ClientAlgorithmSettings.check_privacy", lambda *_: 0)
    settings = small.deployment(**small.PRIVACY, client_algorithm=OWN)
    with pytest.raises(ConfigurationError, match="Remembering a client sends more than its update"):
        simulate(settings, SAMPLER, tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sdg", "client_algorithm is 'sdg', but must be one of sgd"),
        ("no.such.module:IT", "the module 'no.such.module' cannot be imported"),
        ("tests.support.own_algorithms:NOTHING", "'tests.support.own_algorithms' has no 'NOTHING'"),
        ("tests.support.own_algorithms:NOT_ONE", "found ABCMeta as 'NOT_ONE'"),
    ],
)
def test_a_name_of_no_algorithm_is_refused(name, told):
    with pytest.raises(ConfigurationError, match=told):
        small.deployment(client_algorithm=name)


def test_lanes_are_fewer_where_an_algorithm_needs_more_memory():
    expected = {"sgd": 0, "fedprox": 0, "mime_lite": 3, "local_adam": 2}
    assert {name: copies_beyond_sgd(make_algorithm(name), MODEL) for name in expected} == expected


def altered(**functions):
    """Make an algorithm that is one of the tests' own but for some functions."""
    return type("Altered", (Remembering,), functions)()


def of_dtype(dtype):
    def finish(self, server, local):
        sent = Remembering.finish(self, server, local)
        return sent | {"steps": sent["steps"].astype(dtype)}

    return finish


@pytest.mark.parametrize(
    ("functions", "told"),
    [
        (
            {"init_server": lambda self, params: {"gradient": params, "steps": jnp.zeros(2, int)}},
            "init_server must make float32 arrays, but makes.*int32",
        ),
        ({"init": lambda self, server: server.memory["nothing"]}, "Altered.init cannot be used.*KeyError: 'nothing'"),
        ({"step": lambda self, server, local, gradient, rate: local.params}, "Altered.finish cannot be used"),
        (
            {"step": lambda self, server, local, gradient, rate: local._replace(memory=gradient.at(local.params))},
            "Altered.step cannot be used",
        ),
        *(({"finish": of_dtype(kind)}, "finish must make float32 arrays") for kind in ("complex64", "float16", "int8")),
        ({"update_server": lambda self, memory, mean: mean["delta"]}, "must make a pair"),
        ({"update_server": lambda self, memory, mean: (mean, memory)}, "pseudo-gradient like the parameters"),
        (
            {"update_server": lambda self, memory, mean: (jax.tree.map(jnp.sum, mean["delta"]), memory)},
            "pseudo-gradient like the parameters",
        ),
        ({"update_server": lambda self, memory, mean: (mean["delta"], mean)}, "memory like that of init_server"),
    ],
)
def test_an_algorithm_that_does_not_fit_says_what_does_not_before_anything_is_computed(functions, told):
    settings, algorithm = settings_of("sgd").optimization(), altered(**functions)
    with pytest.raises(ConfigurationError, match=told):
        dataclasses.replace(settings, algorithm=algorithm).first_state(PARAMS)


@pytest.mark.parametrize("kind", ["complex64", "float16", "int32"])
def test_privacy_is_refused_for_numbers_that_it_cannot_measure(kind):
    def finish(self, server, local):
        return jax.tree.map(lambda p: p.astype(kind), local.params)

    algorithm = altered(finish=finish)
    with pytest.raises(ConfigurationError, match="made for the update alone"):
        check_private(algorithm, PARAMS)
