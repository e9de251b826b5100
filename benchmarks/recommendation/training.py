"""One training and its scores, and the data that all have."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from benchmarks.recommendation.grid import Point, Results, Scale
from benchmarks.recommendation.models import VARIANTS
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import DataError
from fedlm.fl_core.privacy.relevance_spending import plan_relevance
from fedlm.models.decoding import Decoder, decoder_of
from fedlm.models.precision import precision_scope
from fedlm.simulations.data.describing.description import count_split
from fedlm.simulations.data.recommendation.importing import RecommendationSettings, import_recommendation
from fedlm.simulations.data.relevance import count_relevance
from fedlm.simulations.data.sources.interactions import Interactions
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.evaluation.recommendation.measuring import choose_users
from fedlm.simulations.evaluation.recommendation.metrics import describe_ranking
from fedlm.simulations.evaluation.recommendation.ranking import (
    FIRST_ITEM,
    Scorer,
    model_scorer,
    popularity_scorer,
    rank_users,
)
from fedlm.simulations.evaluation.trained_models import TrainedModel, read_model
from fedlm.simulations.experiments.cell_execution import CellExecutor, Row, run_cells
from fedlm.simulations.pretraining.run import Observer, run_pretraining
from fedlm.simulations.pretraining.settings import Pretraining

TOP_K = (10,)
_DONE = "result"


def prepare(interactions: Path, work: Path, scale: Scale) -> Path:
    """Import the items and users that are left, and count relevances, where that was not done.

    Args:
      interactions: lines `user item`, in the order of time.
      work: folder of all that is not committed.

    Returns:
      The token store's folder.
    """
    if not interactions.exists():
        raise DataError(f"{interactions}: there is no such file; give --data, lines `user item` in the order of time")
    store = work / f"store_{scale.item_interactions}_{scale.user_interactions}"
    if not (store / "store.json").exists():
        work.mkdir(parents=True, exist_ok=True)
        with interactions.open(encoding="utf-8") as file:
            counts = Counter(line.split()[1] for line in file)
        kept = sorted(item for item, number in counts.items() if number >= scale.item_interactions)
        catalogue = work / f"catalogue_{scale.item_interactions}.txt"
        write_atomically(catalogue, "".join(f"{item}\n" for item in kept))
        settings = RecommendationSettings(min_interactions=scale.user_interactions, catalogue=catalogue)
        import_recommendation(Interactions((interactions,), format="pairs"), store, settings, workers=1)
    private = plan_relevance(scale.relevance_epsilon, scale.relevance_delta, _tokens_per_unit(scale))
    for name, noise in (("counted", None), ("private", private)):
        path = relevance_file(store, name)
        if not path.exists():
            count_relevance(TokenStore.open(store), "client", scale.length, private=noise).write(path)
    return store


def _tokens_per_unit(scale: Scale) -> int:
    return min(16, scale.length)


def relevance_file(store: Path, kind: str) -> Path:
    """Name the file of relevances that were counted in a way, see `Variant.relevance`."""
    return store.with_name(f"{store.name}_relevance_{kind}.json")


def describe_data(store: Path, scale: Scale) -> dict[str, Any]:
    """Describe the data, and the scores of recommending what is popular; JSON-able."""
    data = TokenStore.open(store)
    interactions = count_split(data.split("train"), data.vocabulary_size).tokens
    scorer = popularity_scorer(interactions)
    users = {split: choose_users(data, split, None) for split in ("heldout", "test")}
    return {
        "users": data.split("train").num_clients,
        "items": data.vocabulary_size - FIRST_ITEM,
        "interactions": int(interactions[FIRST_ITEM:].sum()),
        "popularity": {split: _ranking(scorer, data, split, users[split], scale.length) for split in users},
    }


@dataclass(frozen=True)
class Cell:
    """A training, a `CellTask`; the row that it reports last has its result."""

    point: Point
    scale: Scale
    store: Path
    directory: Path
    known: bool = field(default=False, compare=False)  # whether its result was in the table before

    def is_finished(self) -> bool:
        return self.known or self._result.exists()

    @property
    def _result(self) -> Path:
        return self.directory / "result.json"

    def result(self) -> dict[str, Any]:
        """Read what was found."""
        return json.loads(self._result.read_text(encoding="utf-8"))

    def run(self, report: Callable[[Row], None]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        found = train(self.point, self.scale, self.store, self.directory, report)
        write_atomically(self._result, json.dumps(found))
        shutil.rmtree(self.directory / "run", ignore_errors=True)
        report({_DONE: True})


def run_points(
    points: list[Point],
    results: Results,
    scale: Scale,
    store: Path,
    work: Path,
    executor: CellExecutor,
    say: Callable[[str], None],
) -> None:
    """Train what is left of some points, and keep each result as soon as it is there."""
    cells = [Cell(point, scale, store, work / "cells" / point.name, point in results.cells) for point in points]
    for cell in cells:
        if cell.is_finished() and not cell.known:
            results.add(cell.point, cell.result())
    say(f"{len([cell for cell in cells if not cell.is_finished()])} of {len(cells)} trainings are left")

    def observe(cell: Cell, row: Row) -> None:
        if row.get(_DONE):
            results.add(cell.point, cell.result())
            score = results.score(cell.point)
            say(f"{cell.point.name}: NDCG@10 {'diverged' if score is None else f'{100 * score:.2f} %'}")

    for cell, why in run_cells(cells, executor, observe).items():
        say(f"{cell.point.name}: failed: {why}")


def train(
    point: Point, scale: Scale, store: Path, directory: Path, report: Callable[[Row], None] = lambda row: None
) -> dict[str, Any]:
    """Train a model, or the rest of it, and rank for all heldout and test users.

    Returns:
      A JSON-able record: `status`; `heldout` and `test`, as `describe_ranking` makes them, None where it diverged;
      `curve`, a row [epochs, HIT@10, NDCG@10] of some heldout users for each time they were ranked for; and what was
      spent: `steps`, `noise_multiplier`, `seconds`.
    """
    settings = settings_of(point, scale, store)
    data, folder = TokenStore.open(store), directory / "run"
    curve = _Curve(directory / "curve.json", folder, settings, data, scale, report)
    summary = run_pretraining(settings, folder, curve)
    found: dict[str, Any] = {"heldout": None, "test": None}
    if summary["status"] == "finished":
        trained = read_model(folder)
        with precision_scope(trained.precision):
            scorer = model_scorer(trained.model, trained.params)
            for split in found:
                found[split] = _ranking(scorer, data, split, choose_users(data, split, None), scale.length)
    return {
        "status": summary["status"],
        **found,
        "curve": curve.rows,
        "steps": summary["steps"],
        "noise_multiplier": summary.get("noise_multiplier"),
        "parameters": summary["trained_parameters"],
        "seconds": summary["training_seconds"],
    }


def settings_of(point: Point, scale: Scale, store: Path) -> Pretraining:
    """Make the settings of a training: Adam, gradients brought to norm 1, a fifth of the steps warm-up, then linear
    decay."""
    variant, users = VARIANTS[point.variant], TokenStore.open(store).split("train").num_clients
    steps = max(2, round(scale.epochs * users / point.batch_size))
    often = -(-steps // scale.evaluations)
    privacy: dict[str, Any] = {"privacy": "none"}
    if point.epsilon is not None:
        privacy = {
            "epsilon": point.epsilon,
            "delta": scale.delta,
            "clip_function": "automatic",
            # So that the table can be computed again.
            "noise_seed": "experiment",
        }
        if variant.relevance is not None:
            privacy["relevance"] = relevance_file(store, variant.relevance)
            privacy["permute_relevance"] = variant.permuted
    return compose(
        Pretraining,
        model=variant.model,
        data=store,
        unit="user",
        steps=steps,
        batch_size=point.batch_size,
        length=scale.length,
        learning_rate=point.rate,
        schedule="linear",
        warmup_steps=steps // 5,
        dropout=scale.plain_dropout if point.epsilon is None else scale.dropout,
        microbatch_size=scale.microbatch_size,
        seed=point.seed,
        evaluate_every=often,
        checkpoint_every=often,
        heldout_examples=200,
        test_examples=200,
        **privacy,
    )


class _Curve(Observer):
    """Ranks for some heldout users whenever a checkpoint of a run is there."""

    def __init__(
        self,
        path: Path,
        folder: Path,
        settings: Pretraining,
        data: TokenStore,
        scale: Scale,
        report: Callable[[Row], None],
    ):
        self._path, self._folder, self._settings, self._data, self._report = path, folder, settings, data, report
        self._users = choose_users(data, "heldout", scale.evaluated_users)
        self._epoch = data.split("train").num_clients / settings.batch_size
        self._opened: tuple[Decoder, Scorer] | None = None
        self.rows: list[list[float]] = json.loads(path.read_text()) if path.exists() else []

    def stepped(self, done: int, steps: int, tokens_per_second: float) -> None:
        self._report({"step": done, "steps": steps})
        if done % self._settings.checkpoint_every and done != steps:
            return
        trained = read_model(self._folder)
        epochs = round(trained.steps / self._epoch, 3)
        if any(known[0] == epochs for known in self.rows):
            return
        with precision_scope(trained.precision):
            found = _ranking(self._scorer(trained), self._data, "heldout", self._users, self._settings.length)
        scores = [found["scores"][f"{name}@{TOP_K[0]}"]["value"] for name in ("hit", "ndcg")]
        self.rows.append([epochs, *scores])
        write_atomically(self._path, json.dumps(self.rows))

    def _scorer(self, trained: TrainedModel) -> Scorer:
        if self._opened is None:
            self._opened = decoder_of(trained.model), model_scorer(trained.model, trained.params)
        decoder, first = self._opened
        # What is compiled for the first stays.
        return Scorer(first.score, jax.jit(decoder.prepare)(trained.params))


def _ranking(scorer: Scorer, data: TokenStore, split: str, users: NDArray[np.int64], length: int) -> dict[str, Any]:
    interactions = count_split(data.split("train"), data.vocabulary_size).tokens
    ranked = rank_users(scorer, data.split(split), users, length, data.vocabulary_size, TOP_K[0])
    return describe_ranking(ranked.places, ranked.targets - FIRST_ITEM, interactions[FIRST_ITEM:], TOP_K)
