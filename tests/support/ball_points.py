"""Random points over the accepted range, and what ball arithmetic proves of the accountant's bounds at each.

    python -m tests.support.ball_points --minutes 40

goes on where the file of results ends, and adds a line for each point, up to `POINTS`. A point follows from its number.
"""

import argparse
import csv
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flint import arb

from fedlm.fl_core.privacy.accounting.composition import epsilon_bounds
from fedlm.fl_core.privacy.accounting.loss_pairs import DIRECTIONS
from fedlm.fl_core.privacy.accounting.release_events import Event, GaussianEvent, StatedEvent
from tests.support.ball_losses import deltas, release_of

FILE = Path(__file__).parents[1] / "fl_core" / "privacy" / "accounting" / "ball_points.csv"
POINTS = 2000
KINDS = ("single", "repeated", "repeated", "different", "different", "jump", "variation")
SCALE = {"remove": 1 << 9, "add": 1 << 8}  # points: in the other direction, delta is mostly far less
WITHIN = 0.005
PROVEN, NEARLY, UNDECIDED, WRONG = "proven", "within 0.5 %", "undecided", "contradicted"
SAID = (PROVEN, NEARLY, UNDECIDED, WRONG)


class Point(NamedTuple):
    """Releases, and the delta at which their epsilon is asked for."""

    kind: str
    events: list[Event]
    delta: float


class Verdict(NamedTuple):
    """What is proven of the two bounds."""

    upper: str
    lower: str


def point(number: int) -> Point:
    """Draw the point of a number."""
    rng = np.random.default_rng([1, number])
    kind = KINDS[number % len(KINDS)]
    delta = _power(rng, -15, -1)
    if kind == "single":
        return Point(kind, [_sampled(rng, 0.0)], delta)
    if kind == "repeated":
        return Point(kind, [_sampled(rng)], delta)
    if kind == "different":
        return Point(kind, [_any_event(rng, 3.0) for _ in range(rng.integers(2, 6))], delta)
    if kind == "jump":  # a release that gives everything away, about as often as delta
        rare = GaussianEvent(_power(rng, -1.6, -0.7), 1, delta * (1 + rng.choice([-1, 1]) * _power(rng, -6, -1)))
        return Point(kind, [rare, *([_sampled(rng, 3.0)] if rng.random() < 0.5 else [])], delta)
    event = _sampled(rng, 0.0)  # delta is close to the total variation
    most = float(max(release_of(event, direction).delta(arb(0)) for direction in DIRECTIONS))
    delta = min(max(most * (1 + rng.choice([-1, 1]) * _power(rng, -9, -1)), 1e-15), 0.5)
    return Point(kind, [event], delta)


def _power(rng: np.random.Generator, low: float, high: float) -> float:
    return float(10 ** rng.uniform(low, high))


def _sampled(rng: np.random.Generator, steps: float = 6.0) -> GaussianEvent:
    probability = 1.0 if rng.random() < 0.05 else _power(rng, *((-17, 0) if rng.random() < 0.3 else (-6, 0)))
    return GaussianEvent(_power(rng, math.log10(0.02), 2), round(_power(rng, 0, steps)), min(probability, 1.0))


def _any_event(rng: np.random.Generator, steps: float) -> Event:
    if rng.random() < 0.2:
        return StatedEvent(_power(rng, -2, 1), rng.choice([0.0, _power(rng, -16, -7)]), int(rng.integers(1, 4)))
    return _sampled(rng, steps)


def verdict(events: Sequence[Event], delta: float, upper: float, lower: float) -> Verdict:
    """Say what ball arithmetic proves of bounds on epsilon."""
    more, less = upper * (1 + WITHIN), lower * (1 - WITHIN)
    asked = [epsilon for epsilon in (upper, more, lower, less) if epsilon < math.inf]
    found = [deltas(events, direction, asked, delta, SCALE[direction]) for direction in DIRECTIONS]
    bounds = dict(zip(asked, zip(*found, strict=True), strict=True))

    def too_low(epsilon: float) -> bool:
        return any(low > delta for low, _ in bounds[epsilon])

    def too_high(epsilon: float) -> bool:
        return all(high < delta for _, high in bounds[epsilon])

    of_upper, of_lower = PROVEN, UNDECIDED
    if upper < math.inf and not too_high(upper):
        of_upper = WRONG if too_low(upper) else NEARLY if too_high(more) else UNDECIDED
    if lower == 0 or (lower < math.inf and too_low(lower)):
        of_lower = PROVEN
    elif lower < math.inf:
        of_lower = WRONG if too_high(lower) else NEARLY if too_low(less) else UNDECIDED
    return Verdict(of_upper, of_lower)


def rows() -> list[dict[str, str]]:
    """Read the file of results, a row for each point from 0 on."""
    if not FILE.exists():
        return []
    with FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def summary(found: Sequence[Mapping[str, object]]) -> str:
    """Count what was proven of both bounds, as a table."""
    bounds = ("of_epsilon", "of_epsilon_lower")
    head = ["releases", "points", *(f"{name}: {said}" for name in ("upper", "lower") for said in SAID)]
    lines = [head, ["---"] * len(head)]
    for kind in (*dict.fromkeys(KINDS), "all"):
        chosen = [row for row in found if kind in (row["kind"], "all")]
        lines.append(
            [
                kind,
                str(len(chosen)),
                *(str([row[one] for row in chosen].count(said)) for one in bounds for said in SAID),
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(number: int) -> dict[str, object]:
    kind, events, delta = point(number)
    start = time.process_time()
    upper, lower = epsilon_bounds(events, delta)
    of_upper, of_lower = verdict(events, delta, upper, lower)
    return {
        "number": number,
        "kind": kind,
        "releases": " + ".join(map(_described, events)),
        "delta": f"{delta:.4g}",
        "epsilon": repr(upper),
        "of_epsilon": of_upper,
        "epsilon_lower": repr(lower),
        "of_epsilon_lower": of_lower,
        "seconds": f"{time.process_time() - start:.2f}",
    }


def _described(event: Event) -> str:
    if isinstance(event, StatedEvent):
        return f"{event.count} x ({event.epsilon:.4g}, {event.delta:.4g})"
    return f"{event.count} x noise {event.noise_multiplier:.4g} q {event.sampling_probability:.4g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no further point begins")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    found: list[Mapping[str, object]] = [*rows()]
    with FILE.open("a", encoding="utf-8", newline="") as file:
        for number in range(len(found), POINTS):
            if time.monotonic() > end:
                break
            found.append(_row(number))
            writer = csv.DictWriter(file, found[-1], lineterminator="\n")
            if not number:
                writer.writeheader()
            writer.writerow(found[-1])
            file.flush()
    print(summary(found), end="")
    return int(any(WRONG in row.values() for row in found))


if __name__ == "__main__":
    sys.exit(main())
