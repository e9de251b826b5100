"""What the adapters of other frameworks have in common, and needs none of them."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.interop import kinks
from fedlm.interop import older_jax
from fedlm.interop.parameters import load_params, save_params
from fedlm.models.base import Batch, batch_loss
from fedlm.models.registry import create_model


def test_parameters_come_back_from_a_file(tmp_path):
    params = create_model("transformer_tiny", 50).init(jax.random.key(0))
    save_params(tmp_path / "params.npz", params)
    back = load_params(tmp_path / "params.npz")
    assert jax.tree_util.tree_structure(back) == jax.tree_util.tree_structure(params)
    assert jax.tree_util.tree_all(jax.tree_util.tree_map(np.array_equal, back, params))


def test_nothing_of_a_jax_that_has_all_is_changed():
    before = {name: getattr(jax.lax, name) for name in ("optimization_barrier", "platform_dependent")}
    older_jax.supply_missing()
    assert all(getattr(jax.lax, name) is value for name, value in before.items())


@pytest.mark.long
def test_what_an_older_jax_lacks_means_the_same(monkeypatch):
    model, batch = create_model("cifg_tiny", 50), Batch(jnp.array([[1, 4, 5, 6, 2]]), jnp.ones(1))
    params = model.init(jax.random.key(0))
    gradient = jax.grad(lambda params: batch_loss(model, params, batch)[0])
    expected = gradient(params)
    monkeypatch.setattr(older_jax, "jax", SimpleNamespace(lax=SimpleNamespace()))
    older_jax.supply_missing()
    for name in ("optimization_barrier", "platform_dependent"):
        monkeypatch.setattr(jax.lax, name, getattr(older_jax.jax.lax, name))
    for ours, found in zip(*map(jax.tree_util.tree_leaves, (expected, gradient(params))), strict=True):
        np.testing.assert_allclose(found, ours, atol=1e-6)


@pytest.mark.long
def test_only_gates_with_a_relu_have_kinks(monkeypatch):
    monkeypatch.setattr(kinks, "BATCHES", 60)
    assert kinks.count_kinks("si_cifg_tiny").jumps > 0 == kinks.count_kinks("cifg_tiny").jumps
