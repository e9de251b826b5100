"""What the rounds of an evaluation say of a model: means over devices, with intervals that count the noise in.

Of each device a loss `l` is known as `u = l / L - 1/2`, cut to [-1/2, 1/2], with `L` the largest loss that counts. The
interval is that of Maurer and Pontil 2009 ("Empirical Bernstein bounds and sample variance penalization", theorem 4):
it holds for any losses within these bounds and any number of devices, as long as these are drawn from one population
independently. What the noise may have done is added, each with a share of the probability to miss.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

from fedlm.fl_core.composed_settings import PartSettings
from fedlm.fl_core.errors import CheckpointError, ConfigurationError, setting
from fedlm.fl_core.runs.identity import SUMMARY_FILE

CONFIDENCE = 0.975
"""That all intervals of a run hold together. So those of two runs that are compared do with 95 per cent."""
BETTER, WORSE, NOT_DECIDED = "better", "worse", "not decided"
_ADVICE = {BETTER: "go", WORSE: "stop", NOT_DECIDED: "larger cohorts may tell"}
_SUMS = ("devices", "losses", "squares", "accuracies", "below")


class Interval(NamedTuple):
    """Where a mean over devices lies."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(PartSettings):
    """What an evaluation is compared with."""

    evaluate_against: Path | None = None
    """Folder of an earlier evaluation, of the model in use. The result then says which of the two models is better. If
    not given, it is the loss alone."""

    def check_run(self, run: Any) -> None:
        if self.evaluate_against is not None and run.training.algorithm.make().trains:
            raise ConfigurationError(
                f"{setting('evaluate_against')} is {self.evaluate_against}, which does nothing in a run that trains; "
                f"give {setting('client_algorithm')} evaluate, or leave it out"
            )

    def reference(self, largest_loss: float, vocabulary: str) -> Interval | None:
        """Read the interval of the earlier evaluation; None where none is given.

        Raises:
          ConfigurationError: the folder holds none that is over, or none with this largest loss and this vocabulary.
        """
        if (folder := self.evaluate_against) is None:
            return None
        try:
            summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
            found = summary["evaluation"]
            low, high = float(found["loss_low"]), float(found["loss_high"])
            other, of_words = found["largest_loss"], summary["vocabulary"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{setting('evaluate_against')} is {folder}, but there is no evaluation there that is over; give the "
                "folder of one"
            ) from error
        if other != largest_loss:
            raise ConfigurationError(
                f"{setting('evaluate_largest_loss')} is {largest_loss:g}, but {other:g} in {folder}, whose losses were "
                "cut there; give the same"
            )
        if of_words != vocabulary:
            raise ConfigurationError(
                f"{setting('evaluate_against')} is {folder}, which has another vocabulary, so that losses of a token "
                "cannot be compared; give an evaluation with the same"
            )
        return Interval(low, high)


def evaluation_of(
    rows: list[dict[str, Any]], largest_loss: float, planned: int, reference: Interval | None = None
) -> dict[str, Any]:
    """Tell what the rounds of an evaluation say together.

    Args:
      rows: of its rounds, of which only those that count have sums.
      largest_loss: that counts, in nats per token.
      planned: rounds. Each has a look at the model, and `CONFIDENCE` is that of all of them together.
      reference: of the model that this one is compared with, in nats per token; None for none.

    Returns:
      JSON-able: `rounds`; `devices`, how many, with noise; means over these, each None where noise may be all there is:
      `loss` (nats per token, of losses cut to the largest), `accuracy`, `below_largest` (share of devices whose loss
      was not cut); `loss_low`, `loss_high`, the interval of the mean loss; `noise`, the standard deviation of the noise
      of each sum; `largest_loss`, `confidence`; `reference_low`, `reference_high` and `verdict`, which are None without
      a reference; and `statement`.

    Raises:
      CheckpointError: a round counts, but one of its sums is no number.
    """
    counted = [_checked(row) for row in rows if row.get("evaluated_devices") is not None]

    def total(name: str) -> float:
        return math.fsum(row[f"evaluated_{name}"] for row in counted)

    devices = total("devices")
    # A noise that is not known is as large as any.
    noises = [row["evaluated_noise"] for row in counted]
    noise = math.inf if None in noises else math.hypot(*noises)
    shifted = total("losses") / largest_loss - devices / 2
    found = _interval(devices, shifted, total("squares"), noise=noise, miss=(1 - CONFIDENCE) / planned)

    def mean(name: str, most: float) -> float | None:
        return min(max(total(name) / devices, 0.0), most) if devices > max(3 * noise, 0.5) else None

    own = Interval(largest_loss * (found.low + 0.5), largest_loss * (found.high + 0.5))
    told = {
        "rounds": len(counted),
        "devices": devices,
        "loss": mean("losses", largest_loss),
        "loss_low": own.low,
        "loss_high": own.high,
        "accuracy": mean("accuracies", 1.0),
        "below_largest": mean("below", 1.0),
        "noise": noise if math.isfinite(noise) else None,
        "largest_loss": largest_loss,
        "confidence": CONFIDENCE,
        "reference_low": None if reference is None else reference.low,
        "reference_high": None if reference is None else reference.high,
        "verdict": None if reference is None else _verdict(own, reference) if counted else NOT_DECIDED,
    }
    return told | {"statement": _in_words(told)}


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    for name in (f"evaluated_{name}" for name in _SUMS):
        if not isinstance(row.get(name), (int, float)):
            raise CheckpointError(
                f"the record of round {row.get('round')} has no number {name}, so that nothing can be said of the "
                "evaluation; put the record back as it was, or begin a new run"
            )
    return row


def _verdict(own: Interval, reference: Interval) -> str:
    return BETTER if own.high < reference.low else WORSE if own.low > reference.high else NOT_DECIDED


def _interval(devices: float, shifted: float, squares: float, *, noise: float, miss: float) -> Interval:
    """Find the means that sums may come from, but for a probability; `squares` is the sum of `4 u^2`.

    Given the devices, each of `shifted - m devices` and `squares - w devices`, with `m` and `w` the means over them, is
    noise of a standard deviation of at most `sqrt(1.25) noise`, since `|m|` and `|w - 1/2|` are at most 1/2.
    """
    anything = Interval(-0.5, 0.5)
    if not math.isfinite(noise):
        return anything
    # The mean and its noise may be off on either side, and the noise of the squares and of the number on one.
    share = miss / (6 if noise else 2)
    beyond = -NormalDist().inv_cdf(share) * noise
    fewest = devices - beyond
    if fewest < 2:
        return anything
    off = math.sqrt(1.25) * beyond / devices
    mean = shifted / devices
    among = min(squares / devices + off, 1.0) / 4 - max(abs(mean) - off, 0.0) ** 2
    variance = max(among, 0.0) * fewest / (fewest - 1)
    factor = math.log(2 / share)
    off += math.sqrt(2 * variance * factor / fewest) + 7 * factor / (3 * (fewest - 1))
    return Interval(min(max(mean - off, -0.5), 0.5), max(min(mean + off, 0.5), -0.5))


def _in_words(told: dict[str, Any]) -> str:
    mean, verdict = "unknown" if told["loss"] is None else f"{told['loss']:.4g}", told["verdict"]
    words = (
        f"mean loss of a device {mean}, between {told['loss_low']:.4g} and {told['loss_high']:.4g} with confidence "
        f"{told['confidence']:.1%}, none counted above {told['largest_loss']:.4g}"
    )
    if verdict is None:
        return words
    than = verdict if verdict == NOT_DECIDED else f"{verdict} than the reference"
    return (
        f"{than}: {_ADVICE[verdict]}; {words}; reference between {told['reference_low']:.4g} and "
        f"{told['reference_high']:.4g}"
    )
