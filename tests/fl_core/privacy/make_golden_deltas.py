"""Make `golden_deltas.json`: deltas of a few sampled Gaussian releases, with 30 digits and none of fedlm's code.

`python -m tests.fl_core.privacy.make_golden_deltas` takes some minutes.

With P = (1 - q) N(0, 1) + q N(m, 1) and Q = N(0, 1) (`remove`; the other way about for `add`), one release has
`delta_1(epsilon) = P(L > epsilon) - exp(epsilon) Q(L > epsilon)`, by the normal distribution function, and one more
release `delta_(T + 1)(epsilon) = E[delta_T(epsilon - L)]`. The expectations are trapezoidal sums, whose error for these
integrands falls exponentially with the inverse of the step.
"""

import itertools
import json
import math
from pathlib import Path

import mpmath

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
    """Compute delta at epsilon."""
    shift, q = 1 / mpmath.mpf(noise_multiplier), mpmath.mpf(probability)
    step = mpmath.mpf("0.04") if releases > 2 else mpmath.mpf("0.01")
    step *= min(1, 1 / shift)
    outcomes = [number * step for number in range(int(-16 / step), int((16 + 30 * shift) / step))]
    weights, losses = [], []
    for u in outcomes:
        loss = mpmath.log(1 - q + q * mpmath.exp(shift * u - shift**2 / 2))
        density = mpmath.npdf(u) * step
        weights.append(density * mpmath.exp(loss) if direction == "remove" else density)
        losses.append(loss if direction == "remove" else -loss)
    pairs = [(weight, loss) for weight, loss in zip(weights, losses, strict=True) if weight > mpmath.mpf("1e-40")]
    total = mpmath.mpf(0)
    for places in itertools.combinations_with_replacement(range(len(pairs)), releases - 1):
        repeated = [len(list(group)) for _, group in itertools.groupby(places)]
        orders = mpmath.factorial(releases - 1) / mpmath.fprod(mpmath.factorial(count) for count in repeated)
        weight = mpmath.fprod(pairs[place][0] for place in places)
        if weight > mpmath.mpf("1e-36"):
            left = mpmath.mpf(epsilon) - mpmath.fsum(pairs[place][1] for place in places)
            total += orders * weight * _single(shift, q, left, direction)
    return total


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
            value = delta(noise_multiplier, probability, releases, of, direction)
            case = (noise_multiplier, probability, releases, of, direction)
            found.append([*case, mpmath.nstr(value, 15)])
            print(*found[-1])
    PATH.write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
