"""What contestants are given, and the model that is no part of fedlm."""

from pathlib import Path

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest

from benchmarks.simulation.peers.lstm import lstm
from benchmarks.simulation.peers.task import Settings, Task, flatten, load_task, save_task, unflatten
from fedlm.models.base import parameter_count


def test_a_task_comes_back_as_it_was(tmp_path: Path):
    params = {"table": np.ones((2, 3), np.float32), "blocks": [{"a": np.zeros(1)} for _ in range(11)]}
    clients = [np.arange(2 * size).reshape(size, 2).astype(np.int32) for size in (3, 1, 25)]
    task = Task(Settings("cifg_1m", 50, 10, 0.5, 2), clients, params, np.ones((4, 2), np.int32))
    save_task(tmp_path / "task.npz", task)
    loaded = load_task(tmp_path / "task.npz")
    assert loaded.settings == task.settings
    assert loaded.steps == 1 + 1 + 3
    jax.tree_util.tree_map(np.testing.assert_array_equal, tuple(loaded), tuple(task))


def test_trees_are_named_by_paths():
    tree = {"a": {"b": np.ones(1)}, "c": [np.zeros(1), {"d": np.ones(2)}]}
    assert list(flatten(tree)) == ["a/b", "c/0", "c/1/d"]
    jax.tree_util.tree_map(np.testing.assert_array_equal, unflatten(flatten(tree)), tree)


def test_the_lstm_has_the_stated_number_of_parameters():
    assert parameter_count(lstm("lstm_1m", 4096)) == 4096 * 128 + 4 * 384 * (128 + 384 + 1) + 384 * 128 + 4096


@pytest.mark.long
def test_the_lstm_computes_what_its_equations_say():
    model = lstm("small", 11, embedding=4, hidden=3)
    params = model.init(jax.random.key(0))
    tokens = np.array([[1, 5, 7], [2, 2, 10]])
    p = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf, np.float64), params)
    h, c, outputs = np.zeros((2, 3)), np.zeros((2, 3)), []
    for t in range(3):
        x = p["embedding"]["table"][tokens[:, t]] * 2
        z = x @ p["input"]["kernel"] + p["input"]["bias"] + h @ p["recurrent"]["kernel"]
        i, f, g, o = np.split(z, 4, axis=-1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        outputs.append(h @ p["projection"]["kernel"] @ p["embedding"]["table"].T + p["output_bias"])
    np.testing.assert_allclose(model.apply(params, jnp.asarray(tokens)), np.stack(outputs, axis=1), atol=1e-5)


@pytest.mark.long
def test_the_lstms_own_backward_pass_gives_the_gradient():
    model = lstm("small", 11, embedding=4, hidden=3)
    params = model.init(jax.random.key(0))
    tokens = jnp.array([[1, 5, 7, 3], [2, 2, 10, 9]])
    jax.test_util.check_grads(lambda p: jnp.sum(jnp.sin(model.apply(p, tokens))), (params,), 1, ["rev"], 3e-2, 3e-2)
