import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.rounds.aggregation import (
    AggregationRules,
    WeightedMean,
    add_aggregates,
    contribution,
    empty_aggregate,
    mean_delta,
    norm_quantiles,
)
from fedlm.fl_core.rounds.local_sgd import TrainingSums, global_norm

LOSSES = TrainingSums(jnp.asarray(20.0), jnp.asarray(4.0), jnp.asarray(3.0))


def delta(*values):
    return {"w": jnp.array(values, jnp.float32)}


def test_weighting_by_examples_and_uniform():
    updates = [(delta(1.0, 0.0), 3.0), (delta(0.0, 4.0), 1.0)]
    for weighting, expected in (("examples", [0.75, 1.0]), ("uniform", [0.5, 2.0])):
        rules = AggregationRules(weighting=weighting)
        total = empty_aggregate(delta(0.0, 0.0))
        for update, examples in updates:
            total = add_aggregates(total, contribution(update, jnp.asarray(examples), LOSSES, rules))
        np.testing.assert_allclose(mean_delta(total)["w"], expected)
        assert float(total.clients) == 2
        assert float(total.examples) == 4
        assert float(total.training.loss) == 40


@pytest.mark.parametrize(
    ("bad", "loss"), [(jnp.nan, 20.0), (jnp.inf, 20.0), (-jnp.inf, 20.0), (3e38, 20.0), (1.0, jnp.nan)]
)
def test_an_update_that_is_not_finite_counts_for_nothing_but_is_counted(bad, loss):
    losses = LOSSES._replace(loss=jnp.asarray(loss))
    update = contribution(delta(bad, bad), jnp.asarray(5.0), losses, AggregationRules(), clip_norm=1.0)
    assert float(update.dropped) == float(update.clients) == 1
    for leaf in jax.tree_util.tree_leaves(update._replace(dropped=jnp.zeros(()), clients=jnp.zeros(()))):
        np.testing.assert_array_equal(leaf, 0.0)


@pytest.mark.parametrize("length", [0.0, 0.5, 1.0, 7.0, 1e15])
def test_clipping_bounds_the_norm_and_keeps_the_direction(length):
    direction = np.array([0.6, -0.8], np.float32)
    rules = AggregationRules("uniform")
    update = contribution(delta(*(direction * length)), jnp.asarray(9.0), LOSSES, rules, clip_norm=1.0)
    norm = float(global_norm(update.delta))
    assert norm <= 1.0 + 1e-6
    np.testing.assert_allclose(update.delta["w"], direction * min(length, 1.0), rtol=1e-6)
    assert bool(update.clipped) == (length > 1.0)
    np.testing.assert_allclose(update.update_norm, length, rtol=1e-6)


def test_the_mean_of_no_update_is_zero():
    np.testing.assert_array_equal(mean_delta(empty_aggregate(delta(1.0, 2.0)))["w"], [0.0, 0.0])


def test_quantiles_of_norms_are_within_a_quarter_of_an_octave():
    norms = np.random.default_rng(0).lognormal(0.0, 2.0, 40)
    rules, total = AggregationRules(weighting="uniform"), empty_aggregate({"a": jnp.zeros(2)})
    for norm in [*norms, np.nan, np.inf]:
        update = {"a": jnp.array([norm, 0.0], jnp.float32)}
        total = add_aggregates(total, contribution(update, jnp.ones(()), TrainingSums.zero(), rules))
    assert float(total.norm_counts.sum()) == len(norms)
    found = norm_quantiles(total.norm_counts, [0.1, 0.5, 0.9])
    expected = np.quantile(norms, [0.1, 0.5, 0.9], method="inverted_cdf")
    np.testing.assert_allclose(np.log2(found), np.log2(expected), atol=0.126)
    assert norm_quantiles(empty_aggregate({}).norm_counts, [0.5]) == [None]
    # Norms out of range count in the outermost bins.
    for norm in (0.0, 1e-20, 1e15):
        update = {"a": jnp.array([norm], jnp.float32)}
        counts = contribution(update, jnp.ones(()), TrainingSums.zero(), AggregationRules()).norm_counts
        assert float(counts[0 if norm < 1 else -1]) == 1.0


def test_without_privacy_a_server_optimizer_keeps_what_it_remembers():
    one = contribution(delta(1.0, 2.0), jnp.asarray(1.0), LOSSES, AggregationRules())
    assert not WeightedMean().next(None, one, 0).restart
