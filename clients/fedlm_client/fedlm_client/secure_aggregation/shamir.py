"""Shares of 256-bit secrets, of which so many give the secret back and fewer say nothing of it (Shamir 1979)."""

import functools
import itertools
import math
import secrets
from collections.abc import Iterable, Mapping

PRIME = 2**256 + 297
SHARE_BYTES, SECRET_BYTES = 33, 32


def split(secret: bytes, threshold: int, places: Iterable[int]) -> dict[int, bytes]:
    """Share a secret of 32 bytes.

    Args:
      secret: what is shared.
      threshold: how many shares give it back.
      places: at which the polynomial is evaluated; all different, and none a multiple of the prime.

    Returns:
      The share of each place, 33 bytes.
    """
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    whole = int.from_bytes(secret, "big")
    return {place: evaluated([whole, *coefficients], _checked(place)).to_bytes(SHARE_BYTES, "big") for place in places}


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Compute the secret from exactly as many shares as its threshold.

    Raises:
      ValueError: a share is no number of the field, or they are not of one secret of 32 bytes.
    """
    value = value_at(shares, 0)
    if value >> 8 * SECRET_BYTES:
        raise ValueError("the shares are not of one secret of 32 bytes")
    return value.to_bytes(SECRET_BYTES, "big")


def value_at(shares: Mapping[int, bytes], place: int) -> int:
    """Evaluate the polynomial through some shares at a place; raises `ValueError` where a share is no number."""
    values = {one: int.from_bytes(share, "big") for one, share in shares.items()}
    if any(len(share) != SHARE_BYTES for share in shares.values()) or max(values.values()) >= PRIME:
        raise ValueError("a share is no number of the field")
    places = tuple(sorted(values))
    below = [1, *itertools.accumulate((place - one for one in places[:-1]), _times)]
    above = [1, *itertools.accumulate((place - one for one in places[:0:-1]), _times)][::-1]
    scaled = (values[one] * inverse for one, inverse in zip(places, _inverses(places), strict=True))
    return sum(one * (low * high % PRIME) for one, low, high in zip(scaled, below, above, strict=True)) % PRIME


def evaluated(coefficients: list[int], place: int) -> int:
    """Evaluate a polynomial, the lowest coefficient first, modulo the prime."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value


@functools.lru_cache(64)
def _inverses(places: tuple[int, ...]) -> tuple[int, ...]:
    """Compute what Lagrange's interpolation divides each value by, inverted: all by one inversion (Montgomery)."""
    products = [math.prod(one - other for other in places if other != one) % PRIME for one in map(_checked, places)]
    running = list(itertools.accumulate(products, _times))
    inverse, found = pow(running[-1], -1, PRIME), []
    for product, before in zip(products[::-1], [*running[-2::-1], 1], strict=True):
        found.append(inverse * before % PRIME)
        inverse = inverse * product % PRIME
    return tuple(found[::-1])


def _times(one: int, other: int) -> int:
    return one * other % PRIME


def _checked(place: int) -> int:
    if not 0 < place < PRIME:
        raise ValueError(f"a share at {place} would be the secret, or is none")
    return place
