"""How much better a model knows planted sequences than chance: exposure (Carlini et al. 2019, "The secret sharer")."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedlm.fl_core.errors import DataError
from fedlm.fl_core.rounds.scores import example_sums
from fedlm.models.base import Model, Params
from fedlm.simulations.data.federated_data import InMemoryData, device_batches
from fedlm.simulations.evaluation.memorization.extraction import CONFIDENCE
from fedlm.simulations.pretraining.inserted_canaries import InsertedCanaries

CHANCE = 1 / math.log(2)
"""The mean exposure, in bits, of a sequence that the model has never seen: its rank is uniform."""


def exposure(canary_losses: NDArray[np.floating], reference_losses: NDArray[np.floating]) -> NDArray[np.float64]:
    """Compute exposures by ranks: `log2(

    R

    ) - log2(rank)`, with R the references and the canary itself.

    Losses are per token; the references are those of sequences drawn as the canaries were, and one of equal loss ranks
    before the canary. Returns float64 [canaries], in bits, from 0 (all references have a lower loss) to
    `log2(references + 1)` (none has). Raises DataError where a loss is not a number.
    """
    canaries, references = _finite(canary_losses), _finite(reference_losses)
    ranks = 1 + np.searchsorted(np.sort(references), canaries, side="right")
    return math.log2(len(references) + 1) - np.log2(ranks)


def extrapolated_exposure(
    canary_losses: NDArray[np.floating], reference_losses: NDArray[np.floating]
) -> tuple[NDArray[np.float64], float]:
    """Estimate exposures beyond what ranks can tell: `-log2 F(loss)`, with F a skew-normal fitted to the references.

    This is the approximation by distribution modelling of the paper; it is as good as the fit is far out in the tail.
    Takes what `exposure` takes, references not all equal; returns float64 [canaries], in bits, and the
    Kolmogorov-Smirnov distance of the references to the fit.
    """
    canaries, references = _finite(canary_losses), _finite(reference_losses)
    fit = stats.skewnorm(*stats.skewnorm.fit(references))
    bits = np.array([-_log_lower_tail(fit, loss) for loss in canaries]) / math.log(2)
    return np.maximum(bits, 0.0), float(stats.kstest(references, fit.cdf).statistic)


def median_interval(bits: NDArray[np.floating], largest: float) -> tuple[float, float]:
    """Bound the median exposure of such canaries with 95 % confidence, whatever the distribution, by order statistics.

    Fewer than 6 canaries tell nothing: the bounds are then 0 and the largest exposure that ranks can tell.
    """
    outer = int(stats.binom.ppf((1 - CONFIDENCE) / 2, len(bits), 0.5))
    if not outer:
        return 0.0, largest
    ordered = np.sort(bits)
    return float(ordered[outer - 1]), float(ordered[-outer])


def _log_lower_tail(fit: Any, point: float) -> float:
    """Integrate a density from minus infinity to a point, relative to its largest value there, lest it underflow."""
    grid = np.linspace(min(point, fit.mean()) - 40 * fit.std(), point, 100_001)
    logs = fit.logpdf(grid)
    largest = logs.max()
    return float(largest + math.log(np.trapezoid(np.exp(logs - largest), grid)))


def _finite(losses: NDArray[np.floating]) -> NDArray[np.float64]:
    found = np.asarray(losses, np.float64)
    if not np.isfinite(found).all():
        raise DataError("the model's loss of a random sequence is not a finite number; give a run that did not diverge")
    return found


def canary_exposures(
    model: Model, params: Params, canaries: InsertedCanaries, number_of_references: int
) -> dict[str, Any]:
    """Measure the exposure of the canaries that a causal model was trained on, among at least 2 references.

    Returns JSON-able exposures in bits, by repeats, and what they are to be read with.
    """
    references = token_losses(model, params, canaries.references(number_of_references))
    by_repeats = []
    fit_distance, largest = 0.0, math.log2(number_of_references + 1)
    for repeats, sequences in zip(canaries.repeats, canaries.sequences(), strict=True):
        losses = token_losses(model, params, sequences)
        bits = exposure(losses, references)
        extrapolated, fit_distance = extrapolated_exposure(losses, references)
        extrapolated = np.minimum(extrapolated, canaries.possible_bits)
        low, high = median_interval(bits, largest)
        by_repeats.append(
            {
                "repeats": repeats,
                "canaries": len(bits),
                "mean": float(bits.mean()),
                "median": float(np.median(bits)),
                "median_low": low,
                "median_high": high,
                "largest": float(bits.max()),
                "extrapolated_median": float(np.median(extrapolated)),
                "exposures": bits.tolist(),
                "loss": float(losses.mean()),
            }
        )
    return {
        "by_repeats": by_repeats,
        "words": canaries.length - 1,
        "possible_bits": canaries.possible_bits,
        "references": number_of_references,
        "reference_loss": float(references.mean()),
        "chance_mean": CHANCE,
        "largest_by_rank": largest,
        "chance_median": 1.0,
        "confidence": CONFIDENCE,
        "skew_normal_distance": fit_distance,
    }


def token_losses(model: Model, params: Params, sequences: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return float64 [n], the mean loss in nats per target token of each sequence, int32 [n, length + 1]."""
    batches = device_batches(InMemoryData([sequences]), sequences.shape[1] - 1)
    sums = example_sums(model, params, batches)
    return (np.asarray(sums.loss, np.float64) / np.maximum(sums.tokens, 1))[: len(sequences)]
