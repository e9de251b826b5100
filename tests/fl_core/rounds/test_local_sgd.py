import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.rounds.local_sgd import (
    LocalTraining,
    batch_rows,
    gather_batch,
    global_norm,
    local_step,
)
from fedlm.models.base import Batch, batch_loss
from fedlm.models.families.cifg import CifgConfig, cifg
from fedlm.models.families.transformer import TransformerConfig, transformer

MODEL = cifg("test", CifgConfig(vocabulary_size=30, embedding=8, hidden=12))


def a_batch(rows=3, seed=0):
    tokens = np.random.default_rng(seed).integers(1, 30, (rows, 7))
    return Batch(jnp.asarray(tokens, jnp.int32), jnp.ones(rows))


TRAININGS = st.builds(
    LocalTraining,
    batch_size=st.integers(1, 12),
    epochs=st.integers(1, 4),
    max_batches=st.integers(1, 30),
    max_examples=st.integers(1, 80),
    cap_order=st.sampled_from(["shuffle_then_cap", "cap_then_shuffle"]),
    batches_across_epochs=st.booleans(),
)


@given(st.integers(0, 70), TRAININGS, st.integers(0, 2**32))
def test_every_setting_gives_the_steps_that_are_counted_and_whole_epochs(examples, training, seed):
    rows = batch_rows(examples, training, np.random.default_rng(seed))
    assert rows.shape == (training.count_steps(examples), training.batch_size)
    # Counted alike for one client and for many.
    assert training.count_steps(np.array([examples] * 2, np.int32)).tolist() == [len(rows)] * 2
    kept = min(examples, training.max_examples)
    assert training.count_examples(examples) == kept
    if kept == 0:
        return
    assert np.all(rows.max(axis=1) >= 0), "no batch is empty"
    filled = (rows >= 0).sum(axis=1)
    if training.batches_across_epochs:
        assert np.all(filled[:-1] == training.batch_size)
    else:
        last_of_epoch = np.arange(1, len(rows) + 1) % -(-kept // training.batch_size) == 0
        assert np.all(filled[~last_of_epoch] == training.batch_size)
        assert np.all(filled[last_of_epoch] == kept - (kept - 1) // training.batch_size * training.batch_size)
    real = rows[rows >= 0]
    if len(rows) < training.max_batches:
        assert len(real) == kept * training.epochs
    for start in range(0, len(real), kept):
        epoch = real[start : start + kept]
        assert len(set(epoch.tolist())) == len(epoch)
        if training.cap_order == "cap_then_shuffle":
            assert epoch.max() < kept


def test_the_cap_keeps_the_same_examples_only_where_it_comes_first():
    seen = {}
    for order in ("cap_then_shuffle", "shuffle_then_cap"):
        training = LocalTraining(batch_size=4, max_examples=8, cap_order=order)
        rounds = [batch_rows(100, training, np.random.default_rng(seed)).reshape(-1).tolist() for seed in range(50)]
        assert len({tuple(rows) for rows in rounds}) == 50, "shuffled anew"
        seen[order] = {row for rows in rounds for row in rows}
    assert seen["cap_then_shuffle"] == set(range(8))
    assert len(seen["shuffle_then_cap"]) > 90, "400 draws from 100 miss more than 9 with probability below 1e-4"


def test_batches_are_shuffled_anew_in_every_epoch_and_filled_up_with_rows_of_weight_zero():
    rows = batch_rows(40, LocalTraining(batch_size=40, epochs=2), np.random.default_rng(0))
    assert len({tuple(row) for row in [*rows.tolist(), range(40)]}) == 3
    sequences = np.arange(1, 13).reshape(4, 3)
    tokens, weight = gather_batch(sequences, np.array([[3, 1], [0, -1]]))
    assert tokens.tolist() == [[[10, 11, 12], [4, 5, 6]], [[1, 2, 3], [0, 0, 0]]]
    assert weight.tolist() == [[1, 1], [1, 0]]


@pytest.mark.parametrize("clip", [None, 1e-3, 1e3])
def test_a_step_goes_against_the_gradient_of_the_mean_token_loss_which_is_clipped(clip):
    params, batch = MODEL.init(jax.random.key(0)), a_batch()
    loss, gradient = jax.value_and_grad(lambda p: batch_loss(MODEL, p, batch)[0])(params)
    stepped, sums = local_step(MODEL, params, batch, learning_rate=0.5, gradient_clip=clip)
    norm = float(global_norm(gradient))
    rate = 0.5 * (1 if clip is None else min(1, clip / norm))
    for new, old, g in zip(*map(jax.tree_util.tree_leaves, (stepped, params, gradient)), strict=True):
        np.testing.assert_allclose(new, old - rate * g, rtol=1e-5, atol=1e-6)
    assert float(sums.tokens) == 18
    np.testing.assert_allclose(sums.loss / sums.tokens, loss, rtol=1e-6)
    np.testing.assert_allclose(sums.gradient_norm, norm, rtol=1e-5)
    if clip is not None:
        length = float(global_norm(jax.tree_util.tree_map(jnp.subtract, params, stepped)))
        assert length <= 0.5 * clip * 1.01


@pytest.mark.long
def test_steps_are_taken_in_place():
    """Copying all parameters at every step would cost as much as a tenth of a large model's step."""
    model = transformer("small", TransformerConfig(vocabulary_size=30, layers=1, heads=1, embedding=8, mlp=12))
    params = model.init(jax.random.key(0))

    def steps(params, batches):
        def one(index, params):
            batch = jax.tree_util.tree_map(lambda leaf: leaf[index], batches)
            return local_step(model, params, batch, learning_rate=1.0, gradient_clip=None)[0]

        return jax.lax.fori_loop(0, 3, one, params)

    batches = jax.tree_util.tree_map(lambda leaf: jnp.stack([leaf] * 3), a_batch())
    program = jax.jit(steps, donate_argnums=0).lower(params, batches).compile().as_text()
    rows, columns = params["blocks"][0]["mlp_input"]["kernel"].shape
    assert f"f32[{rows},{columns}]" in program
    assert not re.search(rf"f32\[{rows},{columns}\]\S* copy\(", program)


def test_a_batch_without_examples_changes_nothing():
    params = MODEL.init(jax.random.key(0))
    empty = Batch(jnp.zeros((3, 7), jnp.int32), jnp.zeros(3))
    for clip in (None, 1.0):
        stepped, losses = local_step(MODEL, params, empty, learning_rate=1.0, gradient_clip=clip)
        for new, old in zip(*map(jax.tree_util.tree_leaves, (stepped, params)), strict=True):
            np.testing.assert_array_equal(new, old)
        assert float(losses.loss) == float(losses.tokens) == 0
