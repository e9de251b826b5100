"""A server optimizer of one's own: any optax one, by object or by name."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.server_optimizers import OwnServerOptimizer, ServerOptimizerConfig, init_server, server_step
from fedlm.fl_core.rounds.settings import TrainingSettings
from fedlm.fl_core.runs.files.checkpoints import Checkpoints

PARAMS = {"w": jnp.array([1.0, -2.0, 0.5]), "b": jnp.array([[0.1], [0.2]])}
OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "chain": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.05), optax.add_decayed_weights(1e-3)),
    "schedule": optax.adamw(optax.linear_schedule(0.1, 0.01, 5)),
    "of a learning rate": optax.yogi,
    "masked": optax.masked(optax.sgd(0.1, momentum=0.9), {"w": True, "b": False}),
}


def assert_same(found, expected):
    jax.tree_util.tree_map(np.testing.assert_array_equal, found, expected)


def steps(server, count, state=None):
    state = init_server(server, PARAMS) if state is None else state
    for number in range(count):
        gradient = jax.tree_util.tree_map(lambda leaf, scale=number + 1.0: jnp.sin(scale * leaf), PARAMS)
        state = server_step(server, state, gradient, jnp.float32(0.1))
    return state


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_optax_own(name):
    optimizer = OPTIMIZERS[name]
    found = steps(OwnServerOptimizer(optimizer), 3)
    transformation = optimizer if isinstance(optimizer, optax.GradientTransformation) else optimizer(0.1)
    params, state = PARAMS, transformation.init(PARAMS)
    for number in range(3):
        gradient = jax.tree_util.tree_map(lambda leaf, scale=number + 1.0: jnp.sin(scale * leaf), PARAMS)
        updates, state = transformation.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    jax.tree_util.tree_map(
        lambda ours, wanted: np.testing.assert_allclose(ours, wanted, rtol=1e-6), found.params, params
    )


@pytest.mark.parametrize("name", ["schedule", "masked"])
def test_its_state_survives_a_checkpoint(name, tmp_path):
    server = OwnServerOptimizer(OPTIMIZERS[name])
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(2, steps(server, 2), {})
        restored = checkpoints.restore_state(2, init_server(server, PARAMS))
    assert_same(steps(server, 2, restored), steps(server, 2, steps(server, 2)))


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_optimizers.py").write_text(
        "import optax\nADAM = optax.adam\nCHAIN = optax.chain(optax.clip(1.0), optax.sgd(0.1))\nNUMBER = 3\n"
        "def number(rate):\n    return rate\n"
    )
    (tmp_path / "broken.py").write_text("x = 1\ny = undefined\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("own_module")
def test_names_lead_to_optimizers_of_the_current_folder_and_one_rate_is_enough():
    by_name = compose(TrainingSettings, server_optimizer="own_optimizers:ADAM").optimization(0.05, 0.5, 0).server
    assert_same(steps(by_name, 3), steps(OwnServerOptimizer(optax.adam), 3))
    for rate, warmup in ((0.5, 0), (0.01, 3)):
        settings = compose(TrainingSettings, server_optimizer="own_optimizers:CHAIN", server_warmup_rounds=warmup)
        with pytest.raises(ConfigurationError, match="brings its own learning rate"):
            settings.optimization(rate, 0.5, 0)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("no_such_module:ADAM", "no_such_module.*cannot be imported.*current folder"),
        ("own_optimizers:EVE", "has no 'EVE', but ADAM, CHAIN"),
        ("own_optimizers:NUMBER", "found int as 'NUMBER'.*expected an optax optimizer"),
        ("broken:ADAM", r"NameError: .*broken.py:2\)"),
        (":ADAM", "cannot be imported"),
    ],
)
def test_names_that_lead_nowhere_say_so(name, what):
    with pytest.raises(ConfigurationError, match=what):
        compose(TrainingSettings, server_optimizer=name).optimization(0.01, 0.5, 0)


@pytest.mark.usefixtures("own_module")
def test_what_makes_no_optimizer_says_so():
    with pytest.raises(ConfigurationError, match=r"makes a .* of a learning rate"):
        init_server(ServerOptimizerConfig("own_optimizers:number"), PARAMS)
    with pytest.raises(ConfigurationError, match="must be an optax optimizer"):
        OwnServerOptimizer(3)
    needs_more = optax.GradientTransformation(lambda params: (), lambda updates, state, params: updates["nothing"])
    with pytest.raises(ConfigurationError, match=r"cannot make a step.*nothing"):
        init_server(OwnServerOptimizer(needs_more), PARAMS)
    grows = optax.GradientTransformation(
        lambda params: jnp.zeros(1), lambda updates, state, params: (updates, jnp.concatenate([state, state]))
    )
    with pytest.raises(ConfigurationError, match="other shapes"):
        init_server(OwnServerOptimizer(grows), PARAMS)
