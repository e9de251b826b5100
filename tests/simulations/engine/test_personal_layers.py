"""Layers that stay with clients: what travels, what stays, and what is refused."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.clients.device.local_training import ClientProgram
from fedlm.fl_core.client_algorithms.interface import check_private, check_usable, sent_by_client
from fedlm.fl_core.client_algorithms.local_adam import LocalAdam
from fedlm.fl_core.client_algorithms.mime_lite import MimeLite
from fedlm.fl_core.client_algorithms.personal_layers import PersonalLayers
from fedlm.fl_core.client_algorithms.sgd import PLAIN_SGD
from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.engine.client_states import ClientStates
from fedlm.simulations.engine.cohort_engine import CohortEngine
from tests.clients.in_process import InProcessRunner
from tests.deployment import small_deployment as small
from tests.simulations.engine.test_client_algorithms import (
    DATA,
    MODEL,
    PARAMS,
    after_rounds,
    engine_of,
    loop_of,
    work_of,
)
from tests.support.own_algorithms import REMEMBERING

FIRST = {"head": PARAMS["head"], "table": None}
PERSONAL = {"upload_bits": 32, "personal_layers": ("head",)}


def compare_with_plain_loop(settings, devices, lanes):
    loop = loop_of(settings)
    expected, cost = after_rounds(settings, loop, rounds=3)
    with contextlib.closing(ClientStates()) as states:
        found, cohort = after_rounds(settings, engine_of(settings, devices, lanes, states=states), rounds=3)
        heads = states.read(np.arange(small.CLIENTS), FIRST)["head"]
    for a, b in zip(*map(jax.tree_util.tree_leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert cohort[1:] == cost[1:]
    np.testing.assert_array_equal(found.params["head"], PARAMS["head"])
    assert 8 < len(loop.kept) < small.CLIENTS
    for client in range(small.CLIENTS):
        kept = loop.kept[client]["head"] if client in loop.kept else PARAMS["head"]
        np.testing.assert_allclose(heads[client], kept, rtol=1e-4, atol=1e-5)
        assert (client in loop.kept) == bool(np.any(heads[client] != PARAMS["head"]))


def test_the_engine_keeps_what_clients_of_the_plain_loop_keep():
    compare_with_plain_loop(small.deployment(**PERSONAL, server_optimizer="fedadam"), devices=1, lanes=1)


@pytest.mark.long
def test_it_does_so_on_devices_of_several_lanes():
    settings = small.deployment(**PERSONAL, **small.LINEAR, client_algorithm="local_adam", client_gradient_clip=0.5)
    compare_with_plain_loop(settings, devices=2, lanes=3)


def test_an_update_has_only_layers_that_are_shared():
    algorithm = PersonalLayers(PLAIN_SGD, ("head",))
    assert sent_by_client(algorithm, PARAMS) == {"head": None, "table": jax.eval_shape(lambda: PARAMS["table"])}
    check_usable(algorithm, PARAMS)
    check_private(algorithm, PARAMS)
    settings = small.deployment(**PERSONAL)
    with contextlib.closing(ClientStates()) as states:
        _, cohort = after_rounds(settings, engine_of(settings, states=states), rounds=1)
    values = small.VOCABULARY * 32
    assert 8 * 4 * values < cohort.bytes_up < 8 * 4 * (values + 100)


def test_an_update_that_does_not_count_leaves_what_its_client_kept():
    settings = small.deployment(**PERSONAL, client_learning_rate=1e30, client_max_batches=8)
    with contextlib.closing(ClientStates()) as states:
        _, cohort = after_rounds(settings, engine_of(settings, states=states), rounds=1)
        heads = states.read(np.arange(small.CLIENTS), FIRST)["head"]
    assert cohort.aggregate.dropped > 0
    assert np.isfinite(heads).all()
    assert np.sum(np.any(heads != PARAMS["head"], axis=(1, 2))) <= 8 - cohort.aggregate.dropped


class Ruining(PersonalLayers):
    """What clients would keep is not finite, though what they send is."""

    def keep(self, local):
        return jax.tree_util.tree_map(lambda leaf: leaf * jnp.inf, super().keep(local))


def test_who_cannot_keep_its_layers_sends_nothing():
    settings = small.deployment(**PERSONAL)
    work = work_of(settings)
    training = dataclasses.replace(work.training, algorithm=Ruining(PLAIN_SGD, ("head",)))
    loop = InProcessRunner(ClientProgram(MODEL, training, work.compressor), work.rules, DATA.sequences)
    with contextlib.closing(ClientStates()) as states:
        ruining = dataclasses.replace(work, training=training)
        engine = CohortEngine(ruining, DATA, small.LENGTH, devices=jax.devices()[:1], states=states)
        expected, found = (after_rounds(settings, runner, rounds=1)[1].aggregate.dropped for runner in (loop, engine))
        assert found == expected == 8
        heads = states.read(np.arange(small.CLIENTS), FIRST)["head"]
    np.testing.assert_array_equal(heads, np.broadcast_to(PARAMS["head"], heads.shape))


def test_layers_are_named_by_parameters_or_what_these_begin_with():
    params = {"blocks": [{"a": jnp.zeros(1)}, {"a": jnp.zeros(2)}], "blocks_too": jnp.zeros(3)}
    kept = PersonalLayers(PLAIN_SGD, ("blocks.1",)).init_client(params)
    assert [leaf.shape for leaf in jax.tree_util.tree_leaves(kept)] == [(2,)]
    kept = PersonalLayers(PLAIN_SGD, ("blocks",)).init_client(params)
    assert [leaf.shape for leaf in jax.tree_util.tree_leaves(kept)] == [(1,), (2,)]


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        (PersonalLayers(PLAIN_SGD, ("head", "tail", "hea")), "names tail, hea, but the model has head, table; give"),
        (PersonalLayers(PLAIN_SGD, ("head", "table")), "names all of the model, so that nothing would be shared"),
        (PersonalLayers(MimeLite(), ("head",)), "client algorithm MimeLite: the server would remember some of"),
        (PersonalLayers(REMEMBERING, ("head",)), "client algorithm Remembering: the server would remember"),
        (
            PersonalLayers(PersonalLayers(PLAIN_SGD, ("head",)), ("table",)),
            "client algorithm PersonalLayers, whose clients keep something else already",
        ),
    ],
)
def test_what_cannot_stay_with_clients_is_refused(algorithm, told):
    with pytest.raises(ConfigurationError, match=told):
        check_usable(algorithm, PARAMS)


def test_an_algorithm_that_sends_gradients_of_personal_layers_too_is_refused():
    class Telling(LocalAdam):
        def finish(self, server, local):
            return {"delta": super().finish(server, local), "whole": local.params}

    with pytest.raises(ConfigurationError, match="a client sends more than its update"):
        check_usable(PersonalLayers(Telling(), ("head",)), PARAMS)
