"""By how much a model's perplexity is above another's, with intervals over seeds and over clients.

A seed chooses the same cohorts for all models, so that gaps are taken seed by seed. Of all text, who writes most counts
most; where every client counts the same, a gap is that of the geometric means of perplexities over clients.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import scipy.stats

from fedlm.simulations.comparisons.cells import CellResult
from fedlm.simulations.experiments.experiment import CLIENTS_TABLE
from fedlm.simulations.reporting.formatting import DASH
from fedlm.simulations.reporting.selection import ModelResult, finite

CONFIDENCE = 0.95
_MOST_LISTED = 3


class Interval(NamedTuple):
    """A relative gap, 0.05 where a perplexity is 5 % above the other's."""

    mean: float
    half_width: float  # of the interval of `CONFIDENCE`, by Student's distribution; infinite of one number

    @property
    def sign(self) -> int:
        """-1 or 1 where all of it lies on one side of 0, else 0."""
        return 0 if abs(self.mean) <= self.half_width else -1 if self.mean < 0 else 1


class Gap(NamedTuple):
    """A model beside another of the same privacy, each at its selected learning rates.

    Attributes:
      model: whose perplexity is above the other's.
      other: the standard twin where that is compared, else the first model.
      label: the privacy of both, where that differs between the runs of the comparison.
      seeds: of how many there are both.
      test: of all test clients' text.
      heldout: of all held-out clients' text.
      over_seeds: where every test client counts the same and seeds are drawn; None where clients are not scored.
      over_clients: the same where clients are drawn.
      better_for: the share of the clients for whom the model is better, in the mean over seeds.
    """

    model: str
    other: str
    label: str
    seeds: int
    test: Interval
    heldout: Interval
    over_seeds: Interval | None = None
    over_clients: Interval | None = None
    better_for: float | None = None

    def row(self) -> list[str]:
        """Say it in a row of the report, in per cent."""
        even = DASH, DASH
        if self.over_seeds and self.over_clients and self.better_for is not None:
            even = f"{_words(self.over_seeds)} {_width(self.over_clients)}", f"{100 * self.better_for:.0f} %"
        return [self.model, self.other, str(self.seeds), _words(self.test), _words(self.heldout), *even]

    @property
    def decided(self) -> bool:
        """Whether 0 is outside the interval over seeds, and, where clients are scored, outside that over clients too,
        on the same side."""
        signs = {one.sign for one in (self.test, self.over_clients) if one is not None}
        return signs in ({-1}, {1})

    @property
    def outcome(self) -> str:
        """What is decided of the model: better, worse or undecided."""
        return "undecided" if not self.decided else "better" if self.test.mean < 0 else "worse"

    def words(self) -> str:
        """Say it in a sentence's part."""
        privacy = f" ({self.label})" if self.label else ""
        side = "lower" if self.test.mean < 0 else "higher"
        size = f"{100 * abs(self.test.mean):.1f} {_width(self.test)} %".replace(f" ± {DASH}", "")
        return f"{self.model} has a test perplexity {size} {side} than {self.other}{privacy}"


def finding(found: Sequence[Gap]) -> str:
    """Say in one sentence what a comparison found and how sure that is; empty where no two models were compared."""
    if not found:
        return ""
    seeds = min(gap.seeds for gap in found)
    decided, open_ones = ([gap for gap in found if gap.decided is which] for which in (True, False))
    if seeds == 1 and not decided:
        sure = "which one seed cannot tell from chance"
        return f"Found, but not decided: {_listed(open_ones)}, {sure}."
    over = f"{seeds} seeds" + (" and over people" if any(gap.over_clients for gap in found) else "")
    confidence = f"{100 * CONFIDENCE:.0f} % confidence{' each' if len(decided) > 1 else ''}, over {over}"
    if not decided:
        return f"Nothing is decided with {confidence}: {_listed(open_ones)}."
    rest = f"; not decided: {_listed(open_ones)}" if open_ones else ""
    return f"Found with {confidence}: {_listed(decided)}{rest}."


def _listed(found: Sequence[Gap]) -> str:
    listed = [gap.words() for gap in found[:_MOST_LISTED]]
    more = [f"{len(found) - _MOST_LISTED} more (see the gaps)"] if len(found) > _MOST_LISTED else []
    return ", ".join([*listed, *more])


def gaps(models: Sequence[ModelResult]) -> list[Gap]:
    """Compare every model with its standard twin where that is part of the comparison, and else with the first model of
    the same privacy; without those of which no seed finished with both."""
    found = []
    for entry in models:
        same = [one for one in models if one.privacy == entry.privacy]
        other = next((one for one in same if one.model == entry.twin), same[0])
        if other is not entry and (gap := _gap(entry, other)):
            found.append(gap)
    return found


def _gap(entry: ModelResult, other: ModelResult) -> Gap | None:
    runs = [_by_seed(one) for one in (entry, other)]
    pairs = [(runs[0][seed], runs[1][seed]) for seed in runs[0] if seed in runs[1]]
    if not pairs:
        return None
    test, heldout = (
        _interval(np.array([one.summary[name] - two.summary[name] for one, two in pairs]))
        for name in ("test_loss", "heldout_loss")
    )
    gap = Gap(entry.model, other.model, entry.label, len(pairs), test, heldout)
    losses = [(_client_losses(one), _client_losses(two)) for one, two in pairs]
    if not all(one and two for one, two in losses):
        return gap
    clients = sorted(set.intersection(*(set(table) for pair in losses for table in pair)))
    differences = np.array([[one[client] - two[client] for client in clients] for one, two in losses])
    if not differences.size:
        return gap
    return gap._replace(
        over_seeds=_interval(differences.mean(axis=1)),
        over_clients=_interval(differences.mean(axis=0)),
        better_for=float(np.mean(differences < 0)),
    )


def _by_seed(entry: ModelResult) -> dict[int, CellResult]:
    return {
        result.cell.experiment.seed: result
        for result in (entry.selected.finished if entry.selected else ())
        if finite(result.summary.get("test_loss")) is not None
        and finite(result.summary.get("heldout_loss")) is not None
    }


def _client_losses(result: CellResult) -> dict[str, float]:
    """Read the mean loss of each test client that has one; empty where clients were not scored."""
    path = result.cell.directory / CLIENTS_TABLE
    if not path.exists():
        return {}
    columns = pq.read_table(path, columns=["client_id", "loss"]).to_pydict()
    found = zip(columns["client_id"], columns["loss"], strict=True)
    return {client: loss for client, loss in found if finite(loss) is not None}


def _interval(differences: np.ndarray) -> Interval:
    """Make a relative gap of differences of losses, float [numbers]."""
    number, ratio = len(differences), float(np.exp(min(differences.mean(), 700.0)))
    if number < 2:
        return Interval(ratio - 1, math.inf)
    error = float(differences.std(ddof=1)) / math.sqrt(number)
    return Interval(ratio - 1, ratio * float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, number - 1)) * error)


def _words(gap: Interval) -> str:
    return f"{100 * gap.mean:+.1f} {_width(gap)}"


def _width(gap: Interval) -> str:
    return f"± {100 * gap.half_width:.1f}" if math.isfinite(gap.half_width) else f"± {DASH}"
