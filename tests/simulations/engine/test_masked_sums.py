"""Sums of simulated clients that mask their integers are those of the integers."""

import numpy as np
import pytest

from fedlm.fedlm_client.distributed_noise.lattice import Lattice
from fedlm.fedlm_client.secure_aggregation.member import Member
from fedlm.fl_core.privacy.distributed_rounds import SumInTheClear
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.simulations.engine.masked_sums import MaskedCohorts


@pytest.mark.parametrize("bits", [16, 20])
def test_masked_sums_are_those_in_the_clear_and_no_vector_is(bits, monkeypatch):
    sent, mask = [], Member.mask
    monkeypatch.setattr(Member, "mask", lambda *asked: sent.append(mask(*asked)) or sent[-1])
    lattice, plan = Lattice(50, 1.0, 10.0, bits, "skellam", 2.0), RoundPlan(4, np.arange(5), 3, 0.1)
    vectors = np.random.default_rng(0).integers(-(1 << bits), 1 << bits, (5, lattice.dimension))
    masked = MaskedCohorts()
    # A second cohort has the certificates of the first, and masks of its own.
    sums = [masked(lattice, plan, 4), SumInTheClear(lattice, plan, 4), masked(lattice, plan, 4)]
    for one in sums:
        for vector in vectors:
            one.add(vector)
    for one in sums:
        np.testing.assert_array_equal(one.residues(), sums[1].residues())
    assert len(set(sent)) == 2 * 5


def test_a_round_that_is_given_up_is_not_masked():
    lattice, plan = Lattice(50, 1.0, 10.0, 20, "skellam", 2.0), RoundPlan(4, np.arange(3), 3, 0.1)
    assert isinstance(MaskedCohorts()(lattice, plan, 4), SumInTheClear)
