"""Pictures of accounting alone are the accountant's numbers, and published laws have the numbers that papers print."""

import functools

import numpy as np
import pytest

from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.promise.guarantee import account, calibrate, privacy_profile
from fedlm.models.errors import ConfigurationError
from fedlm.simulations.laws.figures.figure import Evidence
from fedlm.simulations.laws.figures.measured import _PANELS
from fedlm.simulations.laws.figures.noise import (
    DELTA,
    PUBLISHED,
    STEPS,
    advantage_table,
    noise_field_table,
    trainings_of,
)
from fedlm.simulations.laws.forms.registry import FORMS
from tests.support.synthetic_laws import CHINCHILLA, SMALL_MODELS, surface_of


def exact_ratio(examples, batch_size, epsilon):
    examples, batch_size = int(examples), int(batch_size)
    plan = calibrate(lambda noise: central_plan(examples, batch_size, STEPS, noise), DELTA, epsilon)
    return plan.noise_multiplier / batch_size


def test_an_arrow_is_what_the_accountant_says_of_doubling():
    fields = noise_field_table()
    assert (2 * fields["batch_size"] < fields["examples"]).all()
    for panel, across, up, at in (
        ("a", "batch_size", "epsilon", {"batch_size": 2.0**16, "epsilon": 4.0}),
        ("b", "batch_size", "examples", {"batch_size": 2.0**15, "examples": 2.0**22}),
        ("c", "epsilon", "examples", {"epsilon": 2.0, "examples": 2.0**22}),
    ):
        (row,) = fields.where(panel=panel, **at).rows()
        budgets = {name: row[name] for name in ("examples", "batch_size", "epsilon")}
        ratio = exact_ratio(**budgets)
        assert row["noise_batch_ratio"] == pytest.approx(ratio, rel=0.002)
        for name in (across, up):
            gain = ratio / exact_ratio(**budgets | {name: 2 * budgets[name]}) - 1
            assert row[f"gain_{name}"] == pytest.approx(gain, abs=0.003)


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


def test_published_laws_have_the_printed_values():
    laws = {name: functools.partial(FORMS[name].predict, values) for name, (values, _) in _PANELS.items()}
    assert laws["kaplan_parameters"]({"non_embedding_parameters": 8.8e13}) == 1
    # A doubling of data takes the loss to 2^-0.095 = 0.936 of what it was.
    ratio = laws["kaplan_data"]({"data_tokens": 2e9}) / laws["kaplan_data"]({"data_tokens": 1e9})
    assert ratio == pytest.approx(0.936, abs=5e-4)
    assert FORMS["chinchilla"].predict(CHINCHILLA, {"parameters": 70e9, "tokens": 1.4e12}) == pytest.approx(
        1.9366, abs=1e-4
    )


def test_a_law_without_its_coefficients_is_refused():
    with pytest.raises(ConfigurationError, match="mckenna_l2: found no value of E, A, B, C"):
        FORMS["mckenna_l2"].predict({"a": 0.47, "b": 0.12, "g": 0.95, "a2": -0.07}, {})
