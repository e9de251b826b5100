"""The pictures that are of accounting alone are the accountant's numbers."""

import numpy as np
import pytest

from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.promise.guarantee import account, calibrate, privacy_profile
from fedlm.simulations.laws.figures.choices import BASELINES, fixed_batch_size
from fedlm.simulations.laws.figures.figure import Evidence
from fedlm.simulations.laws.figures.noise import (
    DELTA,
    PUBLISHED,
    STEPS,
    advantage_table,
    noise_field_table,
    trainings_of,
)
from tests.support.synthetic_laws import SMALL_MODELS, surface_of


@pytest.fixture(scope="module")
def fields():
    return noise_field_table()


def exact_ratio(examples, batch_size, epsilon):
    examples, batch_size = int(examples), int(batch_size)
    plan = calibrate(lambda noise: central_plan(examples, batch_size, STEPS, noise), DELTA, epsilon)
    return plan.noise_multiplier / batch_size


@pytest.mark.parametrize(
    ("panel", "across", "up", "at"),
    [
        ("a", "batch_size", "epsilon", {"batch_size": 2.0**16, "epsilon": 4.0}),
        ("b", "batch_size", "examples", {"batch_size": 2.0**15, "examples": 2.0**22}),
        ("c", "epsilon", "examples", {"epsilon": 2.0, "examples": 2.0**22}),
    ],
)
def test_an_arrow_is_what_the_accountant_says_of_doubling(fields, panel, across, up, at):
    row = fields.where(panel=panel, **at).rows()
    assert len(row) == 1
    budgets = {name: row[0][name] for name in ("examples", "batch_size", "epsilon")}
    ratio = exact_ratio(**budgets)
    assert row[0]["noise_batch_ratio"] == pytest.approx(ratio, rel=0.002)
    for name in (across, up):
        gain = ratio / exact_ratio(**budgets | {name: 2 * budgets[name]}) - 1
        assert row[0][f"gain_{name}"] == pytest.approx(gain, abs=0.003)


def test_fields_have_the_published_budgets_and_no_batch_of_half_of_the_examples(fields):
    assert fields.where(panel="a").values("examples") == [2.0**24]
    assert fields.where(panel="b").values("epsilon") == [4.0]
    assert fields.where(panel="c").values("batch_size") == [65536.0]
    assert (2 * fields["batch_size"] < fields["examples"]).all()
    assert np.isnan(fields.where(panel="a")["gain_examples"]).all()


def test_the_advantage_is_delta_at_epsilon_zero_of_a_plan_at_the_epsilon():
    table = advantage_table(Evidence().losses, trainings=PUBLISHED[:2], batches=(2**14, 2**18))
    assert np.isnan(table["loss"]).all()
    assert table.values("compute") == [6e17, 6.3e19]
    for row in table.rows():
        steps = round(row["compute"] / (6 * row["parameters"] * row["batch_size"] * 512))
        assert row["steps"] == steps
        plan = central_plan(int(row["examples"]), int(row["batch_size"]), steps, row["noise_multiplier"])
        assert row["membership_advantage"] == privacy_profile(plan, [0.0])[0]
        assert account(plan, 1e-8).epsilon == pytest.approx(8, rel=0.01)


def test_the_loss_joins_the_advantage_where_a_surface_reaches():
    assert trainings_of(surface_of())[1:] == PUBLISHED[1:]
    small = surface_of(SMALL_MODELS, length=32)
    trainings = trainings_of(small)
    assert {training.parameters for training in trainings} == {1.3e5, 3.3e6}
    for ours, theirs in zip(trainings, PUBLISHED, strict=True):
        assert ours.steps(1024) == theirs.steps(1024)


def test_baselines_have_the_published_batches():
    assert [fixed_batch_size(1e19, one.parameters, one.steps, 512) for one in BASELINES] == [1295, 15879, 283061]
