"""Client algorithms do what their papers write: the engine is held to rounds in NumPy, in float64 but for gradients."""

from dataclasses import fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from fedlm.fl_core.client_algorithms.registry import CLIENT_ALGORITHMS
from fedlm.fl_core.rounds.local_sgd import batch_rows, gather_batch
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.models.base import Batch, batch_loss
from tests.deployment import small_deployment as small
from tests.simulations.engine.test_client_algorithms import DATA, MODEL, SAMPLER, after_rounds, engine_of

START, UNRAVEL = ravel_pytree(MODEL.init(jax.random.key(0)))
ROUNDS, CLIENT_RATE, SERVER_RATE = 3, 2.0, 0.7


@jax.jit
def gradient_of(vector, tokens, weight):
    batch = Batch(tokens, weight)
    gradient = jax.grad(lambda v: batch_loss(MODEL, UNRAVEL(v), batch)[0])(vector)
    return gradient, jnp.sum((tokens[:, 1:] != 0) * weight[:, None])


class Client(NamedTuple):
    """What an equation is written with, as vectors of float64."""

    x: np.ndarray  # the server's parameters
    batches: list  # of the local steps
    eta: float  # the learning rate of clients
    memory: Any  # what the server remembers

    def gradient(self, y, batch):
        return np.asarray(gradient_of(jnp.asarray(y, jnp.float32), *batch)[0], np.float64)

    @staticmethod
    def tokens(batch):
        return float(gradient_of(START, *batch)[1])


class Equations(NamedTuple):
    """Of one algorithm."""

    sent: Any  # from client and constants to a tuple of vectors, whose means over clients the server gets
    constants: dict  # others than the usual ones, so that each matters
    memory: Any = lambda x: None  # what the server remembers at first
    remembered: Any = lambda memory, means, constants: None  # and after a round


def sgd(client):
    y = client.x
    for batch in client.batches:
        y = y - client.eta * client.gradient(y, batch)
    return (client.x - y,)


def fedprox(client, mu):
    y = client.x
    for batch in client.batches:
        y = y - client.eta * (client.gradient(y, batch) + mu * (y - client.x))
    return (client.x - y,)


def mime_lite(client, momentum):
    y = client.x
    for batch in client.batches:
        y = y - client.eta * ((1 - momentum) * client.gradient(y, batch) + momentum * client.memory)
    tokens = [client.tokens(batch) for batch in client.batches]
    gradients = [client.gradient(client.x, batch) for batch in client.batches]
    return client.x - y, np.average(gradients, axis=0, weights=tokens)


def mime_lite_server(memory, means, constants):
    return (1 - constants["momentum"]) * means[1] + constants["momentum"] * memory


def local_adam(client, beta1, beta2, epsilon):
    y, first, second = client.x, 0.0, 0.0
    for k, batch in enumerate(client.batches, start=1):
        g = client.gradient(y, batch)
        first, second = beta1 * first + (1 - beta1) * g, beta2 * second + (1 - beta2) * g**2
        y = y - client.eta * first / (1 - beta1**k) / (np.sqrt(second / (1 - beta2**k)) + epsilon)
    return (client.x - y,)


EQUATIONS = {
    "sgd": Equations(sgd, {}),
    "fedprox": Equations(fedprox, {"mu": 0.1}),
    "mime_lite": Equations(mime_lite, {"momentum": 0.6}, np.zeros_like, mime_lite_server),
    # So large an epsilon that gradients near zero, whose last bits differ, make no steps of full size.
    "local_adam": Equations(local_adam, {"beta1": 0.7, "beta2": 0.8, "epsilon": 0.1}),
}


def reference(equations):
    """Rounds of the server's plain averaging with a learning rate."""
    training = small.deployment().training.local_training()
    x, memory = np.asarray(START, np.float64), equations.memory(np.asarray(START, np.float64))
    for number in range(ROUNDS):
        plan = RoundPlan(number, SAMPLER.sample(number), small.SETTINGS["seed"], CLIENT_RATE)
        sent, weights = [], []
        for client in map(int, plan.clients):
            sequences = DATA.sequences(client)
            rows = batch_rows(len(sequences), training, plan.shuffling(client))
            batches = [gather_batch(sequences, of_step) for of_step in rows]
            sent.append(equations.sent(Client(x, batches, CLIENT_RATE, memory), **equations.constants))
            weights.append(min(len(sequences), training.most_examples))
        means = [np.average(parts, axis=0, weights=weights) for parts in zip(*sent, strict=True)]
        x = x - SERVER_RATE * means[0]
        memory = equations.remembered(memory, means, equations.constants)
    return x, memory


def trained(name, constants):
    settings = small.deployment(
        client_algorithm=name,
        upload_bits=32,
        client_learning_rate=CLIENT_RATE,
        server_learning_rate=SERVER_RATE,
        server_optimizer="fedavg",
        **{f"{name}_{constant}": value for constant, value in constants.items()},
    )
    state, _ = after_rounds(settings, engine_of(settings), ROUNDS)
    return ravel_pytree(state.params)[0], state.algorithm


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, kind in CLIENT_ALGORITHMS.items() if kind.trains])
def test_an_algorithm_follows_its_equations(name):
    equations = EQUATIONS[name]
    assert equations.constants.keys() == {field.name for field in fields(CLIENT_ALGORITHMS[name])}
    (x, memory), (found, remembered) = reference(equations), trained(name, equations.constants)
    # Small beside what a round changes.
    assert np.abs(x - np.asarray(START)).max() > 0.03
    np.testing.assert_allclose(found, x, atol=2e-6)
    if memory is not None:
        assert np.abs(memory).max() > 1e-3
        np.testing.assert_allclose(ravel_pytree(remembered)[0], memory, atol=2e-6)
    if name != "sgd":
        assert np.abs(x - reference(EQUATIONS["sgd"])[0]).max() > 1e-3
