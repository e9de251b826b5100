"""Sums of independent losses whose masses are on grids (`ball_grids`), and their delta."""

import functools
import math
from fractions import Fraction

from flint import arb, fmpz_poly

from tests.support.ball_grids import BITS, PART_BITS, UNIT, Frame, Sums, ball, parts_up


def delta_of(sums: Sums, epsilon: arb, frame: Frame) -> arb:
    found = arb(sums.infinite)
    for scale, masses in enumerate(sums.scales):
        spacing = arb(2) ** (sums.exponent + scale) * frame.side
        start = epsilon - ball(sums.start)
        for index, mass in enumerate(masses):
            if mass and (away := start - spacing * index) < 0:
                found -= mass * away.expm1()
    found = found * UNIT
    return found.upper() if frame.upper else found.lower()


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
        downs = [mass * lower_share >> PART_BITS for mass in odd]
    else:
        downs = [
            mass - (mass * part >> PART_BITS)
            for mass, part in zip(odd, parts_up([max(1, m * grown) for m in odd], [m << 128 for m in odd]), strict=True)
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
    share = int((arb(2) ** PART_BITS / (1 + grown)).lower().floor().unique_fmpz() or 0)
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


def added(one: Sums, other: Sums, frame: Frame) -> Sums:
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


def power(once: Sums, times: int, frame: Frame) -> Sums:
    found, first = once, once.exponent
    for number, bit in enumerate(f"{times:b}"[1:], 1):
        found = added(found, found, frame)
        found = _coarser(found, first + number // 2, frame)
        if bit == "1":
            found = added(found, once, frame)
    return found
