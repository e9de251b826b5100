"""From an update to the integers of a secure sum, and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fedlm_client.secure_aggregation.device import _integers
from fedlm.fedlm_client.secure_aggregation.sum_vector import SAFETY, SumLayout, Told
from fedlm.fedlm_client.training import Update
from fedlm.fl_core import exact_sums
from fedlm.fl_core.updates.float32 import Float32Upload
from fedlm.fl_core.updates.update_bytes import plan_digest

BOUNDS = Told(1.0, 64.0, 480.0, 1e5, 4800.0, 1e4)
COUNT = 1000
STEP = float(exact_sums.grid_step(jnp.float32(1.0), COUNT))
LAYOUT = SumLayout(1.0, STEP, BOUNDS)
TOLD = Told(0.0, 0.0, 12.0, 34.5, 120.0, 7.0)
# Ten zeros, as an upload of the first scheme has them.
SHAPES = [(2, 3), (4,)]
ZEROS = b"FLU2" + plan_digest(Float32Upload().scheme, SHAPES)[:4] + bytes(44)
FLOATS = messages.TrainingProgram(
    upload=messages.UploadPlan(scheme=1, version=1, tensors=[messages.TensorShape(dimensions=one) for one in SHAPES])
)


def updates(norm):
    drawn = np.random.default_rng(0).normal(size=(5, COUNT))
    return (norm * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def total(vectors):
    return (np.sum(vectors, 0) & ((1 << 32) - 1)).astype(np.uint32)


def test_integers_are_those_of_private_sums_and_so_is_their_sum():
    vectors = updates(0.9)
    integers = [LAYOUT.integers(one, TOLD) for one in vectors]
    grids = [exact_sums.on_grid(jnp.asarray(one), jnp.float32(STEP), "toward_zero") for one in vectors]
    for found, grid in zip(integers, grids, strict=True):
        with jax.enable_x64(True):
            assert np.array_equal(found[:COUNT], exact_sums.as_float64(grid))
    values, told = LAYOUT.read(total(integers), 32)
    assert np.array_equal(values, np.sum([one[:COUNT] for one in integers], 0) * STEP)
    assert (told.clipped, told.examples, told.tokens) == (0.0, 60.0, 600.0)
    np.testing.assert_allclose(told[1:], np.multiply(5, TOLD._replace(update_norm=0.9))[1:], rtol=2e-2)


def test_an_update_is_clipped_and_what_else_is_told_is_bounded():
    (vector, *_) = updates(30.0)
    values, told = LAYOUT.read(total([LAYOUT.integers(vector, TOLD._replace(loss=1e9, examples=-3.0))]), 32)
    assert SAFETY * 0.999 < np.linalg.norm(values) <= 1.0
    assert told.clipped == 1.0
    assert told.loss == pytest.approx(BOUNDS.loss, rel=1e-4)
    assert told.examples == 0.0
    assert np.abs(LAYOUT.integers(vector, TOLD)).max() <= LAYOUT.largest


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 3e38])
def test_numbers_that_are_not_finite_take_no_part(wrong):
    vector = updates(1.0)[0]
    vector[3] = wrong
    assert (LAYOUT.integers(vector, TOLD) is None) == (not np.isfinite(wrong))
    assert LAYOUT.integers(updates(1.0)[0], TOLD._replace(loss=np.inf)) is None


@pytest.mark.parametrize(
    "fields", [{"step": 0.0}, {"step": float("nan")}, {"clip_norm": -1.0}, {"bounds": [1.0]}, {"bounds": [0.0] * 6}]
)
def test_nonsense_of_a_server_is_refused(fields):
    sane = {"clip_norm": 1.0, "step": STEP, "bounds": BOUNDS}
    asked = messages.RoundConfiguration(secure_sum=messages.SecureSum(**(sane | fields)), program=FLOATS)
    update = Update(ZEROS, 3, 1.0, 2.0, 3.0)
    with pytest.raises(UnsafeSumError, match="nonsense of its sum"):
        _integers(asked, update)


def test_numbers_that_are_not_finite_are_zeros_in_an_exact_sum():
    asked = messages.RoundConfiguration(secure_sum={"clip_norm": 1.0, "step": STEP, "bounds": BOUNDS}, program=FLOATS)
    assert _integers(asked, Update(ZEROS, 3, float("nan"), 2.0, 3.0))[0].tolist() == [0] * 16


@pytest.mark.parametrize(
    "wrong", [{"scheme": 2}, {"version": 2}, {"tensors": [messages.TensorShape(dimensions=[3])]}, ZEROS[4:], bytes(52)]
)
def test_an_update_of_other_numbers_than_all_members_are_told_is_in_no_sum(wrong):
    asked = messages.RoundConfiguration(secure_sum={"clip_norm": 1.0, "step": STEP, "bounds": BOUNDS}, program=FLOATS)
    update = Update(ZEROS, 3, 1.0, 2.0, 3.0)
    assert _integers(asked, update)[0][:10].tolist() == [0] * 10
    if isinstance(wrong, dict):
        asked.program.upload.MergeFrom(messages.UploadPlan(**wrong))
    else:
        update = update._replace(upload=wrong)
    with pytest.raises(UnsafeSumError, match="updates of float32, of the shapes"):
        _integers(asked, update)
