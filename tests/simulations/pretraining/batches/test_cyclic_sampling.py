"""Statistical tests bound how often they fail by chance; seeds are fixed, so that they either always fail or never."""

import numpy as np
import pytest
from scipy import stats

from fedlm.simulations.pretraining.batches.cyclic_sampling import CyclicPoissonBatches
from fedlm.simulations.pretraining.batches.sampling import PoissonBatches
from tests.simulations.pretraining.batches.test_sampling import FALSE_ALARM, SECRET, Numbered, chi_square, drawn


def batches_of(count=40, cycle=4, probability=0.5, **options):
    return CyclicPoissonBatches(Numbered(count), max(1, count // cycle // 2), SECRET, probability, cycle, **options)


@pytest.mark.parametrize("equal", [False, True])
def test_a_unit_is_in_steps_of_its_part_alone_and_there_as_often_as_accounted(equal):
    found = drawn(batches_of(equal_parts=equal)).reshape(-1, 4, 40)
    times = found.sum(0)
    assert (np.count_nonzero(times, axis=0) == 1).all()
    for unit, part in enumerate(times.argmax(0)):
        assert stats.binomtest(int(times[part, unit]), len(found), 0.5).pvalue > FALSE_ALARM
    sizes = np.bincount(times.argmax(0), minlength=4)
    assert (sizes == 10).all() == equal


@pytest.mark.parametrize("equal", [False, True])
def test_units_of_a_part_are_drawn_independently_of_each_other_and_of_other_turns(equal):
    found = drawn(batches_of(equal_parts=equal))[::4]
    members = found[:, found.any(0)].astype(float)
    correlations = np.corrcoef(np.concatenate([members[1:], members[:-1]], axis=1), rowvar=False)
    off = np.abs(correlations[~np.eye(len(correlations), dtype=bool)])
    assert off.max() * np.sqrt(len(members)) < stats.norm.isf(FALSE_ALARM / 2 / off.size)


def test_independent_parts_are_drawn_for_each_unit_alone():
    """Over many seeds the parts of two units are independent, so that the sizes of parts are binomial."""
    sizes = []
    for seed in range(2000):
        batches = CyclicPoissonBatches(Numbered(12), 2, SECRET + seed, 1.0, 3)
        sizes.append(len(batches.draw(0)))
    assert chi_square(np.array(sizes), stats.binom(12, 1 / 3)) > FALSE_ALARM


def test_equal_parts_have_as_many_places_where_units_do_not_fill_them():
    batches = batches_of(count=10, cycle=4, probability=1.0, equal_parts=True)
    sizes = [len(batches.draw(step)) for step in range(4)]
    assert sum(sizes) == 10
    assert max(sizes) <= 3
    assert np.sort(np.concatenate([batches.draw(step) for step in range(4)])).tolist() == list(range(10))


def test_large_batches_are_cut_as_accounted():
    whole, cut = (drawn(batches_of(equal_parts=True, truncated_batch_size=most)).sum(1) for most in (None, 6))
    np.testing.assert_array_equal(cut, np.minimum(whole, 6))
    assert (whole > 6).sum() > 100


def test_with_one_part_batches_are_poisson_batches():
    cyclic, plain = batches_of(cycle=1, probability=0.5), PoissonBatches(Numbered(40), 20, SECRET)
    for step in range(50):
        np.testing.assert_array_equal(cyclic.draw(step), plain.draw(step))
