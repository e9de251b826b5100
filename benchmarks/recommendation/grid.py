"""Which trainings there are, and in which order: those that decide most come first."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.recommendation.models import CONTROLS, MODELS, VARIANTS
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import CheckpointError


@dataclass(frozen=True)
class Scale:
    """How much is computed; `python -m benchmarks.recommendation --help` says why so much.

    Attributes:
      item_interactions: items with fewer are left out of the catalogue.
      user_interactions: users with fewer of what is left are left out.
      length: items that are read of a user.
      epochs: of each training.
      batch_size: of each private training but those that compare batch sizes.
      plain_batch_size: of trainings without privacy, which have no noise to spread over many users and gain from steps.
      other_batch_sizes: which are compared.
      evaluations: how often heldout users are ranked for in a training.
      evaluated_users: how many of them, but for the last time, when all are.
      rates: learning rates of private trainings, of which the best for heldout users is taken.
      plain_rates: the same without privacy.
      epsilons: of the paper's tables.
      rate_epsilon: at which rates, and batch sizes, are compared.
      seeds: the first is the one that rates are compared with.
      delta: of every epsilon.
      relevance_epsilon: of the private count of relevances alone, a part of the epsilon of a training.
      relevance_delta: of the same.
      dropout: of private trainings.
      plain_dropout: of trainings without privacy, as published.
      microbatch_size: users that are differentiated at once.
    """

    item_interactions: int = 40
    user_interactions: int = 4
    length: int = 50
    epochs: int = 30
    batch_size: int = 1024
    plain_batch_size: int = 128
    other_batch_sizes: tuple[int, ...] = (512, 2048)
    evaluations: int = 6
    evaluated_users: int = 2000
    rates: tuple[float, ...] = (3e-3, 1e-2, 3e-2)
    plain_rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    epsilons: tuple[float, ...] = (5.0, 8.0, 10.0)
    rate_epsilon: float = 8.0
    seeds: tuple[int, ...] = (0, 1, 2)
    delta: float = 1e-5
    relevance_epsilon: float = 2.0
    relevance_delta: float = 1e-6
    dropout: float = 0.0
    plain_dropout: float = 0.5
    microbatch_size: int = 32

    def rates_of(self, private: bool) -> tuple[float, ...]:
        """Give the learning rates that are compared."""
        return self.rates if private else self.plain_rates

    def point(self, variant: str, epsilon: float | None, rate: float, seed: int) -> "Point":
        """Name a training with the batch size of all of its kind."""
        return Point(variant, epsilon, rate, self.plain_batch_size if epsilon is None else self.batch_size, seed)


@dataclass(frozen=True)
class Point:
    """A training.

    Attributes:
      variant: name in `VARIANTS`.
      epsilon: of the training with all that it knows; None without privacy.
      rate: the highest learning rate.
      batch_size: users of a batch on average.
      seed: of the run.
    """

    variant: str
    epsilon: float | None
    rate: float
    batch_size: int
    seed: int

    @property
    def name(self) -> str:
        """Name the training's folder."""
        privacy = "not_private" if self.epsilon is None else f"epsilon-{self.epsilon:g}"
        return f"{self.variant}_{privacy}_rate-{self.rate:g}_batch-{self.batch_size}_seed-{self.seed}"


class Results:
    """What was measured, in one file that grows with each training.

    Attributes:
      about: of the data, the machine and the scale; JSON-able.
      cells: of each training the point's fields, and what `train` found; JSON-able.
    """

    def __init__(self, path: Path, about: dict[str, Any]):
        """Read a file, or begin one where there is none. Raises CheckpointError where it was measured at another
        scale, or on other data."""
        self.path, self.about = path, about
        self.cells: dict[Point, dict[str, Any]] = {}
        if not path.exists():
            return
        record = json.loads(path.read_text(encoding="utf-8"))
        for name in ("scale", "data"):
            if record["about"][name] != about[name]:
                raise CheckpointError(
                    f"{path}: was measured with another {name}: {record['about'][name]} and not {about[name]}; give "
                    "another --results"
                )
        self.about = record["about"]
        self.cells = {point_of(cell): cell for cell in record["cells"]}

    def add(self, point: Point, found: dict[str, Any]) -> None:
        """Keep what a training gave."""
        self.cells[point] = dataclasses.asdict(point) | found
        cells = [self.cells[one] for one in sorted(self.cells, key=lambda one: one.name)]
        lines = ",\n".join(json.dumps(cell) for cell in cells)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, f'{{"about": {json.dumps(self.about, indent=1)},\n"cells": [\n{lines}\n]}}\n')

    def score(self, point: Point, split: str = "test", metric: str = "ndcg@10") -> float | None:
        """Look a score up; None where the training is missing, or diverged."""
        found = self.cells.get(point, {}).get(split)
        return None if found is None else found["scores"][metric]["value"]


def scale_of(about: dict[str, Any]) -> Scale:
    """Read the scale of a record."""
    return Scale(**{name: tuple(one) if isinstance(one, list) else one for name, one in about["scale"].items()})


def point_of(cell: dict[str, Any]) -> Point:
    """Read which training a record is of."""
    return Point(**{field.name: cell[field.name] for field in dataclasses.fields(Point)})


def rate_points(scale: Scale) -> list[Point]:
    """List the trainings by which learning rates are chosen, for each model with privacy and without."""
    return [
        scale.point(variant, epsilon, rate, scale.seeds[0])
        for epsilon in (scale.rate_epsilon, None)
        for variant, about in VARIANTS.items()
        if about.rate_of is None and not (epsilon is None and about.relevance)
        for rate in scale.rates_of(epsilon is not None)
    ]


def best_rate(results: Results, scale: Scale, variant: str, private: bool) -> float | None:
    """Choose a variant's learning rate by NDCG@10 for heldout users; None where one of its trainings has not ended, or
    all diverged."""
    variant = VARIANTS[variant].rate_of or variant
    epsilon = scale.rate_epsilon if private else None
    points = [scale.point(variant, epsilon, rate, scale.seeds[0]) for rate in scale.rates_of(private)]
    if any(point not in results.cells for point in points):
        return None
    scores = {point.rate: results.score(point, "heldout") for point in points}
    found = {rate: score for rate, score in scores.items() if score is not None}
    return max(found, key=lambda rate: found[rate]) if found else None


def points_of(results: Results, scale: Scale, variant: str, epsilon: float | None) -> list[Point]:
    """List a variant's trainings at its learning rate, one a seed; none where the rate is not known yet."""
    rate = best_rate(results, scale, variant, epsilon is not None)
    return [] if rate is None else [scale.point(variant, epsilon, rate, seed) for seed in scale.seeds]


def chosen_points(results: Results, scale: Scale) -> list[Point]:
    """List all other trainings, at the rates that were chosen."""
    found: dict[Point, None] = {}
    for points in _in_order(results, scale):
        found.update(dict.fromkeys(points))
    return list(found)


def _in_order(results: Results, scale: Scale) -> Iterator[list[Point]]:
    others = [epsilon for epsilon in scale.epsilons if epsilon != scale.rate_epsilon]
    for variants, epsilons in (
        (MODELS, [scale.rate_epsilon]),
        ([one for one in MODELS if not VARIANTS[one].relevance], [None]),
        (CONTROLS, [scale.rate_epsilon]),
        (MODELS, others),
        (CONTROLS, others),
    ):
        for epsilon in epsilons:
            for variant in variants:
                yield points_of(results, scale, variant, epsilon)
    yield batch_points(scale)


def batch_points(scale: Scale) -> list[Point]:
    """List the trainings of all rates and batch sizes, of the Transformer with and without re-attention."""
    return [
        Point(variant, scale.rate_epsilon, rate, batch_size, scale.seeds[0])
        for batch_size in (*scale.other_batch_sizes, scale.batch_size)
        for rate in scale.rates
        for variant in ("tied", "dpformer")
    ]
