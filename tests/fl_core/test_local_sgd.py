import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_core.errors import ConfigurationError
from fl_core.local_sgd import LocalTraining, batch_rows, gather_batch, global_norm, local_step
from models.base import Batch, batch_loss
from models.cifg import CifgConfig, cifg

MODEL = cifg("test", CifgConfig(vocabulary_size=30, embedding=8, hidden=12))


def a_batch(rows=3, seed=0):
    tokens = np.random.default_rng(seed).integers(1, 30, (rows, 7))
    return Batch(jnp.asarray(tokens, jnp.int32), jnp.ones(rows))


@given(st.integers(0, 70), st.integers(1, 12), st.integers(1, 4), st.integers(1, 30), st.integers(0, 2**32))
def test_batches_hold_every_example_once_an_epoch_up_to_the_cap(examples, size, epochs, cap, seed):
    training = LocalTraining(batch_size=size, epochs=epochs, max_batches=cap)
    if examples == 0:
        assert training.count_steps(0) == 0
        return
    rows = batch_rows(examples, training, np.random.default_rng(seed))
    per_epoch = -(-examples // size)
    assert rows.shape == (min(per_epoch * epochs, cap), size)
    assert training.count_steps(examples) == len(rows)
    for start in range(0, len(rows), per_epoch):
        epoch = rows[start : start + per_epoch]
        real = epoch[epoch >= 0]
        assert len(set(real.tolist())) == len(real)
        if len(epoch) == per_epoch:
            assert sorted(real.tolist()) == list(range(examples))
    assert np.all(rows.max(axis=1) >= 0), "no batch is empty"


def test_batches_are_shuffled_anew_in_every_epoch():
    rows = batch_rows(40, LocalTraining(batch_size=40, epochs=2), np.random.default_rng(0))
    assert rows[0].tolist() != rows[1].tolist()
    assert rows[0].tolist() != list(range(40))


def test_gathering_fills_up_with_rows_of_weight_zero():
    sequences = np.arange(1, 13).reshape(4, 3)
    tokens, weight = gather_batch(sequences, np.array([[3, 1], [0, -1]]))
    assert tokens.tolist() == [[[10, 11, 12], [4, 5, 6]], [[1, 2, 3], [0, 0, 0]]]
    assert weight.tolist() == [[1, 1], [1, 0]]


def test_a_step_goes_against_the_gradient_of_the_mean_token_loss():
    params = MODEL.init(jax.random.key(0))
    gradient = jax.grad(lambda p: batch_loss(MODEL, p, a_batch())[0])(params)
    stepped, losses = local_step(MODEL, params, a_batch(), 0.3, None)
    for new, old, g in zip(*map(jax.tree_util.tree_leaves, (stepped, params, gradient)), strict=True):
        np.testing.assert_allclose(new, old - 0.3 * g, atol=1e-6)
    assert float(losses.tokens) == 18
    np.testing.assert_allclose(losses.loss / losses.tokens, batch_loss(MODEL, params, a_batch())[0], rtol=1e-6)


@pytest.mark.parametrize(("clip", "changes"), [(1e-3, True), (1e3, False)])
def test_gradient_clipping_bounds_the_step(clip, changes):
    params = MODEL.init(jax.random.key(0))
    plain, _ = local_step(MODEL, params, a_batch(), 1.0, None)
    clipped, _ = local_step(MODEL, params, a_batch(), 1.0, clip)
    length = float(global_norm(jax.tree_util.tree_map(jnp.subtract, params, clipped)))
    assert length <= clip * 1.01
    same = all(jax.tree_util.tree_leaves(jax.tree_util.tree_map(lambda a, b: bool(jnp.allclose(a, b)), plain, clipped)))
    assert same is not changes


def test_a_batch_without_examples_changes_nothing():
    params = MODEL.init(jax.random.key(0))
    empty = Batch(jnp.zeros((3, 7), jnp.int32), jnp.zeros(3))
    for clip in (None, 1.0):
        stepped, losses = local_step(MODEL, params, empty, 1.0, clip)
        for new, old in zip(*map(jax.tree_util.tree_leaves, (stepped, params)), strict=True):
            np.testing.assert_array_equal(new, old)
        assert float(losses.loss) == float(losses.tokens) == 0


@pytest.mark.parametrize("field", ["batch_size", "epochs", "max_batches", "gradient_clip"])
def test_impossible_settings_are_refused(field):
    with pytest.raises(ConfigurationError, match=f"{field} is 0"):
        LocalTraining(**{field: 0})
