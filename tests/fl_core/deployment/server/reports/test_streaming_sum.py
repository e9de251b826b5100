"""What a report may add to the sum, whatever its numbers are."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.deployment.server.reports.streaming_sum import Report, StreamingSum, SumSettings
from fedlm.fl_core.rounds.aggregation import AggregationRules
from fedlm.fl_core.rounds.local_sgd import TrainingSums, global_norm
from fedlm.fl_core.updates.quantization import QuantizedTensor, UniformQuantization
from fedlm.fl_core.updates.rotation import rotated_size
from fedlm.fl_core.updates.update_bytes import pack_update

CLIP_NORM = 0.5
SHAPES = [(4096,), (64, 300), (50, 3), ()]
NOTHING, STEP = np.float32(0.0), np.float32(1.2345e12)


def sum_of(compressor, tensors):
    like = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES]
    total = StreamingSum(SumSettings(like, compressor, AggregationRules("uniform")), jax.random.key(0), CLIP_NORM)
    total.add(Report(0, pack_update(compressor, tensors, like), 1, TrainingSums(1.0, 1.0, 1.0)))
    return total.finish()


@pytest.mark.parametrize(
    ("bits", "rotation"),
    [
        *((2, True), (8, False)),
        *(pytest.param(*one, marks=pytest.mark.long) for one in ((2, False), (16, False))),
    ],
)
def test_numbers_that_cancel_but_for_their_rounding_are_clipped_as_they_are_added(bits, rotation):
    """The length that they are clipped by is computed apart from the sum, and must be that of the very same numbers."""
    compressor, code = UniformQuantization(bits, rotation), 2**bits - 1
    for place, _ in enumerate(SHAPES):
        tensors = []
        for other, shape in enumerate(SHAPES):
            step = STEP if other == place else NOTHING
            size = rotated_size(math.prod(shape)) if rotation else math.prod(shape)
            codes = np.full(size, code, np.uint16 if bits == 16 else np.uint8)
            tensors.append(QuantizedTensor(codes, np.float32(-(np.float32(code) * step)), step))
        aggregate = sum_of(compressor, tensors)
        assert float(global_norm(aggregate.delta)) <= CLIP_NORM * 1.0001, f"in tensor {place}"


def test_what_is_told_of_a_round_does_not_depend_on_the_order_of_reports():
    compressor, rng = UniformQuantization(8), np.random.default_rng(3)
    like = [jax.ShapeDtypeStruct((64,), jnp.float32)]
    reports = [
        Report(client, pack_update(compressor, [quantized(rng)], like), 3, TrainingSums(*rng.lognormal(0, 3, 3)))
        for client in range(40)
    ]
    rows = []
    for order in (reports, reports[::-1], [reports[place] for place in rng.permutation(40)]):
        total = StreamingSum(SumSettings(like, compressor, AggregationRules("uniform")), jax.random.key(0), CLIP_NORM)
        for report in order:
            total.add(report)
        rows.append(jax.tree_util.tree_map(float, total.finish()._replace(delta=(), norm_counts=())))
    assert rows[0].clients == 40
    assert rows[0] == rows[1] == rows[2]


def quantized(rng):
    codes = rng.integers(0, 256, 64).astype(np.uint8)
    return QuantizedTensor(codes, np.float32(-rng.lognormal()), np.float32(rng.lognormal() / 100))
