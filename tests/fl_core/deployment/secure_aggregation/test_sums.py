"""Sums of honest members: those of integers in the clear, whoever drops out when, or none at all."""

import itertools

import numpy as np
import pytest

from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fedlm_client.secure_aggregation import floors, member, shamir
from fedlm.fedlm_client.secure_aggregation.masks import add_mask
from fedlm.fl_core.deployment.secure_aggregation import mask_work, recovery
from fedlm.fl_core.deployment.secure_aggregation.errors import AbandonedError, RefusedAnswerError
from tests.clients.fedlm_client.secure_aggregation.test_masks import uniform
from tests.support import secure_cohorts as cohorts

STAYS, LAST = "end", ("roster", "dealt", "survivors", "signatures")


@pytest.fixture(autouse=True)
def _certificates_are_believed(monkeypatch):
    """Verifying n^2 signatures takes longer than all the rest; `test_malicious_servers.py` has those."""
    believed = {}

    def check(name, one, *others):
        return believed.setdefault(one, str(len(believed)))

    monkeypatch.setattr(floors, "check_advertisement", check)
    monkeypatch.setattr(member, "has_signed", lambda *_: True)


def run(cohort, dropouts):
    """Run an attempt in which members drop out, each before it answers what it is named for."""
    at = {step: [index for index, when in dropouts.items() if when == step] for step in LAST}
    gone = at["roster"]
    cohort.deal(gone)
    cohort.mask(at["dealt"])
    cohort.agree(at["survivors"])
    cohort.reveal(at["signatures"])
    return cohort


def feasible(cohort, dropouts):
    """Say, from the numbers alone, whether every secret that is needed has shares enough."""
    dealt = {one for one in range(len(cohort.members)) if dropouts.get(one) != "roster"}
    alive = {one for one in dealt if dropouts.get(one) != "dealt"}
    # A member that hears of too few neighbours refuses, and so drops out.
    near, threshold = cohort.roster.neighbours, cohort.parameters.threshold
    revealing = {one for one in alive if dropouts.get(one) not in ("survivors", "signatures")}
    return bool(dealt) and all(len(near(one) & revealing) >= threshold for one in dealt)


@pytest.mark.parametrize("count", [3, 4])
def test_a_sum_without_dropouts_is_the_plain_one(count):
    cohort = run(cohorts.Cohort(count), {})
    assert np.array_equal(cohort.finish(), cohort.plain())
    assert cohort.attempt.phase == "finished"


@pytest.mark.long
def test_every_subset_of_five_at_every_step_gives_the_plain_sum_or_none():
    sums = 0
    for when in itertools.product((STAYS, *LAST), repeat=5):
        cohort = cohorts.Cohort(5, cohorts.rules(5, length=3))
        dropouts = dict(enumerate(when))
        if feasible(cohort, dropouts):
            assert np.array_equal(run(cohort, dropouts).finish(), cohort.plain())
            sums += 1
        else:
            with pytest.raises((AbandonedError, UnsafeSumError)):
                run(cohort, dropouts).finish()
    assert sums == 1 + 4 * 5


@pytest.mark.parametrize("step", LAST)
def test_whoever_of_five_drops_out_at_a_step_the_sum_is_that_of_the_others(step):
    for one in range(5):
        cohort = run(cohorts.Cohort(5), {one: step})
        assert np.array_equal(cohort.finish(), cohort.plain())
        assert (one in cohort.attempt.survivors) == (step in ("survivors", "signatures"))


@pytest.mark.long
@pytest.mark.parametrize(("count", "repeats"), [(100, 10), (1000, 1)])
def test_random_dropouts_of_large_cohorts_leave_the_sum_of_the_others(count, repeats):
    drawn = np.random.default_rng(count)
    for _ in range(repeats):
        chosen = drawn.choice(count, count // 12, replace=False)
        dropouts = {int(one): LAST[drawn.integers(4)] for one in chosen}
        cohort = run(cohorts.Cohort(count, cohorts.rules(count, bits=24)), dropouts)
        assert np.array_equal(cohort.finish(), cohort.plain())


def test_partial_sums_merge_in_any_order_and_no_member_counts_twice():
    cohort = cohorts.Cohort(5).deal().mask()
    halves = [([4, 1], cohort.attempt.empty_sum()), ([0, 3, 2], cohort.attempt.empty_sum())]
    for members, partial in halves:
        for one in members:
            partial += cohort.unpacked(cohort.uploads[one])
    assert np.array_equal(halves[0][1] + halves[1][1], cohort.total)
    again = cohorts.Cohort(5).deal()
    again.attempt.merge(again.total, frozenset([4, 1]), halves[0][1])
    for members in ([1, 2], [9]):
        with pytest.raises(RefusedAnswerError, match="count already"):
            again.attempt.merge(again.total, frozenset(members), halves[1][1])


def test_masked_uploads_and_what_a_late_one_leaves_are_uniform(monkeypatch):
    # Each fails with probability 1e-6.
    parameters = cohorts.rules(5, bits=10, length=1 << 15, largest=50)
    cohort = cohorts.Cohort(5, parameters).deal()
    late = cohort.members[4].mask(cohort.attempt.dealt_for(4), cohort.integers[4])
    cohort.mask([4]).reveal()
    for upload in cohort.uploads.values():
        assert uniform(cohort.unpacked(upload), 10, 1e-6)
    # The server comes to know all that is between the late one and others; its own mask stays.
    assert 4 not in cohort.attempt._shares()[0]
    known = {one: b"known" for one in range(4)}
    secrets = recovery.Unmasking(known, {4: cohort.members[4]._masking.private_bytes_raw()}, frozenset())
    residue = -cohort.unpacked(late)
    known_alone = lambda vector, key, *how: key == b"known" or add_mask(vector, key, *how)  # noqa: E731
    monkeypatch.setattr(mask_work, "add_mask", known_alone)
    recovery.remove_masks(residue, cohort.roster, secrets)
    assert not np.array_equal(-residue & 1023, cohort.integers[4] & 1023)
    assert uniform(-residue & 1023, 10, 1e-6)
    add_mask(residue, cohort.members[4]._own_mask, 1)
    assert np.array_equal(-residue & 1023, cohort.integers[4] & 1023)


def test_a_corrupt_share_is_named_and_the_sum_is_right_without_it():
    cohort = cohorts.Cohort(6, cohorts.rules(6, graph=(5, 3))).deal().mask([5]).agree()
    honest = cohort.members[1].reveal(cohort.signatures(1))
    wrong = {one: shamir.split(bytes(32), 1, [one + 1])[one + 1] for one in honest.own_masks}
    cohort.attempt.reveal(1, member.Revealed(wrong, {5: b"\0" * 33}))
    cohort.reveal([1])
    assert np.array_equal(cohort.finish(), cohort.plain())
    assert cohort.attempt.culprits == {1}


def test_signs_and_sums_are_those_of_the_golden_values(monkeypatch):
    masks_of = {
        **{(one,): words for one, words in enumerate(([7, 9], [100, 200], [50, 60], [5, 250]))},
        (0, 1): [11, 22],
        (0, 2): [33, 44],
        (0, 3): [55, 66],
        (1, 2): [77, 88],
        (1, 3): [99, 110],
        (2, 3): [121, 132],
    }
    cohort = cohorts.Cohort(4, cohorts.rules(4, bits=8, length=2, largest=0))
    own = {cohort.members[one]._own_mask: (one,) for one in range(4)}

    def add(vector, key, sign, first=0):
        vector += np.array(masks_of[own.get(key, key)], vector.dtype) * vector.dtype.type(sign % 65536)

    for module, secrets in ((member, member), (mask_work, recovery)):
        monkeypatch.setattr(module, "add_mask", add)
        monkeypatch.setattr(secrets, "mask_key", lambda key, other, roster, pair: (min(pair), max(pair)))
    cohort.integers = np.array([[10, 250], [20, 3], [1, 1], [200, 100]])
    cohort.deal()
    y = [cohort.members[one].mask(cohort.attempt.dealt_for(one), cohort.integers[one]) for one in range(4)]
    assert [[*one] for one in y] == [[116, 135], [29, 123], [62, 61], [186, 42]]
    cohort.mask([2])
    # Threshold 2 of 3 neighbours, of which two others are left.
    assert cohort.reveal().finish().tolist() == [230, 353 % 256]
