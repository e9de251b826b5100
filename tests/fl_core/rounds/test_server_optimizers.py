"""One suite for every server optimizer, and each against its equations in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.rounds.server_optimizers import SERVER_OPTIMIZERS, ServerOptimizerConfig, init_server, server_step

every_optimizer = pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
PARAMS = {"w": jnp.array([1.0, -2.0, 0.5]), "b": jnp.array([[0.1], [0.2]])}


def run(name, gradients, learning_rate=0.1, **constants):
    config = ServerOptimizerConfig(name=name, **constants)
    state = init_server(config, PARAMS)
    for gradient in gradients:
        state = server_step(config, state, gradient, learning_rate)
    return state


def random_gradients(count):
    rng = np.random.default_rng(0)
    return [
        jax.tree_util.tree_map(lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), PARAMS)
        for _ in range(count)
    ]


@every_optimizer
def test_a_zero_pseudo_gradient_at_the_start_moves_nothing_and_state_keeps_its_structure(name):
    state = run(name, [jax.tree_util.tree_map(jnp.zeros_like, PARAMS)])
    for found, wanted in zip(*map(jax.tree_util.tree_leaves, (state.params, PARAMS)), strict=True):
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == jnp.float32
    assert jax.tree_util.tree_structure(state) == jax.tree_util.tree_structure(run(name, random_gradients(2)))


def reference(name, gradients, rate, momentum=0.9, b1=0.9, b2=0.999, eps=1e-8):
    """The equations of Reddi et al. 2021 with bias-corrected moments, and FedAdagrad's epsilon within the root, on one
    float64 vector."""
    x = np.asarray(PARAMS["w"], np.float64)
    m = v = np.zeros_like(x)
    for t, gradient in enumerate(gradients, start=1):
        g = np.asarray(gradient["w"], np.float64)
        if name == "fedavg":
            x = x - rate * g
        elif name == "fedavgm":
            m = momentum * m + g
            x = x - rate * m
        elif name == "fedadagrad":
            v = v + g**2
            x = x - rate * g / np.sqrt(v + eps)
        elif name not in ("fedadam", "fedyogi"):
            pytest.fail(f"the server optimizer {name!r} has no equations: add them to this function")
        else:
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g**2 if name == "fedadam" else v - (1 - b2) * np.sign(v - g**2) * g**2
            m_hat, v_hat = m / (1 - b1**t), v / (1 - b2**t)
            x = x - rate * m_hat / (np.sqrt(v_hat) + eps)
    return x


@every_optimizer
def test_follows_its_equations(name):
    gradients = random_gradients(7)
    found = run(name, gradients).params["w"]
    np.testing.assert_allclose(found, reference(name, gradients, 0.1), rtol=1e-5)
