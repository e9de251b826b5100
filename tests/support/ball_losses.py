"""Delta of sums of privacy losses between two bounds that are theorems: by balls (Arb) and by whole numbers.

A second way to what `fl_core.privacy.accounting` computes. It shares nothing with the first but the description of
releases. With Y = exp(-S), S the sum of the losses under P, `delta(epsilon) = E[max(0, 1 - exp(epsilon) Y)]` is the
mean of a function that is convex in each release's factor of Y, and falls in it. So delta only rises where a mass is
spread over two points such that the mean of exp(-loss) stays, and where it is moved upwards. It only falls where masses
are merged at the mean of exp(-loss), and where they are moved downwards.

A single release is exact (`ball_pairs`). Sums are of masses on grids (`ball_grids`, `ball_sums`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from flint import arb

from fedlm.fl_core.privacy.accounting.losses.loss_pairs import Direction
from fedlm.fl_core.privacy.accounting.release_events import Event, ExamplesEvent, GaussianEvent, StatedEvent
from tests.support.ball_grids import BITS, Frame, cells_of, on_grids
from tests.support.ball_pairs import Pair, Release, release_of, release_of_all
from tests.support.ball_sums import added, delta_of, power

BOTH = (False, True)
POINTS = {"remove": 1 << 9, "add": 1 << 8}  # of a scale: in the other direction, delta is mostly far less


def deltas(
    events: Sequence[Event],
    direction: Direction,
    epsilons: Sequence[float],
    delta: float,
    *,
    finer: int = 0,
    sides: Sequence[bool] = BOTH,
) -> list[tuple[arb, arb]]:
    """Bound delta from below and from above, at epsilons that are about that at delta.

    Args:
      events: what is released.
      direction: of the pair.
      epsilons: where delta is asked for.
      delta: about what it is.
      finer: grids are 2^finer times as fine, or coarser where it is negative.
      sides: whether a bound from below is wanted (False), or from above (True); the others are 0 and 1.
    """
    sampled = [event for event in events if isinstance(event, GaussianEvent | ExamplesEvent)]
    releases = [(event.count, release_of(event, direction)) for event in sampled if event.sampling_probability < 1]
    whole = [event for event in sampled if event.sampling_probability == 1]
    if whole:
        releases.append((1, release_of_all(tuple(whole), direction)))
    stated = _stated_sums([event for event in events if isinstance(event, StatedEvent)])
    wanted = [[epsilon - at for at, _ in stated] for epsilon in epsilons]
    of_rest = _deltas_of(releases, direction, [at for row in wanted for at in row], delta, finer=finer, sides=sides)
    found, finite = [], sum((mass for _, mass in stated), arb(0))
    for row in wanted:
        here, of_rest = of_rest[: len(row)], of_rest[len(row) :]
        low, high = (
            1 - finite + sum((mass * one[side] for (_, mass), one in zip(stated, here, strict=True)), arb(0))
            for side in (0, 1)
        )
        found.append((low.lower(), high.upper()))
    return found


def _stated_sums(events: Sequence[StatedEvent]) -> list[tuple[arb, arb]]:
    """Finite sums of the losses of stated releases, and their probabilities; they are those of randomised response."""
    sums = [(arb(0), arb(1))]
    for event in events:
        epsilon, delta = arb(event.epsilon), arb(event.delta)
        high = (1 - delta) / (1 + (-epsilon).exp())
        once = [
            (
                (2 * truths - event.count) * epsilon,
                math.comb(event.count, truths) * high**truths * (1 - delta - high) ** (event.count - truths),
            )
            for truths in range(event.count + 1)
        ]
        sums = [(at + more, mass * part) for at, mass in sums for more, part in once]
    return sums


def _deltas_of(
    releases: list[tuple[int, Release]],
    direction: Direction,
    epsilons: list[arb],
    delta: float,
    *,
    finer: int,
    sides: Sequence[bool],
) -> list[tuple[arb, arb]]:
    if not releases:
        exact = [1 - epsilon.exp() if epsilon < 0 else arb(0) for epsilon in epsilons]
        return [(one.lower(), one.upper()) for one in exact]
    if sum(count for count, _ in releases) == 1:
        return [(exact.lower(), exact.upper()) for exact in (releases[0][1].delta(epsilon) for epsilon in epsilons)]
    # Delta of all is no less than that of one, and at epsilon 0 no more than all of them together.
    most = sum((count * release.delta(arb(0)) for count, release in releases), arb(0)).upper()
    least = [max((release.delta(epsilon).lower() for _, release in releases), key=float) for epsilon in epsilons]
    if not any(epsilon > 0 for epsilon in epsilons) or (most <= delta and not any(epsilon < 0 for epsilon in epsilons)):
        return [(low, most if epsilon >= 0 else arb(1)) for low, epsilon in zip(least, epsilons, strict=True)]
    steps = sum(count for count, _ in releases)
    positive = min(float(epsilon) for epsilon in epsilons if epsilon > 0)
    fine = 8e-5 / (steps * (2 * math.log(1 / delta) + positive))
    exponent = math.floor(math.log2(positive * math.sqrt(fine))) - finer
    # From below, masses at one end of a sampled loss fit no points that are as far apart as q.
    rare = [float(pair.rare) for _, release in releases for _, pair in release.pairs if pair.rare < 0.1]
    exponent = min([exponent, *(math.floor(math.log2(q)) - 5 for q in rare if q > 2.0 ** (exponent - 6))])
    tail = delta * 1e-8 / steps
    ends = [_near_end(release, direction, tail) for _, release in releases]
    reach = sum(abs(count * float(end)) for (count, _), end in zip(releases, ends, strict=True))
    side = 1 if direction == "remove" else -1
    # Of what is above epsilon + 12, delta has all; sums that are too low for the rest never reach epsilon.
    far = (
        float(max(epsilons, key=float)) + 12 + reach
        if side == 1
        else float(min(epsilons, key=float)) - reach * (1 + 1e-9) - 1e-12 * positive
    )
    points = math.ceil(POINTS[direction] * 2.0**finer)
    frames = [Frame(points, upper, side, far, int(tail * 2.0**BITS)) for upper in sides]
    cells = [
        cells_of(release, end, exponent, replace(frames[0], upper=False))
        for (_, release), end in zip(releases, ends, strict=True)
    ]
    found = [[one, most if epsilon >= 0 else arb(1)] for one, epsilon in zip(least, epsilons, strict=True)]
    for frame in frames:
        total = None
        for (count, _), end, own in zip(releases, ends, cells, strict=True):
            repeated = power(on_grids(own, end, exponent, frame), count, frame)
            total = repeated if total is None else added(total, repeated, frame)
        for epsilon, bounds in zip(epsilons, found, strict=True):
            here = delta_of(total, epsilon, frame)
            bounds[frame.upper] = here.min(bounds[True]) if frame.upper else here.max(bounds[False])
    return [(low, high) for low, high in found]


def _loss(pair: Pair, outcome: float) -> float:
    """About the loss at an outcome."""
    u = arb(outcome)
    own, other = (
        sum((weight * (mean * (u - mean / 2)).exp() for weight, mean in side), arb(0))
        for side in (pair.own, pair.other)
    )
    return float((own / other).log())


def _near_end(release: Release, direction: Direction, tail: float) -> Fraction:
    """Where scales start: the lowest loss but for the mass `tail`, or the highest."""
    far = math.sqrt(2 * math.log(1 / tail)) + 0.1
    sign = -1 if direction == "remove" else 1
    ends = []
    for _, pair in release.pairs:
        means = [float(mean) for _, mean in pair.own]
        ends.append(_loss(pair, min(means) - far if sign < 0 else max(means) + far))
    end = min(*ends, 0.0) if sign < 0 else max(*ends, 0.0)
    return Fraction(end) * (1 + Fraction(1, 1 << 50))
