"""Which learning rates are selected for each model and privacy, and the numbers that a comparison reports of them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedlm.fl_core.rounds.scores import Scores
from fedlm.models.registry import standard_twin
from fedlm.simulations.comparisons.cells import CellResult
from fedlm.simulations.reporting.run_privacy import PrivacyKey, RunPrivacy, privacy_key, run_privacies

SCORES = Scores._fields


class Spread(NamedTuple):
    """A score over seeds."""

    mean: float  # over the seeds that finished
    std: float | None  # sample standard deviation over them; None where there is only one
    seeds: int  # how many they are


class Curve(NamedTuple):
    """A held-out score against rounds, over seeds; all are `[points]`."""

    rounds: np.ndarray  # done when the score was taken
    bytes_up: np.ndarray  # mean over seeds of the bytes that all clients together had uploaded by then
    mean: np.ndarray  # of the score over seeds
    std: np.ndarray | None  # its sample standard deviation; None where there is only one seed


@dataclass(frozen=True, eq=False)
class Group:
    """The cells of one model, one privacy and one combination of learning rates, one a seed."""

    model: str
    client_learning_rate: float
    server_learning_rate: float
    results: tuple[CellResult, ...]

    @property
    def privacy_key(self) -> PrivacyKey:
        """What the privacy of the cells is told apart by."""
        return privacy_key(self.results[0])

    @property
    def finished(self) -> tuple[CellResult, ...]:
        """The cells that neither diverged nor failed."""
        return tuple(result for result in self.results if result.status == "finished")

    def count(self, status: str) -> int:
        """Count the cells of one status."""
        return sum(result.status == status for result in self.results)

    def scores(self, name: str) -> Spread | None:
        """Summarise a final score, such as `test_perplexity`, over the seeds that finished."""
        return spread(result.summary.get(name) for result in self.finished)

    def curve(self, score: str) -> Curve | None:
        """Average a held-out score, such as `perplexity`, over the seeds that finished."""
        return mean_curve(self.finished, score)


@dataclass(frozen=True, eq=False)
class ModelResult:
    """What a comparison found about one model, with one privacy."""

    model: str
    twin: str | None  # the standard architecture it is compared with, where that is part of the comparison
    groups: tuple[Group, ...]  # every combination of learning rates
    selected: Group | None  # the combination that stands for the model; None where no run has a held-out loss
    twin_perplexity: float | None  # its twin's final held-out perplexity, the mean over the seeds that finished
    rounds_to_twin: int | None  # until its mean held-out perplexity is at or below its twin's final one; None for never
    privacy: RunPrivacy
    label: str  # the privacy in words; empty where all runs of the comparison have the same

    @property
    def name(self) -> str:
        """The model, with its privacy where that differs between the runs of the comparison."""
        return f"{self.model} ({self.label})" if self.label else self.model

    def test(self, score: str) -> Spread | None:
        """Summarise a test score, such as `perplexity`, of the selected combination."""
        return self.selected.scores(f"test_{score}") if self.selected else None


def model_results(results: Sequence[CellResult]) -> list[ModelResult]:
    """Select learning rates for every model and privacy, and compare it with its standard twin at the same privacy."""
    entries_of: dict[tuple[str, PrivacyKey], list[Group]] = {}
    for group in group_results(results):
        entries_of.setdefault((group.model, group.privacy_key), []).append(group)
    selected = {entry: select_group(groups) for entry, groups in entries_of.items()}
    privacies = run_privacies(results)
    entries = []
    for (model, key), groups in entries_of.items():
        twin = standard_twin(model)
        twin = twin if (twin, key) in entries_of else None
        own = _perplexity_curve(selected[model, key])
        reference = _perplexity_curve(selected[twin, key]) if twin else None
        target = float(reference.mean[-1]) if reference else None
        rounds = rounds_to_reach(own, target) if own and target is not None else None
        chosen, privacy = selected[model, key], privacies[key]
        label = privacy.words if len(privacies) > 1 else ""
        entries.append(ModelResult(model, twin, tuple(groups), chosen, target, rounds, privacy, label))
    return entries


def group_results(results: Sequence[CellResult]) -> list[Group]:
    """Put the seeds of one model, one privacy and one combination of learning rates together, in order."""
    cells: dict[tuple[str, PrivacyKey, float, float], list[CellResult]] = {}
    for result in results:
        experiment = result.cell.experiment
        rates = experiment.client_learning_rate, experiment.server_learning_rate
        cells.setdefault((experiment.model, privacy_key(result), *rates), []).append(result)
    return [Group(model, client, server, tuple(group)) for (model, _, client, server), group in cells.items()]


def select_group(groups: Sequence[Group]) -> Group | None:
    """Select the combination of learning rates that stands for a model; None where none has a held-out loss.

    That is the one with the lowest mean final held-out loss among those whose seeds all finished. Where there is none,
    the one that fewest seeds are missing from comes first. Ties go to the lower client, then the lower server rate.
    Where rates were halved, only the best has all seeds.
    """
    seeds = max((len(group.results) for group in groups), default=0)

    def rank(group: Group, loss: float) -> tuple[float, ...]:
        missing = seeds - len(group.finished)
        return missing, loss, group.client_learning_rate, group.server_learning_rate

    ranked = [(rank(group, loss), group) for group in groups if (loss := mean_heldout_loss(group)) is not None]
    return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def mean_heldout_loss(group: Group) -> float | None:
    """Average the final held-out loss over the seeds that finished, or over all where none did."""
    losses = spread(result.summary.get("heldout_loss") for result in group.finished or group.results)
    return losses.mean if losses else None


def spread(values: Iterable[Any]) -> Spread | None:
    """Summarise a score over seeds; what is no finite number is left out."""
    numbers = np.array([number for value in values if (number := finite(value)) is not None])
    if not numbers.size:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        mean = finite(numbers.mean())
        std = finite(numbers.std(ddof=1)) if numbers.size > 1 else None
    return None if mean is None else Spread(mean, std, numbers.size)


def finite(value: Any) -> float | None:
    """Return a number as a float; None where it is missing, NaN or infinite."""
    return float(value) if value is not None and math.isfinite(value) else None


def heldout_points(result: CellResult, score: str) -> dict[int, tuple[float, float]]:
    """Read a run's finite held-out scores: from rounds done to (the score, bytes uploaded so far)."""
    points: dict[int, tuple[float, float]] = {}
    bytes_up = 0.0
    for row in result.rows:
        bytes_up += finite(row.get("bytes_up")) or 0.0
        value = finite(row.get(f"heldout_{score}"))
        if value is not None:
            points[row["round"] + 1] = (value, bytes_up)
    return points


def mean_curve(results: Sequence[CellResult], score: str) -> Curve | None:
    """Average a held-out score over seeds, at the rounds for which every seed has one; None where there is none."""
    seeds = [heldout_points(result, score) for result in results]
    rounds = sorted(set.intersection(*map(set, seeds))) if seeds else []
    if not rounds:
        return None
    values, bytes_up = np.moveaxis(np.array([[points[done] for done in rounds] for points in seeds]), 2, 0)
    std = values.std(axis=0, ddof=1) if len(seeds) > 1 else None
    return Curve(np.array(rounds), bytes_up.mean(axis=0), values.mean(axis=0), std)


def rounds_to_reach(curve: Curve, perplexity: float) -> int | None:
    """Return the rounds done when a mean held-out perplexity is first at or below another; None where it never is."""
    reached = np.flatnonzero(curve.mean <= perplexity)
    return int(curve.rounds[reached[0]]) if reached.size else None


def _perplexity_curve(group: Group | None) -> Curve | None:
    return group.curve("perplexity") if group else None
