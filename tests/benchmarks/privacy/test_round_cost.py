import jax
import numpy as np
import pytest

from benchmarks.privacy import round_cost
from benchmarks.privacy.round_cost import NOW, PLAIN, measure, parts_of, plain_way, plot, private_way, shares_of
from fedlm.fl_core.exact_sums import grid_step, is_exact


@pytest.mark.long
def test_both_ways_come_to_the_same_sum():
    params = {"w": np.zeros((4, 5), np.float32)}
    sums = []
    for make in (private_way, plain_way):
        way = make(params, 6)
        total = parts_of(params, 6, way)["sum"]()
        released = way.release(total)
        assert jax.tree_util.tree_map(np.shape, released) == jax.tree_util.tree_map(np.shape, params)
        assert (total.clients, total.dropped) == (6, 0)
        sums.append(total.delta)
    step = float(grid_step(np.float32(round_cost.CLIP_NORM), 20))
    exact = jax.tree_util.tree_map(lambda one: step * (one.high * 2.0**20 + one.low), sums[0], is_leaf=is_exact)
    for name in params:
        np.testing.assert_allclose(exact[name], sums[1][name], atol=6 * step)


def test_shares_are_of_rounds_with_the_same_training():
    times = {"round": 10.0, f"sum, {NOW}": 0.5, f"release, {NOW}": 0.5, f"sum, {PLAIN}": 0.5, f"release, {PLAIN}": 0.5}
    assert shares_of(times) == {NOW: 10.0, PLAIN: 10.0}
    assert shares_of(times | {f"release, {PLAIN}": 0.0})[PLAIN] == pytest.approx(100 * 0.5 / 9.5, abs=0.01)


@pytest.mark.long
def test_a_small_round_is_measured_and_drawn(monkeypatch):
    monkeypatch.setattr(round_cost, "VOCABULARY", 50)
    found = measure("cifg_tiny", 2, 4, 1)
    assert found["local_steps"] == 2
    assert found["percent_of_round"].keys() == {NOW, PLAIN}
    plot({"models": {"cifg_tiny": found}})
