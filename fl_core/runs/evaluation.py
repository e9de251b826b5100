"""What the rounds of an evaluation say of a model: means over devices, with intervals that count the noise in.

Of each device a loss `l` is known as `u = l / (2 r) - 1/2`, cut to [-1/2, 1/2], with `r` the reference. Let `s` be the
noised sum of `u`, and `n` the noised number of devices, each with noise of standard deviation `sigma`. For the true
mean `m`, `s - m n` has mean 0 and variance `n v + sigma^2 (1 + m^2)`, with `v` the variance among devices. The interval
is all `m` for which it lies within t standard deviations of 0 (Fieller 1954). It holds as far as sums over devices are
normal.
"""

import math
from typing import Any, Literal, NamedTuple

from scipy.special import stdtrit

CONFIDENCE = 0.95
"""That all intervals of a run hold together."""
BETTER, WORSE, NOT_DECIDED = "better", "worse", "not decided"
_ADVICE = {BETTER: "go", WORSE: "stop", NOT_DECIDED: "more rounds or larger cohorts may tell"}

Verdict = Literal["better", "worse", "not decided"]


class Interval(NamedTuple):
    """Where a mean over devices lies."""

    low: float
    high: float


def evaluation_of(rows: list[dict[str, Any]], reference_loss: float, planned: int) -> dict[str, Any] | None:
    """Tell what the rounds of an evaluation say together.

    Args:
      rows: of its rounds, of which only those that count have sums.
      reference_loss: in nats per token.
      planned: rounds. Each has a look at the model, and `CONFIDENCE` is that of all of them together.

    Returns:
      JSON-able: `rounds`; `devices`, how many, with noise; means over these, each None where noise may be all there is:
      `loss` (nats per token, none above twice the reference), `accuracy`, `below_reference` (share of devices);
      `loss_low`, `loss_high`, the interval of the mean loss; `noise`, the standard deviation of the noise of each sum;
      `reference_loss`, `confidence`, `verdict` and `statement`. None where no round counts.
    """
    counted = [row for row in rows if row.get("evaluated_devices") is not None]
    if not counted:
        return None

    def total(name: str) -> float:
        return math.fsum(row[f"evaluated_{name}"] for row in counted)

    devices, span = total("devices"), 2 * reference_loss
    # A noise that is not known is as large as any.
    noises = [row["evaluated_noise"] for row in counted]
    noise = math.inf if None in noises else math.hypot(*noises)
    shifted = total("losses") / span - devices / 2
    found = _interval(devices, shifted, total("squares"), noise=noise, level=1 - (1 - CONFIDENCE) / planned)
    low, high = span * (found.low + 0.5), span * (found.high + 0.5)

    def mean(name: str, most: float) -> float | None:
        return min(max(total(name) / devices, 0.0), most) if devices > max(3 * noise, 0.5) else None

    told = {
        "rounds": len(counted),
        "devices": devices,
        "loss": mean("losses", span),
        "loss_low": low,
        "loss_high": high,
        "accuracy": mean("accuracies", 1.0),
        "below_reference": mean("below", 1.0),
        "noise": noise if math.isfinite(noise) else None,
        "reference_loss": reference_loss,
        "confidence": CONFIDENCE,
        "verdict": BETTER if high < reference_loss else WORSE if low > reference_loss else NOT_DECIDED,
    }
    return told | {"statement": _in_words(told)}


def _interval(devices: float, shifted: float, squares: float, *, noise: float, level: float) -> Interval:
    """Find the means that sums may come from; `squares` is the sum of `4 u^2`."""
    anything = Interval(-0.5, 0.5)
    if devices < 2 or not math.isfinite(noise):
        return anything
    quantile = float(stdtrit(devices - 1, (1 + level) / 2))
    mean = min(max(shifted / devices, -0.5), 0.5)
    # What noise may have taken from the variance is added; no variance within bounds is above the other term.
    margin = quantile * noise * (0.25 + 2 * abs(mean)) / devices
    among = min(max(squares / (4 * devices) - mean**2, 0.0) + margin, 0.25 - mean**2) * devices / (devices - 1)
    square = devices**2 - (quantile * noise) ** 2
    if square <= 0:
        return anything
    rest = shifted**2 - quantile**2 * (devices * among + noise**2)
    root = math.sqrt(max((shifted * devices) ** 2 - square * rest, 0.0))
    low, high = ((shifted * devices + sign * root) / square for sign in (-1, 1))
    return Interval(max(low, -0.5), min(high, 0.5))


def _in_words(told: dict[str, Any]) -> str:
    mean = "unknown" if told["loss"] is None else f"{told['loss']:.4g}"
    return (
        f"{told['verdict']} than the reference: {_ADVICE[told['verdict']]}"
        if told["verdict"] != NOT_DECIDED
        else f"{NOT_DECIDED}: {_ADVICE[NOT_DECIDED]}"
    ) + (
        f"; mean loss of a device {mean}, between {told['loss_low']:.4g} and {told['loss_high']:.4g} with confidence "
        f"{told['confidence']:.0%}, reference {told['reference_loss']:.4g}"
    )
