"""Random points over the accepted range, and what ball arithmetic proves of the accountant's bounds at each.

    python -m tests.support.ball_points --minutes 40

adds a line to the file of results for each point that has none. Where all have one, those that are not wholly proven
are tried again, on grids twice as fine as before. A point follows from its number.
"""

import argparse
import csv
import functools
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flint import arb

from fedlm.fl_core.privacy.accounting.composition import epsilon_bounds
from fedlm.fl_core.privacy.accounting.losses.loss_pairs import DIRECTIONS, Direction
from fedlm.fl_core.privacy.accounting.release_events import Event, ExamplesEvent, GaussianEvent, StatedEvent
from tests.support.ball_losses import deltas
from tests.support.ball_pairs import release_of

FILE = Path(__file__).parents[1] / "fl_core" / "privacy" / "accounting" / "ball_points.csv"
POINTS = 2000
OF_EXAMPLES = 300  # more, with the numbers after these
EXAMPLES = "examples"
KINDS = ("single", "repeated", "repeated", "different", "different", "jump", "variation")  # of the first, in turn
WITHIN = 0.005
NOTHING = 1e-14  # epsilon that is nearly 0: at 0 itself only total variations are known
FINEST = 5  # grids that are tried: 2^FINEST times as fine as the first
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
    kind = KINDS[number % len(KINDS)] if number < POINTS else EXAMPLES
    delta = _power(rng, -15, -1)
    if kind == EXAMPLES:
        return Point(kind, *_of_examples(rng, delta))
    if kind == "single":
        return Point(kind, [_sampled(rng, 0.0)], delta)
    if kind == "repeated":
        return Point(kind, [_sampled(rng)], delta)
    if kind == "different":
        return Point(kind, [_any_event(rng, 3.0) for _ in range(rng.integers(2, 6))], delta)
    if kind == "jump":  # a release that gives everything away, about as often as delta
        rare = GaussianEvent(_power(rng, -1.6, -0.7), 1, delta * (1 + rng.choice([-1, 1]) * _power(rng, -6, -1)))
        return Point(kind, [rare, *([_sampled(rng, 3.0)] if rng.random() < 0.5 else [])], delta)
    event = _sampled(rng, 0.0)
    return Point(kind, [event], _near_total_variation(rng, event))


def numbers() -> list[int]:
    """All points, in the order in which they are tried: examples of users among the others."""
    every = len(KINDS)
    return sorted(
        range(POINTS + OF_EXAMPLES), key=lambda number: number if number < POINTS else every * (number - POINTS)
    )


def _near_total_variation(rng: np.random.Generator, event: GaussianEvent | ExamplesEvent) -> float:
    most = float(max(release_of(event, direction).delta(arb(0)) for direction in DIRECTIONS))
    return float(min(max(most * (1 + rng.choice([-1, 1]) * _power(rng, -9, -1)), 1e-15), 0.5))


def _of_examples(rng: np.random.Generator, delta: float) -> tuple[list[Event], float]:
    """Examples of a user, sampled one by one: once, often, with other releases, or with delta near total variation."""
    of_one = rng.random() < 0.5
    examples = round(_power(rng, 0.3, 2.4 if of_one else 1.2))
    noise, steps = examples * _power(rng, -1.7, 1), 1 if of_one else round(_power(rng, 0, 5))
    event = ExamplesEvent(noise, steps, _power(rng, *((-17, 0) if rng.random() < 0.3 else (-4, 0))), examples)
    if of_one:
        return [event], _near_total_variation(rng, event) if rng.random() < 0.3 else delta
    return [event, *([_any_event(rng, 3.0)] if rng.random() < 0.5 else [])], delta


def _power(rng: np.random.Generator, low: float, high: float) -> float:
    return float(10 ** rng.uniform(low, high))


def _sampled(rng: np.random.Generator, steps: float = 6.0) -> GaussianEvent:
    probability = 1.0 if rng.random() < 0.05 else _power(rng, *((-17, 0) if rng.random() < 0.3 else (-6, 0)))
    return GaussianEvent(_power(rng, math.log10(0.02), 2), round(_power(rng, 0, steps)), min(probability, 1.0))


def _any_event(rng: np.random.Generator, steps: float) -> Event:
    if rng.random() < 0.2:
        return StatedEvent(_power(rng, -2, 1), rng.choice([0.0, _power(rng, -16, -7)]), int(rng.integers(1, 4)))
    return _sampled(rng, steps)


class _Delta:
    """Bounds on delta at epsilons, in the worst direction, each computed where it is first asked for."""

    def __init__(self, events: Sequence[Event], delta: float, epsilons: Sequence[float], finer: int) -> None:
        self._asked = events, delta, epsilons, finer

    @functools.cache  # noqa: B019
    def _of(self, direction: Direction, upper: bool) -> dict[float, tuple[arb, arb]]:
        events, delta, epsilons, finer = self._asked
        found = deltas(events, direction, epsilons, delta, finer=finer, sides=[upper])
        return dict(zip(epsilons, found, strict=True))

    def too_low(self, epsilon: float) -> bool:
        """Whether delta is more than asked for at an epsilon."""
        return any(self._of(direction, False)[epsilon][0] > self._asked[1] for direction in DIRECTIONS)

    def too_high(self, epsilon: float) -> bool:
        """Whether delta is less than asked for at an epsilon."""
        return all(self._of(direction, True)[epsilon][1] < self._asked[1] for direction in DIRECTIONS)


def verdict(events: Sequence[Event], delta: float, upper: float, lower: float, *, finer: int = 0) -> Verdict:
    """Say what ball arithmetic proves of bounds on epsilon, on grids 2^finer times as fine."""
    more, less = max(upper * (1 + WITHIN), NOTHING), lower * (1 - WITHIN)
    of = _Delta(events, delta, [epsilon for epsilon in (upper, more, lower, less) if epsilon < math.inf], finer)
    of_upper = of_lower = UNDECIDED
    if upper == math.inf or of.too_high(upper):
        of_upper = PROVEN
    elif of.too_high(more):
        of_upper = NEARLY
    if lower == 0 or (_given_away(events) > delta if lower == math.inf else of.too_low(lower)):
        of_lower = PROVEN
    elif lower < math.inf and of.too_low(less):
        of_lower = NEARLY
    if of_upper != PROVEN and of.too_low(upper):
        of_upper = WRONG
    if of_lower != PROVEN and lower < math.inf and of.too_high(lower):
        of_lower = WRONG
    return Verdict(of_upper, of_lower)


def _given_away(events: Sequence[Event]) -> arb:
    """The probability that stated releases give everything away: delta at any epsilon is no less."""
    kept = arb(1)
    for event in events:
        if isinstance(event, StatedEvent):
            kept *= (1 - arb(event.delta)) ** event.count
    return 1 - kept


def rows() -> list[dict[str, str]]:
    """Read the file of results, a row for each point that was tried."""
    if not FILE.exists():
        return []
    with FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def summary(found: Sequence[Mapping[str, object]]) -> str:
    """Count what was proven of both bounds, as a table."""
    bounds = ("of_epsilon", "of_epsilon_lower")
    head = ["releases", "points", *(f"{name}: {said}" for name in ("upper", "lower") for said in SAID)]
    lines = [head, ["---"] * len(head)]
    for kind in (*dict.fromkeys(KINDS), EXAMPLES, "all"):
        chosen = [row for row in found if kind in (row["kind"], "all")]
        lines.append(
            [
                kind,
                str(len(chosen)),
                *(str([row[one] for row in chosen].count(said)) for one in bounds for said in SAID),
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(number: int, finer: int) -> dict[str, Any]:
    kind, events, delta = point(number)
    start = time.process_time()
    upper, lower = epsilon_bounds(events, delta)
    of_upper, of_lower = verdict(events, delta, upper, lower, finer=finer)
    return {
        "number": number,
        "kind": kind,
        "releases": " + ".join(map(_described, events)),
        "delta": f"{delta:.4g}",
        "epsilon": repr(upper),
        "of_epsilon": of_upper,
        "epsilon_lower": repr(lower),
        "of_epsilon_lower": of_lower,
        "finer": finer,
        "seconds": f"{time.process_time() - start:.2f}",
    }


def _next(found: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    """Say which points are to be tried, and how fine the grids are."""
    yield from ((number, 0) for number in numbers() if number not in found)
    while True:
        finest = {number: int(row["finer"]) for number, row in found.items() if not decided(row)}
        if not finest:
            return
        least = min(finest.values())
        if least == FINEST:
            return
        yield from ((number, least + 1) for number, finer in finest.items() if finer == least)


def decided(row: Mapping[str, Any]) -> bool:
    """Whether all is proven of a point that there is to say."""
    return row["of_epsilon"] == row["of_epsilon_lower"] == PROVEN


def _described(event: Event) -> str:
    if isinstance(event, ExamplesEvent):
        of = f"{event.examples} examples q {event.sampling_probability:.4g}"
        return f"{event.count} x noise {event.noise_multiplier:.4g} {of}"
    if isinstance(event, StatedEvent):
        return f"{event.count} x ({event.epsilon:.4g}, {event.delta:.4g})"
    return f"{event.count} x noise {event.noise_multiplier:.4g} q {event.sampling_probability:.4g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no further point begins")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    found: dict[int, Mapping[str, Any]] = {int(row["number"]): row for row in rows()}
    for number, finer in _next(found):
        if time.monotonic() > end:
            break
        found[number] = _row(number, finer)
        _write([*found.values()])
    print(summary([*found.values()]), end="")
    return int(any(WRONG in row.values() for row in found.values()))


def _write(found: Sequence[Mapping[str, Any]]) -> None:
    whole = FILE.with_suffix(".new")
    with whole.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, found[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    whole.replace(FILE)


if __name__ == "__main__":
    sys.exit(main())
