import jax
import numpy as np
import pytest

from benchmarks.privacy.noise_cost import CONTESTANTS, plan_of, state_bytes, time_block
from fedlm.fl_core.privacy.mechanisms.registry import make_noise
from fedlm.fl_core.privacy.noise_source import fresh_secret, noise_from

LIKE = {"x": np.zeros((4, 5), np.float32)}


@pytest.mark.parametrize("name", CONTESTANTS)
def test_state_is_never_larger_than_stated(name):
    mechanism, draw = make_noise(plan_of(name)), noise_from(fresh_secret(), LIKE)
    state, largest = mechanism.init(LIKE), 0
    for _ in range(70):
        _, state = mechanism.next(state, draw)
        arrays = [leaf for leaf in jax.tree_util.tree_leaves(state) if getattr(leaf, "shape", ()) == (4, 5)]
        largest = max(largest, sum(leaf.nbytes for leaf in arrays))
    assert largest <= state_bytes(name, LIKE)
    assert time_block(name, LIKE, draw, 2) > 0


def test_the_dense_mechanism_is_timed_in_the_middle_of_its_rounds():
    number_of_terms = []

    def draw(terms):
        number_of_terms.append(len(terms))
        return LIKE

    assert time_block("dense", LIKE, draw, 2) > 0
    assert number_of_terms == [151, 152]
