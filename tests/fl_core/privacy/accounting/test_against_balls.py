"""The accountant's bounds on epsilon, held to bounds on delta that ball arithmetic proves, at random points."""

import math
from collections import Counter

import numpy as np
import pytest
from flint import arb

from fedlm.fl_core.privacy.accounting.composition import Event, GaussianEvent, StatedEvent, epsilon_bounds
from fedlm.fl_core.privacy.accounting.loss_pairs import DIRECTIONS
from tests.fl_core.privacy.accounting.test_loss_sums import delta_of_few
from tests.support.ball_losses import deltas, release_of

POINTS = 200
PARTS = 10
WITHIN = 0.005
PROVEN = 0.6
SCALE = {"remove": 1 << 9, "add": 1 << 8}  # points: in the other direction, delta is mostly far less


def power(rng, low, high):
    return float(10 ** rng.uniform(low, high))


def sampled(rng, steps=6.0):
    probability = 1.0 if rng.random() < 0.05 else power(rng, *((-17, 0) if rng.random() < 0.3 else (-6, 0)))
    return GaussianEvent(power(rng, math.log10(0.02), 2), round(power(rng, 0, steps)), min(probability, 1.0))


def any_event(rng, steps):
    if rng.random() < 0.2:
        return StatedEvent(power(rng, -2, 1), rng.choice([0.0, power(rng, -16, -7)]), int(rng.integers(1, 4)))
    return sampled(rng, steps)


def random_point(rng, kind) -> tuple[list[Event], float]:
    """Draw releases and a delta."""
    delta = power(rng, -15, -1)
    if kind == "single":
        return [sampled(rng, 0.0)], delta
    if kind == "repeated":
        return [sampled(rng)], delta
    if kind == "different":
        return [any_event(rng, 3.0) for _ in range(rng.integers(2, 6))], delta
    if kind == "jump":  # a release that gives everything away, about as often as delta
        rare = GaussianEvent(power(rng, -1.6, -0.7), 1, delta * (1 + rng.choice([-1, 1]) * power(rng, -6, -1)))
        return [rare, *([sampled(rng, 3.0)] if rng.random() < 0.5 else [])], delta
    event = sampled(rng, 0.0)  # delta is close to the total variation
    most = float(max(release_of(event, direction).delta(arb(0)) for direction in DIRECTIONS))
    return [event], min(max(most * (1 + rng.choice([-1, 1]) * power(rng, -9, -1)), 1e-15), 0.5)


KINDS = ("single", "repeated", "repeated", "different", "different", "jump", "variation")


def verdicts(events, delta):
    """What is proven of both bounds: that they are right, or are less than `WITHIN` from right.

    Fails where one is proven wrong.
    """
    upper, lower = epsilon_bounds(events, delta)
    asked = {
        "upper": upper,
        "upper, nearly": upper * (1 + WITHIN),
        "lower": lower,
        "lower, nearly": lower * (1 - WITHIN),
    }
    asked = {name: epsilon for name, epsilon in asked.items() if epsilon < math.inf}
    bounds = {
        direction: dict(
            zip(asked, deltas(events, direction, list(asked.values()), delta, SCALE[direction]), strict=True)
        )
        for direction in DIRECTIONS
    }
    least = {name: max(float(bounds[direction][name][0] / delta) for direction in DIRECTIONS) for name in asked}
    most = {name: max(float(bounds[direction][name][1] / delta) for direction in DIRECTIONS) for name in asked}
    said = f"{events} at {delta} between {lower} and {upper}"
    assert least.get("upper", 0) <= 1, f"epsilon of {said}, where delta is {least['upper']} times as much at least"
    assert lower == 0 or most.get("lower", 1) >= 1, f"epsilon of {said}, where delta is {most['lower']} of it at most"
    right = {name for name in asked if (most[name] <= 1 if "upper" in name else asked[name] == 0 or least[name] >= 1)}
    return right | ({"upper", "upper, nearly"} if upper == math.inf else set())


def check_points(points, seed):
    proven = Counter()
    rng = np.random.default_rng(seed)
    for number in range(points):
        proven.update(verdicts(*random_point(rng, KINDS[number % len(KINDS)])))
    return proven


@pytest.mark.parametrize(
    ("noise", "probability", "count", "epsilon", "direction"),
    [(0.7, 0.001, 2, 4.0, "remove"), (0.7, 0.001, 2, 0.0012, "add"), (2.0, 0.5, 3, 2.0, "remove")],
)
def test_balls_contain_what_integrals_give_and_little_more(noise, probability, count, epsilon, direction):
    delta = delta_of_few(noise, probability, count, epsilon, direction)
    asked = [epsilon * 0.98, epsilon, epsilon * 1.02]
    (more, _), (least, most), (_, less) = deltas(
        [GaussianEvent(noise, count, probability)], direction, asked, delta, SCALE["remove"]
    )
    assert least <= delta * (1 + 1e-6)
    assert most >= delta * (1 - 1e-6)
    assert less < delta < more


@pytest.mark.long
def test_one_gaussian_mechanism_lies_between_its_bounds():
    rng = np.random.default_rng(0)
    for _ in range(300):
        noise, delta = power(rng, -5, 10), power(rng, -15, -0.01)
        upper, lower = epsilon_bounds([GaussianEvent(noise)], delta)
        exact = release_of(GaussianEvent(noise), "remove")
        assert exact.delta(arb(upper)) <= delta
        assert lower == 0 or exact.delta(arb(lower)) >= delta
        assert lower >= upper * (1 - 1e-13 * (1 + noise)) - 2e-14 / (1 - delta)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_bound_is_proven_wrong(part):
    """About so many are proven right; of the others ball arithmetic on so few points says too little."""
    proven = check_points(POINTS // PARTS, part)
    assert all(proven[side] >= PROVEN * POINTS / PARTS for side in ("upper, nearly", "lower, nearly"))


@pytest.mark.thorough
@pytest.mark.timeout(12 * 3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_bound_is_proven_wrong_in_thousands(part):
    check_points(10 * POINTS // PARTS, 1000 + part)
