"""Steps of a Gemma decoder, on several devices."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from fedlm.fl_core.clipping.methods import Clipping
from fedlm.models.families.published_decoder import published_decoder
from fedlm.simulations.pretraining.microbatches import StepRules
from fedlm.simulations.pretraining.trainer import Trainer
from tests.models.small_models import EVERY_PART

LENGTH, BATCH, STEPS = 8, 8, 3
RATE = 1e-4
"""Adam divides gradients near its epsilon by themselves, so that their rounding becomes a part of the rate: 0.4 per
cent of it is the most that plain steps differ by here."""
leaves = jax.tree_util.tree_leaves
MODEL = published_decoder("small", dataclasses.replace(EVERY_PART, layers=1, windows=(3,)))


def train(private, devices, sharding):
    rules = StepRules(Clipping("bookkeeping", 1.0) if private else None, 0.5 * private, BATCH, 1)
    trainer = Trainer(MODEL, optax.adam(RATE), rules, sharding, devices=jax.devices()[:devices])
    state = trainer.place(trainer.fresh(MODEL.init(jax.random.key(0))))
    draw = trainer.draw_noise(bytes(32))
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        shape = (trainer.chunk_units, 1, LENGTH + 1)
        tokens, weight = np.zeros(shape, np.int32), np.zeros(shape[:2], np.float32)
        tokens[:BATCH] = rng.integers(4, MODEL.vocabulary_size, (BATCH, *shape[1:]))
        weight[:BATCH] = 1
        totals = trainer.add(state.params, trainer.zero(), {"tokens": tokens, "weight": weight})
        state, report = trainer.step(state, totals, draw([(1.0, (0, step))]) if private else None)
        assert report.totals.units == BATCH
    return [np.asarray(leaf) for leaf in leaves(trainer.whole(state).params)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("devices", "sharding"),
    [(4, "full"), *(pytest.param(*one, marks=pytest.mark.thorough) for one in ((2, "full"), (4, "data")))],
)
@pytest.mark.parametrize("private", [False, True], ids=["plain", "private"])
def test_parameters_are_the_same_on_any_number_of_devices(private, devices, sharding):
    expected = train(private, 1, "data")
    before = leaves(MODEL.init(jax.random.key(0)))
    assert max(np.abs(one - other).max() for one, other in zip(expected, before, strict=True)) > RATE
    found = train(private, devices, sharding)
    assert max(np.abs(one - other).max() for one, other in zip(expected, found, strict=True)) <= 2e-6
