import json

import numpy as np
import pytest

from fedlm.models.base import Batch
from fedlm.models.special_tokens import PAD_ID
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.pretraining.batches.masking import MaskedWords
from fedlm.simulations.pretraining.batches.pipeline import logical_batches
from fedlm.simulations.pretraining.batches.sampling import PoissonBatches
from tests.simulations.pretraining.small_stores import opened

STEPS = 12


@pytest.fixture(scope="module")
def units(small_store, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return opened(TokenStore.open(small_store), cache, 8, unit="user", sequences_per_unit=3)


@pytest.fixture(scope="module")
def poisson(units):
    return PoissonBatches(units, 6, seed=2**255 + 1)


def batches_of(units, batches, first_step=0, steps=STEPS, physical_batch=4, **options):
    return list(
        logical_batches(units, batches, first_step=first_step, steps=steps, physical_batch=physical_batch, **options)
    )


def assert_same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert (a.step, a.size, a.num_chunks) == (b.step, b.size, b.num_chunks)
        for of_a, of_b in zip(a.chunks, b.chunks, strict=True):
            assert of_a.keys() == of_b.keys()
            for name in of_a:
                np.testing.assert_array_equal(of_a[name], of_b[name])


def test_batches_hold_the_units_that_were_drawn_and_fill_chunks(units, poisson):
    found = batches_of(units, poisson)
    assert [batch.step for batch in found] == list(range(STEPS))
    assert len({batch.num_chunks for batch in found}) > 1
    for batch in found:
        drawn = poisson.draw(batch.step)
        tokens, weight = units.sequences(drawn)
        assert batch.size == len(drawn)
        assert batch.num_chunks == -(-len(drawn) // 4)
        assert batch.positions == len(drawn) * 3 * 8
        assert {chunk["tokens"].shape for chunk in batch.chunks} == {(4, 3, 9)}
        flat, flat_weight = (np.concatenate([chunk[name] for chunk in batch.chunks]) for name in ("tokens", "weight"))
        np.testing.assert_array_equal(flat[: len(drawn)], tokens)
        np.testing.assert_array_equal(flat_weight[: len(drawn)], weight)
        assert (flat[len(drawn) :] == PAD_ID).all()
        assert (flat_weight[len(drawn) :] == 0).all()
        Batch(**batch.chunk(0))


def test_iteration_begins_at_any_step(units, poisson):
    assert_same(batches_of(units, poisson)[5:], batches_of(units, poisson, 5, STEPS - 5))
    assert_same(batches_of(units, poisson), batches_of(units, poisson, prefetch=1))
    few = PoissonBatches(units, 1, seed=0)
    empty = next(step for step in range(100) if not len(few.draw(step)))
    for transform in (None, MaskedWords(120, seed=0)):
        (batch,) = batches_of(units, few, empty, 1, transform=transform)
        assert (batch.size, batch.positions, batch.num_chunks) == (0, 0, 0)


def test_a_saved_iterator_goes_on_with_the_same_batches(units, poisson):
    expected = batches_of(units, poisson)
    for done in (0, 1, 7):
        iterator = iter(logical_batches(units, poisson, first_step=0, steps=STEPS, physical_batch=4))
        for _ in range(done):
            next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))
        restored = iter(logical_batches(units, poisson, first_step=0, steps=STEPS, physical_batch=4))
        next(restored)
        restored.set_state(state)
        assert_same(list(restored), expected[done:])


@pytest.mark.parametrize("transform", [None, MaskedWords(120, seed=3)])
def test_processes_share_every_chunk(units, poisson, transform):
    whole = batches_of(units, poisson, transform=transform)
    parts = [
        batches_of(units, poisson, transform=transform, process_index=index, process_count=2) for index in range(2)
    ]
    for batch, *shares in zip(whole, *parts, strict=True):
        assert [share.size for share in shares] == [batch.size] * 2
        for number, chunk in enumerate(batch.chunks):
            for name, array in chunk.items():
                np.testing.assert_array_equal(np.concatenate([share.chunk(number)[name] for share in shares]), array)
