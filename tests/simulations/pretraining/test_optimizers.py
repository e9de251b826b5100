import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.pretraining.optimizers import learning_rates

PEAK, FINAL, WARMUP, STEPS = 0.3, 0.006, 4, 20


def expected(schedule, step, final):
    """The rate of a step, by the formulas of the schedules, in float64."""
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    share = (step - WARMUP) / (STEPS - WARMUP)
    return {
        "constant": PEAK,
        "linear": PEAK + share * (final - PEAK),
        "cosine": final + (PEAK - final) * (1 + np.cos(np.pi * share)) / 2,
        "exponential": PEAK * (final / PEAK) ** share if final else None,
    }[schedule]


@pytest.mark.parametrize(
    ("schedule", "final"),
    [("constant", 0.0), ("linear", 0.0), ("linear", FINAL), ("cosine", FINAL), ("exponential", FINAL)],
)
def test_rates_are_those_of_the_formulas(schedule, final):
    rates = learning_rates(schedule, PEAK, warmup_steps=WARMUP, steps=STEPS, final=final)
    found = [float(rates(step)) for step in range(STEPS + 1)]
    np.testing.assert_allclose(found, [expected(schedule, step, final) for step in range(STEPS + 1)], rtol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "final", "said"),
    [
        ("constant", FINAL, "does nothing with the schedule constant"),
        ("exponential", 0.0, "needs a final_learning_rate above 0"),
        ("linear", PEAK, "below the learning rate"),
        ("cosine", -1.0, "at least 0"),
    ],
)
def test_rates_that_do_not_fall_as_said_are_refused(schedule, final, said):
    with pytest.raises(ConfigurationError, match=said):
        learning_rates(schedule, PEAK, warmup_steps=WARMUP, steps=STEPS, final=final)
