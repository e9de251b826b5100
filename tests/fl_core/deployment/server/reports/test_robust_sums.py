"""Robust aggregation: equal to SciPy's, and a minority cannot move it beyond what honest clients sent."""

import contextlib
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.deployment.server.reports import upload_buffers
from fedlm.fl_core.deployment.server.reports.robust_sums import RobustRule, RobustSum, robust_mean
from fedlm.fl_core.deployment.server.reports.round_sums import RoundSums
from fedlm.fl_core.deployment.server.reports.streaming_sum import Report, StreamingSum, SumSettings
from fedlm.fl_core.deployment.server.reports.upload_buffers import DiskRoom
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.aggregation import AggregationRules, mean_delta
from fedlm.fl_core.rounds.local_sgd import TrainingSums
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.updates.compressors import compress_update
from fedlm.fl_core.updates.registry import make_compressor
from fedlm.fl_core.updates.update_bytes import pack_update

SHAPES = {"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float32)}
MEDIAN, TRIMMED = RobustRule("median"), RobustRule("trimmed_mean", 0.25)
KEY = jax.random.key(3)


@given(arrays.arrays(np.float32, (4, 7), elements=st.floats(-1e6, 1e6, width=32)), st.integers(1, 4))
def test_they_are_what_scipy_computes(updates, clients):
    updates = updates[:clients]
    median = np.median(updates.astype(np.float64), axis=0)
    np.testing.assert_allclose(robust_mean(updates, MEDIAN), median, rtol=1e-6, atol=1e-6)
    if clients == 4:
        expected = scipy.stats.trim_mean(updates.astype(np.float64), 0.25)
        np.testing.assert_allclose(robust_mean(updates, TRIMMED), expected, rtol=1e-5, atol=1e-1)


@pytest.mark.parametrize(("rule", "hostile"), [(MEDIAN, 4), (TRIMMED, 2)])
@given(
    arrays.arrays(np.float32, (9, 5), elements=st.floats(-1, 1, width=32)),
    st.sampled_from([-1e18, -1.5, 0.0, 1.5, 1e18]),
)
def test_a_minority_cannot_leave_the_range_of_the_honest(rule, hostile, updates, value):
    updates[:hostile] = value
    honest = updates[hostile:]
    found = robust_mean(updates, rule)
    assert (found >= honest.min(axis=0) - 1e-6).all()
    assert (found <= honest.max(axis=0) + 1e-6).all()


def report(compressor, client, scale=1.0):
    rng = np.random.default_rng(client)
    delta = {name: scale * rng.normal(size=shape.shape).astype(np.float32) for name, shape in SHAPES.items()}
    compressed = compress_update(compressor, jax.random.fold_in(KEY, client), delta)
    content = pack_update(compressor, compressed, SHAPES)
    return Report(client, content, 3, TrainingSums(1.0, 2.0, 3.0)), delta


def new_sum(folder, rule, compressor, clip_norm=None, most=8):
    settings = SumSettings(SHAPES, compressor, AggregationRules("uniform"))
    if rule is None:
        return StreamingSum(settings, KEY, clip_norm)
    return RobustSum(settings, KEY, rule, folder=folder, most=most, clip_norm=clip_norm)


@pytest.mark.long
def test_only_the_mean_differs_from_a_plain_sum(tmp_path):
    compressor = make_compressor("uniform8")
    robust, plain = (new_sum(tmp_path, rule, compressor, clip_norm=4.0) for rule in (MEDIAN, None))
    for client in range(5):
        for total in (robust, plain):
            total.add(report(compressor, client, scale=1.0 + client)[0])
    robust.add_unusable()
    plain.add_unusable()
    found, expected = robust.finish(), plain.finish()
    for name in set(expected._fields) - {"delta"}:
        np.testing.assert_allclose(
            jax.tree_util.tree_leaves(getattr(found, name)),
            jax.tree_util.tree_leaves(getattr(expected, name)),
            rtol=1e-6,
        )
    assert not list(tmp_path.iterdir())


def test_the_median_of_what_was_sent(tmp_path):
    compressor = make_compressor("float32")
    total = new_sum(tmp_path, MEDIAN, compressor)
    total.compile()
    total, deltas = new_sum(tmp_path, MEDIAN, compressor), []
    for client in range(7):
        sent, delta = report(compressor, client, scale=1e15 if client < 3 else 1.0)
        total.add(sent)
        deltas.append(delta)
    mean = mean_delta(total.finish())
    for name in SHAPES:
        np.testing.assert_allclose(mean[name], np.median([one[name] for one in deltas], axis=0), rtol=1e-5)


PRIVATE = {"privacy": "tree", "noise_multiplier": 1.0, "update_clip_norm": 1.0, "delta": 1e-6}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"aggregation": "median", **PRIVATE}, "guarantee is for sums"),
        ({"aggregation": "median", "weighting": "examples"}, "count the same"),
        ({"aggregation": "median", "trimmed_part": 0.2}, "does nothing"),
        ({"aggregation": "trimmed_mean", "trimmed_part": 0.5}, "positive and below 0.5"),
        ({"aggregation": "krum"}, "must be one of"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, why):
    with pytest.raises(ConfigurationError, match=why):
        compose(Deployment, model="cifg_tiny", **settings)


def test_all_clients_count_the_same():
    assert compose(Deployment, model="cifg_tiny").aggregation_rules().weighting == "examples"
    assert compose(Deployment, model="cifg_tiny", aggregation="median").aggregation_rules().weighting == "uniform"


@pytest.mark.parametrize(("left", "refused"), [(10_000, False), (-1, True)])
def test_a_median_leaves_the_database_and_the_next_checkpoint_their_room(tmp_path, monkeypatch, left, refused):
    settings = SumSettings(SHAPES, make_compressor("uniform8"), AggregationRules("uniform"))
    with pytest.raises(ConfigurationError, match="no room for"):
        new_sum(tmp_path, MEDIAN, make_compressor("uniform8"), most=1 << 52)
    sums = RoundSums(settings, MEDIAN, 3, DiskRoom(tmp_path, 50_000))
    monkeypatch.setattr(upload_buffers.shutil, "disk_usage", lambda path: SimpleNamespace(free=50_000 + left))
    expected = pytest.raises(ConfigurationError, match="next checkpoint; make room")
    with expected if refused else contextlib.nullcontext():
        sums.new(RoundPlan(0, np.zeros(0, np.int64), 5, 0.1), None)
