"""Measuring what a run's model recommends, on the held-out items of a store of item sequences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.fl_core.number_ranges import Count
from fedlm.models.precision import precision_scope
from fedlm.simulations.data.describing.description import count_split
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.evaluation.client_evaluation import Evaluation, Observer
from fedlm.simulations.evaluation.recommendation.metrics import TIES, describe_ranking
from fedlm.simulations.evaluation.recommendation.ranking import (
    FIRST_ITEM,
    Ranked,
    Scorer,
    model_scorer,
    popularity_scorer,
    rank_users,
)
from fedlm.simulations.evaluation.trained_models import TrainedModel

_NEGATIVES_SEED = 0


@dataclass(frozen=True, kw_only=True)
class RankingSettings:
    """How recommendations are scored, where a run's data is one of recommendation."""

    top_k: tuple[Count, ...] | None = None
    """Each k of HIT@k, NDCG@k and coverage@k. If not given, 1, 5, 10 and 20."""
    sampled_negatives: Count | None = None
    """Rank a user's held-out item among this many others, drawn uniformly without replacement from those that the user
    has not met. If not given, among all items of the catalogue. Scores of the two kinds cannot be compared."""
    keep_history: bool = False
    """Also rank items that the user has met before."""

    def __post_init__(self) -> None:
        check_value_types(self)
        if self.top_k == ():
            raise ConfigurationError(f"{setting('top_k')} is empty; leave it out, or give numbers")

    @property
    def cut_offs(self) -> tuple[int, ...]:
        """Each k, ascending."""
        return tuple(sorted(set(self.top_k or (1, 5, 10, 20))))

    def describe(self) -> dict[str, Any]:
        """Say in words how items are ranked; JSON-able."""
        others = f"{self.sampled_negatives} others, drawn uniformly without replacement (seed {_NEGATIVES_SEED})"
        return {
            "candidates": "all items" if self.sampled_negatives is None else f"the held-out item and {others}",
            "history": "items of the user's history are candidates"
            if self.keep_history
            else "items of the user's history are left out, but for the held-out one",
            "ties": TIES,
            "coverage": "of the catalogue, by the k best of all items for each user",
            "sampled_negatives": self.sampled_negatives,
            "keep_history": self.keep_history,
        }


def measure_ranking(
    run: TrainedModel,
    split: str,
    settings: RankingSettings,
    *,
    max_users: int | None = None,
    observe: Observer = lambda done, total: None,
) -> Evaluation:
    """Score what a run's model recommends to users of heldout or test after their histories.

    Args:
      split: heldout or test.
      max_users: users to score at most, chosen at random but always the same; all where None.

    Returns:
      A JSON-able summary and a table with a row a user. Raises DataError where the split has no user.
    """
    users = choose_users(run.store, split, max_users)
    with precision_scope(run.precision):
        scorer = model_scorer(run.model, run.params)
        found, columns = score_ranking(
            scorer, run.store, split, users, length=run.settings["length"], settings=settings, observe=observe
        )
    about = {"model": run.settings["model"], "steps": run.steps, "experiment": run.settings}
    return Evaluation(about | found, columns)


def score_ranking(
    scorer: Scorer,
    store: TokenStore,
    split: str,
    users: NDArray[np.integer],
    *,
    length: int,
    settings: RankingSettings,
    observe: Observer = lambda done, total: None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Score anything that scores items, and popularity beside it.

    Args:
      scorer: see `fedlm.simulations.evaluation.recommendation.ranking`.
      store: of item sequences.
      split: heldout or test.
      users: integer [users], numbers of the split's.
      length: tokens that are read of each user.

    Returns:
      A JSON-able summary, and the columns of a table with a row a user.
    """
    interactions = count_split(store.split("train"), store.vocabulary_size).tokens
    clients, top_k = store.split(split), settings.cut_offs
    found, columns = {}, {}
    for name, those, watch in (
        ("model", scorer, observe),
        ("popularity", popularity_scorer(interactions), lambda done, total: None),
    ):
        ranked = rank_users(
            those,
            clients,
            users,
            length,
            vocabulary_size=store.vocabulary_size,
            top_k=top_k[-1],
            sampled_negatives=settings.sampled_negatives,
            keep_history=settings.keep_history,
            seed=_NEGATIVES_SEED,
            observe=watch,
        )
        found[name] = _describe(ranked, interactions, top_k)
        if name == "model":
            columns = {
                "client_id": [clients.client_id(user) for user in users.tolist()],
                "item": [store.tokenizer.decode([item]) for item in ranked.targets.tolist()],
                "interactions": interactions[ranked.targets],
                **ranked.places._asdict(),
            }
    summary = {
        "split": split,
        "users_scored": len(users),
        "users_in_split": clients.num_clients,
        "items": store.vocabulary_size - FIRST_ITEM,
        "items_in_training": int(np.count_nonzero(interactions[FIRST_ITEM:])),
        "ranking": settings.describe(),
        **found["model"],
        "popularity_baseline": found["popularity"],
    }
    return summary, columns


def choose_users(store: TokenStore, split: str, max_users: int | None) -> NDArray[np.int64]:
    """Choose users of a split, or at most so many, at random but always the same: int64 [users], ascending. Raises
    DataError where there is none."""
    if split == "train":
        raise ConfigurationError(
            f"{setting('split')} is train, but {store.path} has no held-out items there; give heldout or test"
        )
    number = store.split(split).num_clients
    if not number:
        raise DataError(f"{store.path}: split {split} has no user; choose another split")
    return np.sort(np.random.default_rng(0).permutation(number)[:max_users])


def _describe(ranked: Ranked, interactions: NDArray[np.int64], top_k: Sequence[int]) -> dict[str, Any]:
    described = describe_ranking(ranked.places, ranked.targets - FIRST_ITEM, interactions[FIRST_ITEM:], top_k)
    for k in top_k:
        shown = np.unique(ranked.top[:, :k])
        share = int((shown >= FIRST_ITEM).sum()) / (len(interactions) - FIRST_ITEM)
        described["scores"][f"coverage@{k}"] = {"value": share, "standard_error": None}
    return described
