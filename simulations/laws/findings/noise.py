"""What doubling budgets gains in noise, by accounting alone, and what a larger epsilon changes in the best training."""

import numpy as np
from numpy.typing import ArrayLike

from fedlm.simulations.laws.figures.exact_noise import noise_multipliers
from fedlm.simulations.laws.figures.searching import DELTA, EPSILONS, TrainingSearch
from fedlm.simulations.laws.figures.tables import in_words
from fedlm.simulations.laws.findings.best_trainings import inside
from fedlm.simulations.laws.findings.finding import FEW, MOST, Finding, judged

_CLAIMED = {"N": 1.0, "epsilon": 0.5, "T": -0.5}
_START = {"examples": 2.0**24, "epsilon": 0.25, "batch": 2.0**10}
_STEPS, _DOUBLINGS = 16_000, 7


def returns_of_doubling() -> dict[str, list[float]]:
    """Compute what each of several doublings, one after the other, takes off the noise-batch ratio at 16,000 steps.

    Of one budget alone, and of two together; 1 is a halved ratio. They begin at 2^24 examples, epsilon 1/4 and batches
    of 1,024.
    """
    doublings = 2.0 ** np.arange(_DOUBLINGS + 1)
    gains = {}
    for names in (("epsilon",), ("batch",), ("examples",), ("epsilon", "batch"), ("examples", "batch")):
        at = {name: value * (doublings if name in names else np.ones_like(doublings)) for name, value in _START.items()}
        ratios = _ratios(at["examples"], at["epsilon"], at["batch"], _STEPS)
        gains[" and ".join(names)] = (ratios[:-1] / ratios[1:] - 1).tolist()
    return gains


def _ratios(examples: ArrayLike, epsilon: ArrayLike, batch_size: ArrayLike, steps: ArrayLike) -> np.ndarray:
    batch_size = np.asarray(batch_size, np.float64)
    return np.asarray(noise_multipliers(batch_size / examples, steps, epsilon, DELTA) / batch_size)


def returns_of_batches() -> dict[str, float]:
    """Compute how the batch at which doubling it stops to pay depends on N, epsilon and T: the exponent of each.

    That is the batch where doubling it divides the noise-batch ratio by the square root of two, half of what it can
    in logarithms; around 1e8 examples, epsilon 4 and 10,000 steps, by a factor of 16 to both sides (8 of epsilon).
    """
    middle = {"N": 1e8, "epsilon": 4.0, "T": 1e4}
    exponents = {}
    for name, factor in (("N", 16.0), ("epsilon", 8.0), ("T", 16.0)):
        ends = [_batch_of_half_returns(**middle | {name: middle[name] * part}) for part in (1 / factor, factor)]
        exponents[name] = float(np.log(ends[1] / ends[0]) / np.log(factor**2))
    return exponents


def _batch_of_half_returns(N: float, epsilon: float, T: float) -> float:  # noqa: N803
    batches = 2.0 ** np.arange(10, np.floor(np.log2(N / 4)) + 1)
    gains = np.log2(_ratios(N, epsilon, batches, T) / _ratios(N, epsilon, 2 * batches, T))
    at = int(np.argmax(gains < 0.5))
    part = (gains[at - 1] - 0.5) / (gains[at - 1] - gains[at])
    return float(batches[at - 1] * 2**part)


def larger_epsilon(search: TrainingSearch) -> Finding:
    """Test what FINDINGS has it for."""
    claim = (
        "With a larger epsilon the best model is slightly larger, the batch smaller and the steps more; and the batch "
        "beyond which returns diminish grows like N sqrt(epsilon / T) (section 4.1)."
    )
    exponents = returns_of_batches()
    numbers = [
        (f"exponent of {name} in that batch (exact; claimed {told:g})", in_words(exponents[name]))
        for name, told in _CLAIMED.items()
    ]
    law = all(abs(exponents[name] - told) <= 0.1 for name, told in _CLAIMED.items())
    tables = [inside(search, 1e8, epsilon) for epsilon in (EPSILONS[0], EPSILONS[-1])]
    both = np.intersect1d(tables[0]["compute"], tables[1]["compute"])
    if len(both) < FEW:
        why = "fewer than three computes have best trainings inside of the grid at epsilon 1 and at 64"
        return Finding(2, claim, "not reached", why, tuple(numbers))
    low, high = (
        {name: table[name][np.isin(table["compute"], both)] for name in ("parameters", "batch_size", "steps")}
        for table in tables
    )
    shares = {
        "larger models": float(np.mean(high["parameters"] >= low["parameters"])),
        "smaller batches": float(np.mean(high["batch_size"] <= low["batch_size"])),
        "more steps": float(np.mean(high["steps"] >= low["steps"])),
    }
    numbers += [
        (f"share of {len(both)} computes with {name} at epsilon 64 than at 1", f"{share:.0%}")
        for name, share in shares.items()
    ]
    why = "each to be so at 80 % of computes, and the exponents to be within 0.1"
    return Finding(2, claim, judged(law and min(shares.values()) >= MOST), why, tuple(numbers))


def doubling() -> Finding:
    """Test what FINDINGS has it for; exact."""
    claim = (
        "At fixed steps, doubling one of epsilon, batch and examples alone has diminishing returns in the "
        "noise-batch ratio; epsilon and batch together, or examples and batch together, do not (section 4.5)."
    )
    gains = returns_of_doubling()
    numbers = tuple(
        (f"gains of doubling {name} again and again (1 halves the ratio)", ", ".join(f"{gain:.2f}" for gain in one))
        for name, one in gains.items()
    )
    alone = [min(gains[name]) for name in ("epsilon", "batch", "examples")]
    together = [min(gains[name]) for name in ("epsilon and batch", "examples and batch")]
    why = "exact: alone the gain to fall below 0.5, together to stay above 0.75"
    return Finding(6, claim, judged(max(alone) < 0.5 and min(together) > 0.75), why, numbers)
