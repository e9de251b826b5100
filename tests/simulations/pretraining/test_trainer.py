import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from fedlm.fl_core.clipping.methods import Clipping
from fedlm.fl_core.exact_sums import as_float64, grid_step
from fedlm.fl_core.privacy.mechanisms.registry import make_noise
from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.models.base import Batch, language_model
from fedlm.models.families.bert import BertConfig, bert
from fedlm.models.families.masked_language import MaskedBatch
from fedlm.models.layers.basic import dense, embed, init_dense, init_embedding, logits_from_table
from fedlm.simulations.pretraining.microbatches import StepRules
from fedlm.simulations.pretraining.trainer import Trainer
from tests.models.small_models import VOCABULARY

LENGTH, UNITS = 6, 11
leaves = jax.tree_util.tree_leaves


def units(count=UNITS, examples=1, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, VOCABULARY, (count, examples, LENGTH + 1)).astype(np.int32)
    return {"tokens": tokens, "weight": (rng.random((count, examples)) < 0.9).astype(np.float32)}


def chunks(rows, size):
    """Cut units into chunks of one size, filled up with units of weight 0."""
    total = len(rows["weight"])
    count = max(1, -(-total // size))
    padded = {
        name: np.concatenate([array, np.zeros((count * size - total, *array.shape[1:]), array.dtype)])
        for name, array in rows.items()
    }
    return [{name: array[k * size : (k + 1) * size] for name, array in padded.items()} for k in range(count)]


@functools.cache
def trainer_of(model, clipping, noise=0.0, batch_size=5, microbatch=2, sharding="data", devices=1):
    """One for each setting, so that its programs are traced once."""
    rules = StepRules(clipping, noise, batch_size, microbatch)
    return Trainer(model.model, optax.sgd(1.0), rules, sharding, devices=jax.devices()[:devices])


def take_step(model, rows, clipping, noise=0.0, secret=None, microbatch=2, sharding="data", devices=1, batch_size=5):
    trainer = trainer_of(model, clipping, noise, batch_size, microbatch, sharding, devices)
    state = trainer.place(trainer.fresh(model.params))
    totals = trainer.zero()
    for chunk in chunks(rows, trainer.chunk_units):
        totals = trainer.add(state.params, totals, chunk)
    before = jax.device_get(state.params)
    drawn = None if secret is None else trainer.draw_noise(secret)([(1.0, (0,))])
    state, report = trainer.step(state, totals, drawn)
    step = jax.tree_util.tree_map(lambda old, new: old - np.asarray(new), before, trainer.whole(state).params)
    return step, jax.device_get(report)


def reference(model, rows, clip_norm, batch=Batch, batch_size=5):
    """The mean of clipped gradients, unit by unit in float64, in clip norms."""

    def loss(params, unit):
        sums = model.model.loss(params, unit)
        return jnp.sum(sums.loss * unit.weight) / jnp.maximum(jnp.sum(sums.tokens * unit.weight), 1)

    gradient = jax.jit(jax.grad(loss))
    total, norms = 0.0, []
    for index in range(len(rows["weight"])):
        unit = batch(**{name: array[index] for name, array in rows.items()})
        flat = np.concatenate([np.ravel(x).astype(np.float64) for x in leaves(gradient(model.params, unit))])
        norms.append(np.linalg.norm(flat))
        total = total + flat * (1.0 if clip_norm is None else min(1.0, clip_norm / max(norms[-1], 1e-30)) / clip_norm)
    return total / batch_size, np.array(norms)


def flat(tree):
    return np.concatenate([np.ravel(x) for x in leaves(tree)])


class TinyModel:
    """Tied embeddings and one dense layer, which compile in a moment."""

    def __init__(self):
        def init(rng):
            table, layer = jax.random.split(rng)
            return {
                "table": init_embedding(table, VOCABULARY, 4),
                "dense": init_dense(layer, 4, 4, bias=True),
                "bias": jnp.zeros(VOCABULARY),
            }

        def apply(params, tokens):
            x = jnp.tanh(dense(params["dense"], embed(params["table"], tokens)))
            return logits_from_table(params["table"], params["bias"], x)

        self.model = language_model("tiny", VOCABULARY, init, apply)
        self.params = jax.tree_util.tree_map(lambda leaf: leaf + 0.1, init(jax.random.key(0)))


@functools.cache
def small():
    return TinyModel()


@pytest.mark.long
@pytest.mark.parametrize(("clip_norm", "examples"), [(None, 3), (0.5, 1), (0.5, 3)])
def test_a_step_is_the_mean_of_clipped_gradients(clip_norm, examples):
    rows = units(examples=examples)
    clipping = clip_norm and Clipping("bookkeeping", clip_norm)
    step, report = take_step(small(), rows, clipping)
    expected, norms = reference(small(), rows, clip_norm)
    # Clipped sums lie on a grid, a little inside of the clip norm.
    np.testing.assert_allclose(flat(step), expected, rtol=1e-3, atol=2e-4 if clip_norm else 2e-6)
    present = rows["weight"].any(axis=1)
    assert report.totals.units == present.sum()
    if clip_norm:
        assert report.totals.clipped == (norms > clip_norm).sum()
        assert report.totals.norm_counts.sum() == present.sum()
        assert report.totals.not_finite == 0


@functools.cache
def noisy_step(devices=1, sharding="data"):
    clipping = Clipping("bookkeeping", 0.5)
    return flat(take_step(small(), units(40), clipping, 0.7, bytes(32), devices=devices, sharding=sharding)[0])


@pytest.mark.long
@pytest.mark.parametrize(("devices", "sharding"), [(4, "data"), (1, "full"), (2, "full"), (4, "full")])
def test_a_private_step_has_the_same_bits_on_any_number_of_devices(devices, sharding):
    np.testing.assert_array_equal(noisy_step(devices, sharding), noisy_step())


@pytest.mark.parametrize("sharding", [pytest.param("data", marks=pytest.mark.long), "full"])
def test_a_plain_step_is_the_same_however_it_is_spread(sharding):
    one, _ = take_step(small(), units(40), None)
    many, report = take_step(small(), units(40), None, devices=4, sharding=sharding)
    np.testing.assert_allclose(flat(many), flat(one), rtol=1e-4, atol=2e-6)
    assert report.totals.units == units(40)["weight"].any(axis=1).sum()


def grid_sum(rows, clip_norm, microbatch=3):
    """The sum of clipped gradients before noise: integers, and the step of the grid in clip norms."""
    trainer = trainer_of(small(), Clipping("bookkeeping", clip_norm), 1.0, microbatch=microbatch)
    totals = trainer.zero()
    for chunk in chunks(rows, trainer.chunk_units):
        totals = trainer.add(small().params, totals, chunk)
    with jax.enable_x64(True):
        numbers = flat(jax.device_get(as_float64(totals.gradient)))
    return numbers, float(grid_step(jnp.float32(1.0), len(numbers)))


@pytest.mark.parametrize("left_out", [0, 4, 10])
@pytest.mark.parametrize("clip_norm", [1e-3, 1e3])
def test_a_unit_moves_the_sum_by_no_more_than_the_clip_norm(clip_norm, left_out):
    rows = units()
    rows["weight"][:] = 1
    fewer = rows | {"weight": rows["weight"].copy()}
    fewer["weight"][left_out] = 0
    (with_it, step), (without, _) = grid_sum(rows, clip_norm), grid_sum(fewer, clip_norm)
    moved = np.linalg.norm(with_it - without) * step
    assert moved <= 1
    assert (moved > 0.998) == (clip_norm < 1)


@pytest.mark.long
def test_noise_is_added_once_whatever_the_batch():
    """All noise of a step is one normal draw, and another by another secret; a false alarm in one of 10,000 runs at
    most for each."""
    clipping, draws = Clipping("bookkeeping", 0.25), {}
    for count, secret in ((0, bytes(32)), (40, bytes(32)), (0, bytes([1] * 32))):
        rows = {name: array[:count] for name, array in units(40).items()}
        noisy, report = take_step(small(), rows, clipping, noise=3.0, secret=secret, batch_size=20)
        plain, _ = take_step(small(), rows, clipping, batch_size=20)
        draws[count, secret] = flat(noisy) - flat(plain)
        assert report.noise_norm == pytest.approx(np.linalg.norm(draws[count, secret]), rel=1e-3)
    empty, full, other = draws.values()
    np.testing.assert_allclose(empty, full, atol=2e-6)
    assert stats.kstest(empty / (3.0 / 20), "norm").pvalue > 1e-4
    assert stats.pearsonr(empty, other).pvalue > 1e-4


@pytest.mark.long
def test_masked_models_are_trained():
    config = BertConfig(vocabulary_size=VOCABULARY, layers=1, heads=2, embedding=8, mlp=8, max_length=LENGTH)
    model = TinyModel()
    model.model = bert("small", config)
    model.params = model.model.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    inputs = rng.integers(1, VOCABULARY, (UNITS, 1, LENGTH)).astype(np.int32)
    targets = np.where(rng.random(inputs.shape) < 0.3, inputs, 0).astype(np.int32)
    rows = {"inputs": inputs, "targets": targets, "weight": np.ones((UNITS, 1), np.float32)}
    step, _ = take_step(model, rows, Clipping("bookkeeping", 0.5))
    expected, _ = reference(model, rows, 0.5, MaskedBatch)
    np.testing.assert_allclose(flat(step), expected, rtol=1e-3, atol=2e-4)


@pytest.mark.long
@pytest.mark.parametrize(("devices", "sharding"), [(1, "data"), (4, "full")])
def test_banded_noise_of_steps_is_that_of_its_strategy_before_and_after_a_checkpoint(devices, sharding):
    plan = central_plan(100, 5, 6, 2.0, bands=3, coefficients=(0.8, 0.48, 0.36))
    rules = StepRules(Clipping("bookkeeping", 0.5), plan.noise_multiplier, 5, 2)
    trainer = Trainer(small().model, optax.sgd(1.0), rules, sharding, devices=jax.devices()[:devices])
    noise, draw = make_noise(plan), trainer.draw_noise(bytes(32))
    state = trainer.place(trainer.fresh(small().params)._replace(noise=noise.init(small().params)))
    models = [flat(jax.device_get(state.params))]
    for step in range(6):
        drawn, after = noise.next(state.noise, draw)
        state, _ = trainer.step(state._replace(noise=after), trainer.zero(), drawn)
        models.append(flat(jax.device_get(state.params)))
        if step == 3:
            saved = trainer.whole(state)
            assert {leaf.dtype for leaf in leaves(saved.noise.buffers)} == {np.dtype(np.float64)}
            state = trainer.place(saved)
    strategy = sum(value * np.eye(6, k=-place) for place, value in enumerate(plan.coefficients))
    draws = np.stack([flat(jax.device_get(draw([(1.0, (0, step))]))) for step in range(6)])
    np.testing.assert_allclose(strategy @ -np.diff(models, axis=0) * 5 / 2, draws, atol=1e-4)
