import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.models.special_tokens import BOS_ID, EOS_ID, PAD_ID, SPECIAL_TOKENS
from fedlm.simulations.pretraining.batches.pipeline import logical_batches
from fedlm.simulations.pretraining.batches.sampling import ShuffledBatches
from fedlm.simulations.pretraining.inserted_canaries import InsertedCanaries, canaries_of, with_canaries
from tests.simulations.pretraining.small_stores import opened, write_store

CANARIES = InsertedCanaries(5, (1, 4), 6, 60, seed=2)


def test_canaries_are_distinct_and_follow_from_the_settings():
    sequences = CANARIES.sequences()
    assert sequences.shape == (2, 5, 7)
    assert (sequences[..., 0] == BOS_ID).all()
    assert (sequences[..., -1] == EOS_ID).all()
    assert sequences[..., 1:-1].min() >= len(SPECIAL_TOKENS)
    assert sequences.max() < 60
    references = CANARIES.references(300)
    assert references.shape == (300, 7)
    everything = np.concatenate([sequences.reshape(-1, 7), references])
    assert len(np.unique(everything, axis=0)) == 310
    settings = {"canaries": 5, "canary_repeats": [1, 4], "length": 6, "seed": 2, "model": "any"}
    assert canaries_of(settings, 60) == CANARIES
    np.testing.assert_array_equal(canaries_of(settings, 60).sequences(), sequences)
    assert (canaries_of(settings | {"seed": 3}, 60).sequences() != sequences).any()
    assert canaries_of(settings | {"canaries": 0}, 60) is None
    assert canaries_of({"length": 6, "seed": 2}, 60) is None


@pytest.mark.parametrize(("unit", "most"), [("example", 1), ("user", 2)])
def test_each_repeat_is_a_unit_after_those_of_the_data(tmp_path, unit, most):
    store = write_store(tmp_path / "store", [[[9, 8]], [[7, 6, 5], [4]]])
    units = opened(store, tmp_path / "cache", 6, unit=unit, sequences_per_unit=most)
    both = with_canaries(units, CANARIES)
    assert both.count == units.count + 5 + 20
    assert both.unit == units.unit
    assert both.describe() == units.describe() | {"units": both.count, "canary_units": 25}
    tokens, weight = both.sequences(np.arange(both.count))
    expected, expected_weight = units.sequences(np.arange(units.count))
    np.testing.assert_array_equal(tokens[: units.count], expected)
    np.testing.assert_array_equal(weight[: units.count], expected_weight)
    planted, copies = np.unique(tokens[units.count :, 0], axis=0, return_counts=True)
    wanted = np.concatenate(list(CANARIES.sequences()))
    order = np.lexsort(wanted.T[::-1])
    np.testing.assert_array_equal(planted, wanted[order])
    np.testing.assert_array_equal(copies, np.repeat([1, 4], 5)[order])
    assert (tokens[units.count :, 1:] == PAD_ID).all()
    assert (weight[units.count :].sum(1) == 1).all()
    shuffled = np.array([units.count + 3, 0, units.count])
    np.testing.assert_array_equal(both.sequences(shuffled)[0], tokens[shuffled])
    assert both.sequences(np.zeros(0, np.int64))[0].shape == (0, most, 7)
    for outside in (-1, both.count):
        with pytest.raises(IndexError):
            both.sequences(np.array([outside]))
    batches = logical_batches(both, ShuffledBatches(both, both.count, seed=0), first_step=0, steps=1, physical_batch=8)
    assert sum(chunk["tokens"].sum() for batch in batches for chunk in batch.chunks) == tokens.sum()


def test_canaries_that_do_not_fit_are_refused(tmp_path):
    for repeats in ((), (0, 1), (2, 2)):
        with pytest.raises(ConfigurationError, match=r"canary_repeats is \("):
            InsertedCanaries(1, repeats, 4, 60, seed=0)
    with pytest.raises(ConfigurationError, match="length is 1"):
        InsertedCanaries(1, (1,), 1, 60, seed=0)
    units = opened(write_store(tmp_path / "store", [[[9, 8]]]), tmp_path / "cache", 5)
    with pytest.raises(ValueError, match="units of length 5 and canaries of length 6"):
        with_canaries(units, CANARIES)
