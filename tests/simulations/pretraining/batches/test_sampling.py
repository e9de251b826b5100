"""Statistical tests bound how often they fail by chance; seeds are fixed, so that they either always fail or never."""

from dataclasses import dataclass

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.simulations.pretraining.batches.cyclic_sampling import CyclicPoissonBatches
from fedlm.simulations.pretraining.batches.min_separation import MinSeparationBatches
from fedlm.simulations.pretraining.batches.sampling import PoissonBatches, ShuffledBatches, TruncatedPoissonBatches
from fedlm.simulations.pretraining.private_steps import private_batches

STEPS = 4000
SECRET = int.from_bytes(bytes(range(32)))
FALSE_ALARM = 1e-6
"""With which probability each of the statistical tests would fail for a seed drawn at random."""


@dataclass(frozen=True)
class Numbered:
    count: int
    unit: str = "one example"


def drawn(batches, steps=STEPS):
    """Return bool [steps, units]: who is in which batch."""
    found = np.zeros((steps, batches.units.count), bool)
    for step in range(steps):
        found[step, batches.draw(step)] = True
    return found


KINDS = {
    "poisson": lambda units, size, seed: PoissonBatches(units, size, seed),
    "truncated": lambda units, size, seed: TruncatedPoissonBatches(units, size, seed, size + 1),
    "shuffled": lambda units, size, seed: ShuffledBatches(units, size, seed),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_batch_is_a_function_of_seed_and_step(kind):
    units = Numbered(50)
    one, again = kind(units, 10, SECRET), kind(units, 10, SECRET)
    batches = [one.draw(step).tolist() for step in range(20)]
    assert batches[::-1] == [again.draw(step).tolist() for step in reversed(range(20))]
    assert len(set(map(tuple, batches))) == 20
    for batch in batches:
        assert len(batch) == len(set(batch))
        assert all(0 <= unit < 50 for unit in batch)
    for other in (SECRET + 1, SECRET ^ 1 << 255):
        assert batches != [kind(units, 10, other).draw(step).tolist() for step in range(20)]
    assert one.draw(0).dtype == np.int64


def test_batches_have_binomial_sizes_and_truncated_ones_are_never_larger():
    whole, cut = PoissonBatches(Numbered(40), 8, SECRET), TruncatedPoissonBatches(Numbered(40), 8, SECRET, 10)
    sizes, cut_sizes = drawn(whole).sum(1), drawn(cut).sum(1)
    assert chi_square(sizes, stats.binom(40, 0.2)) > FALSE_ALARM
    np.testing.assert_array_equal(cut_sizes, np.minimum(sizes, 10))
    assert (sizes > 10).sum() > 100
    # It is the sampling that is accounted.
    event = dp_accounting.TruncatedSubsampledGaussianDpEvent(
        cut.units.count, cut.probability, cut.truncated_batch_size, 1.0
    )
    assert (event.dataset_size, event.sampling_probability, event.truncated_batch_size) == (40, 0.2, 10)


@pytest.mark.parametrize("most", [40, 9])
def test_units_are_equally_often_in_a_batch(most):
    """Given the sizes of batches, each unit is in one with probability size / N, independently of other steps."""
    found = drawn(TruncatedPoissonBatches(Numbered(40), 8, SECRET, most))
    probability = found.sum(1) / 40
    deviation = (found.sum(0) - probability.sum()) / np.sqrt((probability * (1 - probability)).sum())
    assert np.abs(deviation).max() < stats.norm.isf(FALSE_ALARM / 40 / 2)


def test_units_are_independent_of_each_other_and_of_other_steps():
    """The correlations of 780 pairs of units, and of each unit with itself a step later."""
    found = drawn(PoissonBatches(Numbered(40), 8, SECRET)) - 0.2
    pairs = (found.T @ found / (0.16 * np.sqrt(STEPS)))[np.triu_indices(40, 1)]
    later = (found[1:] * found[:-1]).sum(0) / (0.16 * np.sqrt(STEPS - 1))
    assert np.abs([*pairs, *later]).max() < stats.norm.isf(FALSE_ALARM / 820 / 2)
    assert 0.9 < pairs.std() < 1.1  # a fixed batch size would correlate units by -1 / (N - 1): no zero mean
    assert abs(pairs.mean()) * np.sqrt(780) < stats.norm.isf(FALSE_ALARM / 2)


def test_batches_of_few_units_have_the_right_probabilities():
    """All 8 subsets of 3 units, Poisson and truncated to 1: of a larger sample a random unit stays."""
    whole, cut = PoissonBatches(Numbered(3), 1, SECRET), TruncatedPoissonBatches(Numbered(3), 1, SECRET, 1)
    powers = 1 << np.arange(3)
    q = 1 / 3
    size = np.array([bin(subset).count("1") for subset in range(8)])
    assert subset_test(drawn(whole) @ powers, q**size * (1 - q) ** (3 - size)) > FALSE_ALARM
    none = (1 - q) ** 3
    expected = np.where(size == 0, none, np.where(size == 1, (1 - none) / 3, 0))
    assert subset_test(drawn(cut) @ powers, expected) > FALSE_ALARM


@pytest.mark.long
@pytest.mark.parametrize("kind", ["poisson", "truncated"])
def test_a_private_batch_is_in_any_order_as_likely(kind):
    """All 24 orders of 4 units, or of 3 of them."""
    batches = KINDS[kind](Numbered(4), 4 if kind == "poisson" else 2, SECRET)
    orders = [tuple(batches.draw(step).tolist()) for step in range(8 * STEPS)]
    orders = [order for order in orders if len(order) == (4 if kind == "poisson" else 3)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_an_epoch_has_every_unit_once():
    batches = ShuffledBatches(Numbered(23), 5, SECRET)
    assert batches.steps_per_epoch == 4
    epochs = [np.concatenate([batches.draw(4 * epoch + step) for step in range(4)]) for epoch in range(300)]
    assert all(len(set(epoch.tolist())) == 20 for epoch in epochs)
    often = np.bincount(np.concatenate(epochs), minlength=23)
    deviation = (often - 300 * 20 / 23) / np.sqrt(300 * 20 / 23 * 3 / 23)
    assert np.abs(deviation).max() < stats.norm.isf(FALSE_ALARM / 23 / 2)


def test_what_does_not_fit_is_refused_and_seeds_are_not_shown():
    with pytest.raises(ConfigurationError, match=r"batch_size is 6, but must lie between 1 and .*, 5 \(one example"):
        PoissonBatches(Numbered(5), 6, 0)
    with pytest.raises(ConfigurationError, match="truncated_batch_size is 2, but must not be below"):
        TruncatedPoissonBatches(Numbered(5), 3, 0, 2)
    made = {name: kind(Numbered(5), 3, SECRET) for name, kind in KINDS.items()}
    assert not any(str(SECRET) in repr(batches) for batches in made.values())


def chi_square(values, distribution):
    """The p-value of a chi-square test; values that are expected fewer than 10 times are joined at both ends."""
    cells = np.arange(values.min(), values.max() + 1)
    common = cells[distribution.pmf(cells) * len(values) >= 10]
    clipped = np.clip(values, common[0], common[-1])
    expected = distribution.pmf(common)
    expected[0], expected[-1] = distribution.cdf(common[0]), distribution.sf(common[-1] - 1)
    return stats.chisquare(np.bincount(clipped - common[0], minlength=len(common)), expected * len(values)).pvalue


def subset_test(subsets, probabilities):
    counts = np.bincount(subsets, minlength=8)
    assert (counts[probabilities == 0] == 0).all()
    possible = probabilities > 0
    return stats.chisquare(counts[possible], probabilities[possible] * len(subsets)).pvalue


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


def test_bins_hold_every_unit_once_an_epoch_and_take_turns():
    plan = central_plan(40, 10, 12, 1.0, in_bins=True)
    batches = private_batches(plan, Numbered(40), 10, SECRET)
    steps = [set(batches.draw(step).tolist()) for step in range(12)]
    assert steps[:4] == steps[4:8] == steps[8:]
    assert sorted(unit for step in steps[:4] for unit in step) == list(range(40))
    again = private_batches(plan, Numbered(40), 10, SECRET)
    assert set(again.draw(5).tolist()) == steps[1] != set(private_batches(plan, Numbered(40), 10, 1).draw(1).tolist())


def test_independent_parts_are_drawn_for_each_unit_alone():
    """Over many seeds the parts of two units are independent, so that the sizes of parts are binomial."""
    sizes = []
    for seed in range(1000):
        batches = CyclicPoissonBatches(Numbered(12), 2, SECRET + seed, 1.0, 3)
        sizes.append(len(batches.draw(0)))
    assert chi_square(np.array(sizes), stats.binom(12, 1 / 3)) > FALSE_ALARM


def test_equal_parts_have_as_many_places_where_units_do_not_fill_them():
    batches = batches_of(count=10, cycle=4, probability=1.0, equal_parts=True)
    sizes = [len(batches.draw(step)) for step in range(4)]
    assert sum(sizes) == 10
    assert max(sizes) <= 3
    assert np.sort(np.concatenate([batches.draw(step) for step in range(4)])).tolist() == list(range(10))


def test_with_one_part_batches_are_poisson_batches_and_large_ones_are_cut_as_accounted():
    cyclic, plain = batches_of(cycle=1, probability=0.5), PoissonBatches(Numbered(40), 20, SECRET)
    for step in range(50):
        np.testing.assert_array_equal(cyclic.draw(step), plain.draw(step))
    whole, cut = (drawn(batches_of(equal_parts=True, truncated_batch_size=most)).sum(1) for most in (None, 6))
    np.testing.assert_array_equal(cut, np.minimum(whole, 6))
    assert (whole > 6).sum() > 100


def test_min_separation_has_the_patterns_that_are_accounted():
    """All 8 patterns of a unit in 3 steps, no two of its turns adjacent, over 4000 units."""
    p = 0.4
    batches = MinSeparationBatches(Numbered(4000), 10, SECRET, p, 2)
    counts = np.bincount(drawn(batches, 3).T @ (1, 2, 4), minlength=8)
    free = 1 / (1 + p)
    of_free = {0: (1 - p) ** 3, 1: p * (1 - p), 2: p * (1 - p), 4: (1 - p) ** 2 * p, 5: p * p}
    of_taken = {0: (1 - p) ** 2, 2: p, 4: (1 - p) * p}
    expected = [free * (of_free.get(one, 0) + p * of_taken.get(one, 0)) for one in range(8)]
    assert counts[3] == counts[6] == counts[7] == 0
    possible = [0, 1, 2, 4, 5]
    assert stats.chisquare(counts[possible], 4000 * np.array(expected)[possible]).pvalue > FALSE_ALARM
    later = batches.draw(100)
    batches.draw(0)
    assert batches.draw(100).tolist() == later.tolist()
