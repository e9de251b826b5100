import pytest

from fedlm.fl_core.privacy.accounting import account, events_of
from fedlm.fl_core.privacy.central_plan import central_plan
from fedlm.fl_core.privacy.composition import StatedEvent, epsilon_bounds
from fedlm.fl_core.privacy.participation import BoundedParticipation
from tests.fl_core.privacy.mechanisms.noise_matrices import plan_of

DELTA = 1e-6


@pytest.mark.parametrize(
    "plan",
    [
        central_plan(1000, 20, 30, 1.5),
        central_plan(1000, 20, 3, 1.5, 40),
        plan_of("tree", 64, 5.0, BoundedParticipation(2, 8)),
    ],
    ids=["poisson", "truncated", "tree"],
)
def test_the_events_of_a_plan_have_its_epsilon(plan):
    assert epsilon_bounds(events_of(plan), DELTA).upper == pytest.approx(account(plan, DELTA).epsilon, rel=2e-3)


def test_different_runs_compose():
    first, second = central_plan(1000, 20, 30, 1.5), plan_of("tree", 64, 5.0, BoundedParticipation(2, 8))
    both = epsilon_bounds([*events_of(first), *events_of(second)], DELTA).upper
    alone = [account(plan, DELTA).epsilon for plan in (first, second)]
    assert max(alone) < both < sum(alone)
    assert both < epsilon_bounds([*events_of(first), *events_of(second), StatedEvent(0.5)], DELTA).upper <= both + 0.51
