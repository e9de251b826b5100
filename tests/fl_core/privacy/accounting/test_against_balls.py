"""The accountant's bounds on epsilon, held to bounds on delta that ball arithmetic proves, at random points."""

from pathlib import Path

import numpy as np
import pytest
from flint import arb

from fedlm.fl_core.privacy.accounting.composition import epsilon_bounds
from fedlm.fl_core.privacy.accounting.release_events import GaussianEvent, StatedEvent
from tests.fl_core.privacy.accounting.test_loss_sums import delta_of_few
from tests.support.ball_losses import deltas
from tests.support.ball_pairs import release_of
from tests.support.ball_points import (
    EXAMPLES,
    KINDS,
    NEARLY,
    PROVEN,
    WRONG,
    Verdict,
    decided,
    numbers,
    point,
    rows,
    summary,
    verdict,
)

PAGE = Path(__file__).parents[4] / "docs" / "design" / "accounting.md"
PARTS = 10
SECONDS = 15.0  # of a kind's points, as they were measured
LONGEST = 3.0


def decisive(kind):
    """The first points of a kind that are decided in little time."""
    chosen, left = [], SECONDS
    for row in rows():
        seconds = float(row["seconds"])
        if row["kind"] == kind and decided(row) and seconds < min(LONGEST, left):
            chosen.append((int(row["number"]), int(row["finer"])))
            left -= seconds
    return chosen


@pytest.mark.parametrize(
    ("noise", "probability", "count", "epsilon", "direction"),
    [(0.7, 0.001, 2, 4.0, "remove"), (0.7, 0.001, 2, 0.0012, "add"), (2.0, 0.5, 3, 2.0, "remove")],
)
def test_balls_contain_what_integrals_give_and_little_more(noise, probability, count, epsilon, direction):
    delta = delta_of_few(noise, probability, count, epsilon, direction)
    asked = [epsilon * 0.98, epsilon, epsilon * 1.02]
    (more, _), (least, most), (_, less) = deltas(
        [GaussianEvent(noise, count, probability)], direction, asked, delta, finer=0 if direction == "remove" else 1
    )
    assert least <= delta * (1 + 1e-6)
    assert most >= delta * (1 - 1e-6)
    assert less < delta < more


@pytest.mark.parametrize("events", [[GaussianEvent(0.8, 1, 0.02)], [GaussianEvent(1.0, 3, 0.1), StatedEvent(0.1)]])
def test_bounds_that_are_a_little_wrong_are_contradicted(events):
    upper, lower = epsilon_bounds(events, 1e-6)
    assert verdict(events, 1e-6, upper, lower) == Verdict(PROVEN, PROVEN)
    assert verdict(events, 1e-6, lower * 0.99, upper * 1.01) == Verdict(WRONG, WRONG)


def test_no_committed_bound_was_proven_wrong_and_the_page_says_how_many_there_are():
    found = rows()
    assert summary(found) in PAGE.read_text(encoding="utf-8")
    assert {int(row["number"]) for row in found} <= set(numbers())
    assert not [row for row in found if WRONG in row.values()]
    assert all(len(decisive(kind)) > 1 for kind in {*KINDS, EXAMPLES})


@pytest.mark.long
def test_one_gaussian_mechanism_lies_between_its_bounds():
    rng = np.random.default_rng(0)
    for _ in range(300):
        noise, delta = 10 ** rng.uniform(-5, 10), 10 ** rng.uniform(-15, -0.01)
        upper, lower = epsilon_bounds([GaussianEvent(noise)], delta)
        exact = release_of(GaussianEvent(noise), "remove")
        assert exact.delta(arb(upper)) <= delta
        assert lower == 0 or exact.delta(arb(lower)) >= delta
        assert lower >= upper * (1 - 1e-13 * (1 + noise)) - 2e-14 / (1 - delta)


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted({*KINDS, EXAMPLES}))
def test_bounds_are_proven_right_where_balls_decide_soon(kind):
    """Another machine may round the last digit of a bound another way, so that it is proven nearly right."""
    for number, finer in decisive(kind):
        _, events, delta = point(number)
        found = verdict(events, delta, *epsilon_bounds(events, delta), finer=finer)
        assert set(found) <= {PROVEN, NEARLY}, f"point {number}: {events} at {delta}"


@pytest.mark.thorough
@pytest.mark.timeout(12 * 3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_bound_is_proven_wrong_in_thousands(part):
    for number in numbers()[part::PARTS]:
        _, events, delta = point(number)
        found = verdict(events, delta, *epsilon_bounds(events, delta))
        assert WRONG not in found, f"point {number}: {events} at {delta}"
