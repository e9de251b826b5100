"""Sequences of unequal lengths, padded to a few lengths in place of the greatest."""

from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

from fedlm.fl_core.clipping.methods import Clipping
from fedlm.models.registry import create_model
from fedlm.models.special_tokens import PAD_ID
from fedlm.simulations.pretraining.batches.masking import MaskedWords
from fedlm.simulations.pretraining.batches.pipeline import logical_batches
from fedlm.simulations.pretraining.batches.privacy_units import Units
from fedlm.simulations.pretraining.inserted_canaries import canaries_of, with_canaries
from fedlm.simulations.pretraining.microbatches import StepRules
from fedlm.simulations.pretraining.trainer import Trainer
from tests.simulations.pretraining.small_runs import described
from tests.simulations.pretraining.small_stores import TOKENIZER, opened, write_store

LENGTH, MICROBATCH = 12, 3
SASREC = {"layers": 1, "heads": 1, "embedding": 8, "mlp": 8, "max_length": LENGTH, "tied": True}
WORDS = TOKENIZER.vocabulary_size


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng = np.random.default_rng(0)
    # With BOS and EOS: from 2 tokens, of which one is read, to 30.
    sequences = [rng.integers(4, WORDS, size).tolist() for size in [*range(29), *rng.integers(0, 9, 31)]]
    clients = [sequences[first : first + 2] for first in range(0, 60, 2)]
    return write_store(tmp_path_factory.mktemp("lengths") / "store", clients)


@pytest.fixture(scope="module")
def units(store, tmp_path_factory):
    return opened(store, tmp_path_factory.mktemp("cache"), LENGTH)


def given(indices):
    return SimpleNamespace(draw=lambda step: np.asarray(indices, np.int64))


def laid(units, indices, physical_batch=MICROBATCH, **options):
    (batch,) = logical_batches(
        units, given(indices), first_step=0, steps=1, physical_batch=physical_batch, prefetch=1, **options
    )
    return batch


def test_lengths_follow_from_the_settings_alone(units, store, tmp_path):
    for length, expected in {
        5: (5,),
        8: (8,),
        9: (8, 9),
        16: (8, 16),
        50: (8, 16, 32, 50),
        64: (8, 16, 32, 64),
        500: (64, 128, 256, 500),
    }.items():
        assert opened(store, tmp_path, length).padded_lengths == expected
    assert opened(store, tmp_path, 50, packing="packed").padded_lengths == (50,)
    canaries = canaries_of({"canaries": 2, "canary_repeats": (1, 2), "length": LENGTH, "seed": 0}, WORDS)
    planted = with_canaries(units, canaries)
    short = np.flatnonzero((units.sequences(np.arange(units.count))[0] != PAD_ID).sum(axis=(1, 2)) < 8)[0]
    found = planted.by_length(np.array([units.count, short, planted.count - 1]))
    assert [(length, those.tolist()) for length, those in found] == [
        (8, [short]),
        (LENGTH, [units.count, planted.count - 1]),
    ]


@pytest.mark.parametrize("masked", [False, True])
def test_no_token_is_lost_and_hardly_any_is_added(units, masked):
    order = np.random.default_rng(1).permutation(units.count)
    transform = MaskedWords(WORDS, seed=1) if masked else None
    whole, weight = units.sequences(order)
    fields = {"tokens": whole} if transform is None else transform(0, order, whole)
    batch = laid(units, order, transform=transform, reads_last=masked)
    name = "inputs" if masked else "tokens"
    # Each unit is found by what it holds, at the place that its length and the order give it.
    read = (whole != PAD_ID).sum(axis=2).max(axis=1) - (not masked)
    expected = {}
    for place, number in enumerate(np.minimum(read, LENGTH)):
        expected.setdefault(next(one for one in units.padded_lengths if number <= one), []).append(place)
    assert list(expected) != []
    assert batch.positions == sum(length * len(those) for length, those in expected.items())
    for length, those in expected.items():
        chunks = [chunk for chunk in batch.chunks if chunk[name].shape[-1] == length + (not masked)]
        for field, array in fields.items():
            found = np.concatenate([chunk[field] for chunk in chunks])
            kept = found.shape[-1]
            np.testing.assert_array_equal(found[: len(those)], array[those][..., :kept])
            assert (array[those][..., kept:] == PAD_ID).all()
        present = np.concatenate([chunk["weight"] for chunk in chunks])
        assert (present[: len(those)] == 1).all()
        assert present.sum() == len(those)
    assert sum(chunk["weight"].sum() for chunk in batch.chunks) == weight.sum()


def test_one_unit_less_changes_two_microbatches_at_most(units):
    rng = np.random.default_rng(2)
    for _ in range(50):
        drawn = rng.permutation(units.count)[: rng.integers(1, units.count + 1)]
        left_out = rng.integers(len(drawn))
        same_length = next(those for _, those in units.by_length(drawn) if drawn[left_out] in those)
        # As likely an order without the unit: the last of its length has its place.
        without = np.where(drawn == drawn[left_out], same_length[-1], drawn)
        last = np.flatnonzero(drawn == same_length[-1])[0]
        without = np.delete(without, last)
        before, after = (
            [chunk["tokens"].tobytes() for chunk in laid(units, order).chunks] for order in (drawn, without)
        )
        assert len(set(before) - set(after)) <= 2
        assert len(before) - len(after) in (0, 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("sasrec", SASREC),
        ("gru4rec", {"layers": 1, "embedding": 8, "hidden": 8, "tied": False, "unroll": 1}),
    ],
)
def test_clipped_sums_are_those_of_units_padded_to_the_greatest_length(
    units, tmp_path, monkeypatch, architecture, sizes
):
    model = create_model(described(tmp_path, architecture, vocabulary_size=WORDS, **sizes))
    params = model.init(jax.random.key(0))
    trainer = Trainer(
        model, optax.sgd(1.0), StepRules(Clipping("bookkeeping", 0.1), 0.0, 20, 4), "data", devices=jax.devices()[:1]
    )
    order = np.random.default_rng(3).permutation(units.count)[:40]

    def total(batch):
        totals = trainer.zero()
        for chunk in batch.chunks:
            totals = trainer.add(params, totals, chunk)
        return trainer.step(trainer.fresh(params), totals, None)

    found, about = total(laid(units, order, trainer.chunk_units))
    monkeypatch.setattr(Units, "padded_lengths", (LENGTH,))
    padded = laid(units, order, trainer.chunk_units)
    assert {chunk["tokens"].shape[-1] for chunk in padded.chunks} == {LENGTH + 1}
    expected, about_padded = total(padded)
    moved = jax.tree_util.tree_map(lambda one, start: np.abs(one - start).max(), expected.params, params)
    assert max(jax.tree_util.tree_leaves(moved)) > 1e-3
    for one, other in zip(*map(jax.tree_util.tree_leaves, (found.params, expected.params)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=5e-6)
    for name in ("loss", "tokens", "units", "clipped", "unit_loss"):
        one, other = (getattr(report.totals, name) for report in (about, about_padded))
        np.testing.assert_allclose(one, other, rtol=1e-5)
