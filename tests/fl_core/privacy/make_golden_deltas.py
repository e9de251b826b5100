"""Make `golden_deltas.json`: deltas of a few sampled Gaussian releases, with none of fedlm's code.

`python -m tests.fl_core.privacy.make_golden_deltas` takes a minute.

With P = (1 - q) N(0, 1) + q N(m, 1) and Q = N(0, 1) (`remove`; the other way about for `add`), one release has
`delta_1(epsilon) = P(L > epsilon) - exp(epsilon) Q(L > epsilon)`, by the normal distribution function, and one more
release `delta_(T + 1)(epsilon) = E[delta_T(epsilon - L)]`. The expectations are trapezoidal sums: of one and two
releases with 30 digits, of three in float64 with small steps, since all derivatives of `delta_1` vanish where the loss
has its bound, so that the error falls slowly with the step; half the step changes less than a millionth.
"""

import json
import math
from pathlib import Path

import mpmath
import numpy as np
from scipy.special import ndtr

PATH = Path(__file__).with_name("golden_deltas.json")
_CASES = [
    # noise multiplier, probability, releases, epsilon
    (1.0, 0.1, 1, 1.0),
    (0.5, 0.01, 1, 12.0),
    (1.0, 0.1, 2, 3.0),
    (0.7, 0.001, 2, 4.0),
    (2.0, 0.5, 3, 2.0),
    (1.0, 0.02, 3, 3.0),
]


def delta(noise_multiplier: float, probability: float, releases: int, epsilon: float, direction: str) -> mpmath.mpf:
    """Compute delta at epsilon, of one or two releases."""
    shift, q = 1 / mpmath.mpf(noise_multiplier), mpmath.mpf(probability)
    if releases == 1:
        return _single(shift, q, mpmath.mpf(epsilon), direction)
    step = mpmath.mpf("0.01") * min(1, 1 / shift)
    total = mpmath.mpf(0)
    for number in range(int(-16 / step), int((16 + 30 * shift) / step)):
        u = number * step
        loss = mpmath.log(1 - q + q * mpmath.exp(shift * u - shift**2 / 2))
        weight = mpmath.npdf(u) * step * (mpmath.exp(loss) if direction == "remove" else 1)
        if weight > mpmath.mpf("1e-40"):
            total += weight * _single(shift, q, epsilon - (loss if direction == "remove" else -loss), direction)
    return total


def delta_of_three(noise_multiplier: float, probability: float, epsilon: float, direction: str) -> float:
    """Compute delta of three releases at epsilon, in float64."""
    shift, q, step = 1 / noise_multiplier, probability, 0.005
    u = np.arange(-12, 12 + 6 * shift, step)
    loss = np.log1p(q * np.expm1(shift * u - shift**2 / 2))
    weight = np.exp(-np.square(u) / 2) * step / math.sqrt(2 * math.pi)
    weight, loss = (weight * np.exp(loss), loss) if direction == "remove" else (weight, -loss)

    def single(left: np.ndarray) -> np.ndarray:
        odds = (np.expm1(left if direction == "remove" else -left) + q) / q
        at = np.log(np.where(odds > 0, odds, 1.0)) / shift + shift / 2
        if direction == "remove":
            inside = (1 - q) * ndtr(-at) + q * ndtr(shift - at) - np.exp(left) * ndtr(-at)
            return np.where(odds > 0, inside, -np.expm1(left))
        inside = ndtr(at) - np.exp(left) * ((1 - q) * ndtr(at) + q * ndtr(at - shift))
        return np.where(odds > 0, inside, 0.0)

    return math.fsum(
        float(one * (weight @ single(epsilon - first - loss))) for one, first in zip(weight, loss, strict=True)
    )


def _single(shift: mpmath.mpf, q: mpmath.mpf, epsilon: mpmath.mpf, direction: str) -> mpmath.mpf:
    def upper(u: mpmath.mpf) -> mpmath.mpf:
        return mpmath.ncdf(-u)

    odds = (mpmath.exp(epsilon if direction == "remove" else -epsilon) - 1 + q) / q
    if direction == "remove":
        if odds <= 0:
            return 1 - mpmath.exp(epsilon)
        at = mpmath.log(odds) / shift + shift / 2
        return (1 - q) * upper(at) + q * upper(at - shift) - mpmath.exp(epsilon) * upper(at)
    if odds <= 0:
        return mpmath.mpf(0)
    at = mpmath.log(odds) / shift + shift / 2
    return upper(-at) - mpmath.exp(epsilon) * ((1 - q) * upper(-at) + q * upper(shift - at))


def _high_loss(probability: float, releases: int) -> float:
    """Where the loss of `add`, which has a bound, is not far below it."""
    return float(f"{-math.log1p(-probability) * releases * 0.6:.3g}")


def main() -> None:
    """Write the file."""
    mpmath.mp.dps = 30
    found = []
    for noise_multiplier, probability, releases, epsilon in _CASES:
        for direction, of in (("remove", epsilon), ("add", _high_loss(probability, releases))):
            case = (noise_multiplier, probability, releases, of, direction)
            if releases == 3:
                value = f"{delta_of_three(noise_multiplier, probability, of, direction):.9g}"
            else:
                value = mpmath.nstr(delta(*case), 15)
            found.append([*case, value])
            print(*found[-1])
    PATH.write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
