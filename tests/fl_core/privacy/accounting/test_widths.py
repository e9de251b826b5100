"""How far apart the two bounds on epsilon are, over the accepted range."""

import math

import pytest

from fedlm.fl_core.privacy.accounting.composition import epsilon_bounds
from fedlm.fl_core.privacy.accounting.release_events import GaussianEvent, StatedEvent
from tests.support.ball_points import point, rows

WIDE, NARROW = 1.01, 1.001
NOTHING = 1e-8  # epsilon that is as good as 0


def is_well_within(kind, events, delta):
    """Whether noise and delta are so large that the bounds have to be close; next to the total variation epsilon is as
    good as 0."""
    much_noise = all(isinstance(event, GaussianEvent) and event.noise_multiplier >= 0.5 for event in events)
    return much_noise and delta >= 1e-12 and kind != "variation"


def ratio(upper, lower):
    return 1.0 if upper <= lower + NOTHING else upper / lower if lower else math.inf


@pytest.mark.parametrize(
    ("events", "delta", "widest"),
    [
        ([GaussianEvent(1.1, 14_063, 256 / 60_000)], 1e-5, NARROW),
        ([GaussianEvent(100.0, 1_000_000, 0.5)], 1e-8, NARROW),
        pytest.param([GaussianEvent(1.0, 1_000_000, 1e-8)], 1e-12, NARROW, marks=pytest.mark.long),
        ([GaussianEvent(0.6, 100, 0.01), GaussianEvent(30.0, 10, 0.9), GaussianEvent(8.0)], 1e-9, NARROW),
        ([GaussianEvent(0.03, 10, 0.01)], 1e-12, WIDE),
        ([GaussianEvent(0.3, 5, 0.1), StatedEvent(0.5, 1e-9, 2)], 1e-6, WIDE),
    ],
)
def test_bounds_are_close(events, delta, widest):
    assert ratio(*epsilon_bounds(events, delta)) <= widest


def test_committed_bounds_are_close_where_noise_and_delta_are_large():
    found = 0
    for row in rows():
        if is_well_within(*point(int(row["number"]))):
            assert ratio(float(row["epsilon"]), float(row["epsilon_lower"])) <= NARROW, row
            found += 1
    assert found >= 10


@pytest.mark.thorough
@pytest.mark.timeout(12 * 3600)
def test_bounds_are_as_close_as_they_were():
    for row in rows():
        kind, events, delta = point(int(row["number"]))
        before = ratio(float(row["epsilon"]), float(row["epsilon_lower"]))
        widest = NARROW if is_well_within(kind, events, delta) else WIDE if before <= WIDE else before * 1.01
        assert ratio(*epsilon_bounds(events, delta)) <= widest, row
