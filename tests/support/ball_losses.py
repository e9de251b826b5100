"""Delta of sums of privacy losses between two bounds that are theorems: by balls (Arb) and by whole numbers.

A second way to what `fl_core.privacy.accounting` computes. It shares nothing with the first but the description of
releases. With Y = exp(-S), S the sum of the losses under P, `delta(epsilon) = E[max(0, 1 - exp(epsilon) Y)]` is the
mean of a function that is convex in each release's factor of Y, and falls in it. So delta only rises where a mass is
spread over two points such that the mean of exp(-loss) stays, and where it is moved upwards. It only falls where masses
are merged at the mean of exp(-loss), and where they are moved downwards.

A single release is exact: complementary error functions in balls. Sums are of masses on grids. A mass is a whole number
of units of 2^-160, rounded up for the upper bound and down for the lower. Products of polynomials over whole numbers
are exact. Points far from where a grid starts lie on coarser grids with the same start, the scales.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from flint import arb, ctx, fmpz_poly

from fedlm.fl_core.privacy.accounting.loss_pairs import Direction, truncation
from fedlm.fl_core.privacy.accounting.release_events import Event, GaussianEvent, StatedEvent

BITS = 160
"""Masses are whole numbers of units of 2^-BITS."""
_PART_BITS = 64
ctx.prec = 256
INFINITE = arb("inf")
UNIT = arb(2) ** -BITS
_ROOT_HALF = arb(0.5).sqrt()


@dataclass(frozen=True)
class Pair:
    """P and Q as mixtures of normal distributions of variance 1, and the loss, which rises with the outcome.

    Attributes:
      own: weights and means of P.
      other: weights and means of Q.
      outcome: of the exponential of a loss; None where the loss is always larger, infinite where it is always smaller.
      rare: with which the person takes part.
    """

    own: tuple[tuple[arb, arb], ...]
    other: tuple[tuple[arb, arb], ...]
    outcome: Callable[[arb], arb | None]
    rare: arb

    def above(self, ratio: arb) -> tuple[arb, arb]:
        """P's and Q's mass where the exponential of the loss is above this."""
        outcome = self.outcome(ratio)
        if outcome is None:
            return arb(1), arb(1)
        if outcome == INFINITE:
            return arb(0), arb(0)
        return tuple(
            sum((weight * ((outcome - mean) * _ROOT_HALF).erfc() / 2 for weight, mean in side), arb(0))
            for side in (self.own, self.other)
        )


def _sampled(shift: arb, q: arb, direction: Direction) -> Pair:
    def ratio_at(ratio: arb) -> arb | None:
        odds = (ratio - (1 - q)) / q
        if odds <= 0:
            return None
        if not odds > 0:
            raise ArithmeticError("not enough digits")
        return odds.log() / shift + shift / 2

    mixed = ((1 - q, arb(0)), (q, shift)) if direction == "remove" else ((1 - q, arb(0)), (q, -shift))
    normal = ((arb(1), arb(0)),)
    if direction == "remove":
        return Pair(mixed, normal, ratio_at, q)

    def outcome(ratio: arb) -> arb:
        found = ratio_at(1 / ratio)
        return INFINITE if found is None else -found

    return Pair(normal, mixed, outcome, q)


def _replaced(shift: arb, q: arb) -> Pair:
    mixtures = (((1 - q, arb(0)), (q, sign * shift)) for sign in (1, -1))
    if q == 1:
        return Pair(*mixtures, lambda ratio: ratio.log() / (2 * shift), q)
    odds = q * (-(shift**2) / 2).exp() / (1 - q)

    def outcome(ratio: arb) -> arb:
        # Of the quadratic equation of exp(shift u).
        less, sign = (ratio - 1, 1) if not ratio < 1 else (1 / ratio - 1, -1)
        root = (less**2 + 4 * odds**2 * (less + 1)).sqrt()
        return sign * ((less + root) / (2 * odds)).log() / shift

    return Pair(*mixtures, outcome, q)


@dataclass(frozen=True)
class Release:
    """The loss of one release: which of the pairs is at work is drawn by their weights, and known."""

    pairs: tuple[tuple[arb, Pair], ...]

    def delta(self, epsilon: arb) -> arb:
        """Exactly."""
        ratio = epsilon.exp()
        found = arb(0)
        for weight, pair in self.pairs:
            own, other = pair.above(ratio)
            found += weight * (own - ratio * other)
        return found


def release_of(event: GaussianEvent, direction: Direction) -> Release:
    """Describe a release anew from its event."""
    shift, q = 1 / arb(event.noise_multiplier), arb(event.sampling_probability)
    whole = _sampled(shift, q, direction)
    if event.population is None or event.most is None:
        return Release(((arb(1), whole),))
    cut, replaced = truncation(event.sampling_probability, event.population, event.most)
    if not cut:
        return Release(((arb(1), whole),))
    return Release(((1 - arb(cut), whole), (arb(cut), _replaced(2 * shift, arb(replaced)))))


@dataclass(frozen=True)
class Frame:
    """What all sums of one composition have in common.

    Attributes:
      points: of a scale.
      upper: whether they are bounds from above.
      side: 1 where scales start at the lowest loss, -1 at the highest.
      far: what is beyond is of no account.
      tail: mass, in units, that may be cut off.
    """

    points: int
    upper: bool
    side: int
    far: float
    tail: int


@dataclass(frozen=True)
class Sums:
    """Masses at `start + side 2^(exponent + scale) index`, and of infinite loss."""

    start: Fraction
    exponent: int
    scales: list[list[int]]
    infinite: int = 0


def deltas(
    events: Sequence[Event], direction: Direction, epsilons: Sequence[float], delta: float, points: int
) -> list[tuple[arb, arb]]:
    """Bound delta from below and from above, at epsilons that are about that at delta, on scales of so many points."""
    sampled = [event for event in events if isinstance(event, GaussianEvent)]
    releases = [(event.count, release_of(event, direction)) for event in sampled if event.sampling_probability < 1]
    # Noise that hides everybody is that of one release.
    whole = [event for event in sampled if event.sampling_probability == 1]
    if whole:
        shift = sum((event.count / arb(event.noise_multiplier) ** 2 for event in whole), arb(0)).sqrt()
        releases.append((1, Release(((arb(1), _sampled(shift, arb(1), direction)),))))
    stated = _stated_sums([event for event in events if isinstance(event, StatedEvent)])
    wanted = [[epsilon - at for at, _ in stated] for epsilon in epsilons]
    of_rest = _deltas_of(releases, direction, [at for row in wanted for at in row], delta, points)
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
    releases: list[tuple[int, Release]], direction: Direction, epsilons: list[arb], delta: float, points: int
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
    exponent = math.floor(math.log2(positive * math.sqrt(fine)))
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
    frames = [Frame(points, upper, side, far, int(tail * 2.0**BITS)) for upper in (False, True)]
    cells = [_cells_of(release, end, exponent, frames[0]) for (_, release), end in zip(releases, ends, strict=True)]
    found: list[list[arb]] = [[] for _ in epsilons]
    for frame in frames:
        total = None
        for (count, _), end, own in zip(releases, ends, cells, strict=True):
            power = _power(_on_grids(own, end, exponent, frame), count, frame)
            total = power if total is None else _added(total, power, frame)
        for epsilon, bounds in zip(epsilons, found, strict=True):
            bounds.append(_delta_of(total, epsilon, frame))
    return [
        (low.max(one), high.min(most) if epsilon >= 0 else high)
        for one, (low, high), epsilon in zip(least, found, epsilons, strict=True)
    ]


def _delta_of(sums: Sums, epsilon: arb, frame: Frame) -> arb:
    found = arb(sums.infinite)
    for scale, masses in enumerate(sums.scales):
        spacing = arb(2) ** (sums.exponent + scale) * frame.side
        start = epsilon - _ball(sums.start)
        for index, mass in enumerate(masses):
            if mass and (away := start - spacing * index) < 0:
                found -= mass * away.expm1()
    found = found * UNIT
    return found.upper() if frame.upper else found.lower()


def _ball(number: Fraction) -> arb:
    return arb(number.numerator) / arb(number.denominator)


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


def _floor(ball: arb) -> int:
    mantissa, exponent = ball.lower().man_exp()
    return _shifted(int(mantissa), int(exponent) + BITS)


def _ceiling(ball: arb) -> int:
    mantissa, exponent = ball.upper().man_exp()
    return -_shifted(-int(mantissa), int(exponent) + BITS)


def _shifted(mantissa: int, exponent: int) -> int:
    return mantissa << exponent if exponent >= 0 else mantissa >> -exponent


@dataclass(frozen=True)
class Cells:
    """Points of all scales from the lowest loss to the highest, and what of a release lies between each two.

    Attributes:
      places: scale and index of each point.
      losses: of the points.
      ratios: their exponentials.
      widths: of the intervals.
      masses: P's and Q's in each interval.
      under: P's below the first point.
      over: P's above the last.
    """

    places: list[tuple[int, int]]
    losses: list[arb]
    ratios: list[arb]
    widths: list[Fraction]
    masses: list[tuple[arb, arb]]
    under: arb
    over: arb


def _cells_of(release: Release, start: Fraction, exponent: int, frame: Frame) -> Cells:
    places, points, above = [], [], []
    scale = index = 0
    while True:
        points.append(start + frame.side * Fraction(2) ** (exponent + scale) * index)
        places.append((scale, index))
        ratio = _ball(points[-1]).exp()
        own, other = arb(0), arb(0)
        for weight, pair in release.pairs:
            here = pair.above(ratio)
            own, other = own + weight * here[0], other + weight * here[1]
        above.append((own, other))
        beyond = frame.side * (float(points[-1]) - frame.far) > 0
        rest = own if frame.side > 0 else sum((weight for weight, _ in release.pairs), arb(0)) - own
        if index and (beyond or rest < arb(frame.tail) * UNIT):
            break
        index += 1
        if index == frame.points:
            scale, index = scale + 1, frame.points // 2
    if frame.side < 0:
        places, points, above = places[::-1], points[::-1], above[::-1]
    losses = [_ball(point) for point in points]
    masses = [(a - b, c - d) for (a, c), (b, d) in itertools.pairwise(above)]
    whole = sum((weight for weight, _ in release.pairs), arb(0))
    return Cells(
        places,
        losses,
        [loss.exp() for loss in losses],
        [b - a for a, b in itertools.pairwise(points)],
        masses,
        whole - above[0][0],
        above[-1][0],
    )


def _on_grids(cells: Cells, start: Fraction, exponent: int, frame: Frame) -> Sums:
    """Put a single loss on scales."""
    masses = _of_cells(cells, frame.upper)
    if frame.upper:
        masses[0] += _ceiling(cells.under)
    else:
        masses[-1] += max(0, _floor(cells.over))
    scales = [[0] * (frame.points + 1) for _ in range(1 + max(scale for scale, _ in cells.places))]
    for (scale, index), mass in zip(cells.places, masses, strict=True):
        scales[scale][index] += mass
    return Sums(start, exponent, scales, _ceiling(cells.over) if frame.upper else 0)


def _of_cells(cells: Cells, upper: bool) -> list[int]:
    """Masses at points of what lies between each two of them."""
    masses = [0] * len(cells.places)
    # How far a cell pulls the point above it down, and the point below it up.
    down = [other * ratio - own for (own, other), ratio in zip(cells.masses, cells.ratios[1:], strict=True)]
    if upper:
        for index, ((own, _), pull) in enumerate(zip(cells.masses, down, strict=True)):
            units = max(0, min(_floor(pull / _ball(cells.widths[index]).expm1()), _ceiling(own)))
            masses[index] += units
            masses[index + 1] += _ceiling(own) - units
        return masses
    up = [own - other * ratio for (own, other), ratio in zip(cells.masses, cells.ratios, strict=False)]
    whole = [max(0, _floor(own)) for own, _ in cells.masses]
    pulls = [max(1, _ceiling(pull)) for pull in down], [max(0, _floor(pull)) for pull in up]
    for index, (mass, part) in enumerate(zip(whole, _parts_up(*pulls), strict=True)):
        masses[index + 1] += mass * part >> _PART_BITS
        masses[index] += mass - (mass * part >> _PART_BITS)
    return masses


def _parts_up(down: list[int], up: list[int]) -> list[int]:
    """Choose parts a of cells that go up, in units of 2^-64, such that `a_i down_i <= (1 - a_(i+1)) up_(i+1)`."""
    one = 1 << _PART_BITS
    # The highest cell goes down.
    ratios = [
        here / above if above and here < above << 900 else math.inf for here, above in zip(down, up[1:], strict=False)
    ]
    ratios += [math.inf] * (len(down) - len(ratios))
    parts = [
        int(one / (1 + max(ratio, before)) * (1 - 1e-12))
        for ratio, before in zip(ratios, [0.0, *ratios[:-1]], strict=False)
    ]
    for index in range(len(parts) - 1):
        parts[index] = min(parts[index], (one - parts[index + 1]) * up[index + 1] // down[index])
    return parts


def _halved(masses: list[int], exponent: int, frame: Frame) -> list[int]:
    """Move masses to every second point."""
    if not any(masses):
        return []
    masses = masses + [0] * (1 - len(masses) % 2)
    if frame.side < 0:
        masses = masses[::-1]
    even, odd = masses[::2], masses[1::2]
    lower_share, grown = _shares(exponent)
    if frame.upper:
        downs = [mass * lower_share >> _PART_BITS for mass in odd]
    else:
        downs = [
            mass - (mass * part >> _PART_BITS)
            for mass, part in zip(
                odd, _parts_up([max(1, m * grown) for m in odd], [m << 128 for m in odd]), strict=True
            )
        ]
    for index, (mass, down) in enumerate(zip(odd, downs, strict=True)):
        even[index] += down
        even[index + 1] += mass - down
    return even[::-1] if frame.side < 0 else even


def _promoted(masses: list[int], exponent: int, frame: Frame) -> tuple[list[int], list[int]]:
    """Keep a scale's points, and move what is beyond to the next scale."""
    first = frame.points if frame.upper else frame.points - 1
    kept, moved = masses[:first], _halved([0] * first + masses[first:], exponent, frame)
    if not frame.upper and moved:
        # What the last odd point would lose to the even one before it stays where it is.
        kept.append(moved[first // 2])
        moved[first // 2] = 0
    return kept, moved if any(moved) else []


@functools.cache
def _shares(exponent: int) -> tuple[int, int]:
    """The part of a mass that goes down, from below; and e to the spacing, from above, in units of 2^-128."""
    grown = (arb(2) ** exponent).exp()
    share = int((arb(2) ** _PART_BITS / (1 + grown)).lower().floor().unique_fmpz() or 0)
    return share, int((grown * arb(2) ** 128).upper().ceil().unique_fmpz())


def _coarser(sums: Sums, exponent: int, frame: Frame) -> Sums:
    while sums.exponent < exponent:
        first, *others = sums.scales
        moved = _halved(first, sums.exponent, frame)
        scales = [_sum(moved, others[0]) if others else moved, *others[1:]]
        sums = Sums(sums.start, sums.exponent + 1, scales, sums.infinite)
    return sums


def _sum(one: list[int], other: list[int]) -> list[int]:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    return [*(a + b for a, b in zip(longer, shorter, strict=False)), *longer[len(shorter) :]]


def _added(one: Sums, other: Sums, frame: Frame) -> Sums:
    """The sum of two independent losses."""
    exponent = max(one.exponent, other.exponent)
    one, other = _coarser(one, exponent, frame), _coarser(other, exponent, frame)
    scales: list[list[int]] = []
    low_one: list[int] = []
    low_other: list[int] = []
    carried: list[int] = []
    for scale in range(max(len(one.scales), len(other.scales))):
        here, there = (
            _sum(low, sums.scales[scale]) if scale < len(sums.scales) else low
            for low, sums in ((low_one, one), (low_other, other))
        )
        product = fmpz_poly(here) * fmpz_poly(there) - fmpz_poly(low_one) * fmpz_poly(low_other)
        units = [int(value) for value in product.coeffs()]
        units = [-(-unit >> BITS) for unit in units] if frame.upper else [unit >> BITS for unit in units]
        masses = _sum(units, carried)
        kept, carried = _promoted(masses, exponent + scale, frame)
        scales.append(kept)
        low_one, low_other = (_halved(low, exponent + scale, frame) for low in (here, there))
    while carried:
        kept, carried = _promoted(carried, exponent + len(scales), frame)
        scales.append(kept)
    infinite = one.infinite + other.infinite
    if not frame.upper:
        infinite -= -(-one.infinite * other.infinite >> BITS)
    return _trimmed(Sums(one.start + other.start, exponent, scales, infinite), frame)


def _trimmed(sums: Sums, frame: Frame) -> Sums:
    """Leave out what is beyond the far end, and hardly any mass at both ends."""
    infinite, scales = sums.infinite, []
    for scale, masses in enumerate(sums.scales):
        spacing = 2.0 ** (sums.exponent + scale)
        most = max(0, math.ceil(frame.side * (frame.far - float(sums.start)) / spacing) + 1)
        kept, beyond = masses[:most], masses[most:]
        if any(beyond) and frame.side > 0:
            infinite += sum(beyond) if frame.upper else 0
            if kept and not frame.upper:
                kept[-1] += sum(beyond)
        cut, left = 0, frame.tail // len(sums.scales)
        while kept and cut + kept[-1] <= left:
            cut += kept.pop()
        if frame.upper and cut:
            infinite += cut  # the least that can be said, on either side
        scales.append(kept)
    exponent = sums.exponent
    while len(scales) > 1 and sum(scales[0]) <= frame.tail:
        scales = [_sum(_halved(scales[0], exponent, frame), scales[1]), *scales[2:]]
        exponent += 1
    while scales and not scales[-1]:
        scales.pop()
    if not scales:
        return Sums(sums.start, exponent, [[]], infinite)
    starts = [next((i for i, mass in enumerate(masses) if mass), None) for masses in scales]
    bound = min(
        (place << scale for scale, place in enumerate(starts) if place is not None and scale),
        default=len(scales[0]) - 1,
    )
    cut = place = 0
    while place < min(bound, len(scales[0]) - 1) and cut + scales[0][place] <= frame.tail:
        cut += scales[0][place]
        place += 1
    block = 1 << len(scales) - 1
    place = place // block * block
    cut = sum(scales[0][:place])
    scales = [masses[place >> scale :] for scale, masses in enumerate(scales)]
    if cut and frame.upper:
        if frame.side > 0:
            scales[0][0] += cut
        else:
            infinite += cut
    return Sums(sums.start + frame.side * Fraction(2) ** exponent * place, exponent, scales, infinite)


def _power(once: Sums, times: int, frame: Frame) -> Sums:
    found, first = once, once.exponent
    for number, bit in enumerate(f"{times:b}"[1:], 1):
        found = _added(found, found, frame)
        found = _coarser(found, first + number // 2, frame)
        if bit == "1":
            found = _added(found, once, frame)
    return found
