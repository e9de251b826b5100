"""Which shares of a secret fit together though others are wrong: Reed-Solomon codes, decoded as by Gao (2003).

Polynomials are lists of coefficients modulo the prime of `shamir`, the lowest first, and the last one not 0.
"""

from collections.abc import Mapping

from fedlm.fedlm_client.secure_aggregation.shamir import PRIME, evaluated

Polynomial = list[int]


def fitting(shares: Mapping[int, int], threshold: int) -> list[int]:
    """Find all shares of one secret, where at most half of those beyond the threshold are wrong; else any.

    Args:
      shares: by place, below the prime.
      threshold: how many give the secret back.

    Returns:
      Places, in the order of `shares`.
    """
    # Euclid's algorithm, up to half of the way: what stands beside the rest is 0 at the places of wrong shares alone.
    whole: Polynomial = [1]
    for place in shares:
        whole = _product(whole, [-place % PRIME, 1])
    before, rest = whole, _through(shares, whole)
    other, wrong = list[int](), [1]
    while 2 * (len(rest) - 1) >= len(shares) + threshold:
        quotient, before, rest = _divided(before, rest)
        other, wrong = wrong, _difference(other, _product(quotient, wrong))
    return [place for place in shares if evaluated(wrong, place)]


def _through(shares: Mapping[int, int], whole: Polynomial) -> Polynomial:
    """Interpolate, by the product of X minus each place."""
    total = [0] * len(shares)
    for place, value in shares.items():
        others, carried = list[int](), 0
        for coefficient in whole[:0:-1]:
            carried = (coefficient + carried * place) % PRIME
            others.append(carried)
        scale = value * pow(evaluated(others[::-1], place), -1, PRIME)
        total = [(one + scale * coefficient) % PRIME for one, coefficient in zip(total, others[::-1], strict=True)]
    return _trimmed(total)


def _divided(one: Polynomial, by: Polynomial) -> tuple[Polynomial, Polynomial, Polynomial]:
    """Give the quotient, the divisor and the rest."""
    rest, quotient, inverse = [*one], list[int](), pow(by[-1], -1, PRIME)
    for shift in range(len(one) - len(by), -1, -1):
        factor = rest.pop() * inverse % PRIME
        quotient.append(factor)
        for place, coefficient in enumerate(by[:-1], shift):
            rest[place] = (rest[place] - factor * coefficient) % PRIME
    return quotient[::-1], by, _trimmed(rest)


def _product(one: Polynomial, other: Polynomial) -> Polynomial:
    total = [0] * (len(one) + len(other) - 1)
    for place, coefficient in enumerate(one):
        for shift, factor in enumerate(other, place):
            total[shift] = (total[shift] + coefficient * factor) % PRIME
    return total


def _difference(one: Polynomial, other: Polynomial) -> Polynomial:
    length = max(len(one), len(other))
    pairs = zip(one + [0] * (length - len(one)), other + [0] * (length - len(other)), strict=True)
    return _trimmed([(left - right) % PRIME for left, right in pairs])


def _trimmed(one: Polynomial) -> Polynomial:
    while one and not one[-1]:
        one.pop()
    return one
