"""Prints what TensorFlow Privacy's trees make of their draws of noise, and what it says of their privacy.

{"tree": rows, "tree_honaker": rows, "residual": rows}: row t of a matrix has the weight of every draw in the noise of
the sum of the first t + 1 rounds (of round t, for the residual). With CASES, [[rounds, participations, steps between],
..], also their zCDP at noise multiplier 1.

Usage: tree_noise.py ROUNDS [CASES]
"""

import json
import sys

import numpy as np
import tensorflow as tf
from tensorflow_privacy.privacy.analysis import tree_aggregation_accountant
from tensorflow_privacy.privacy.dp_query import tree_aggregation, tree_aggregation_query

WIDTH = 128


class UnitVectors(tree_aggregation.ValueGenerator):
    """The n-th draw is the n-th unit vector."""

    def initialize(self) -> tf.Tensor:
        """Begin to count."""
        return tf.constant(0)

    def next(self, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Give the next unit vector."""
        return tf.one_hot(state, WIDTH), state + 1


def main(rounds: str, cases: str = "[]") -> None:
    """Step both trees, and the query of residuals, round by round."""
    result = {
        name: cumulative(kind(UnitVectors()), int(rounds))
        for name, kind in {
            "tree": tree_aggregation.TreeAggregator,
            "tree_honaker": tree_aggregation.EfficientTreeAggregator,
        }.items()
    }
    result["residual"] = residuals(int(rounds))
    result["zcdp"] = [tree_aggregation_accountant.compute_zcdp_single_tree(1.0, *case) for case in json.loads(cases)]
    json.dump(result, sys.stdout)


def cumulative(aggregator: tree_aggregation.TreeAggregator, rounds: int) -> list[list[float]]:
    """Return the noise of all prefix sums."""
    state, rows = aggregator.init_state(), []
    for _ in range(rounds):
        noise, state = aggregator.get_cumsum_and_update(state)
        rows.append(np.asarray(noise).tolist())
    return rows


def residuals(rounds: int) -> list[list[float]]:
    """Return the noise of each round's sum."""
    query = tree_aggregation_query.TreeResidualSumQuery(
        clip_fn=lambda record, clip: (record, None),
        clip_value=1.0,
        noise_generator=UnitVectors(),
        record_specs=tf.TensorSpec([WIDTH]),
        use_efficient=False,
    )
    state, rows = query.initial_global_state(), []
    for _ in range(rounds):
        noise, state, _ = query.get_noised_result(tf.zeros(WIDTH), state)
        rows.append(np.asarray(noise).tolist())
    return rows


main(*sys.argv[1:])
