"""Settings of trainings, drawn at random."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.privacy.histories import toy

VARIED = ("client_learning_rate", "server_learning_rate", "seed")
"""Settings of a run that a comparison has several of."""


def settings_of_rounds(rng: random.Random, data: Path) -> dict[str, Any]:
    """Draw what a federated training on some data is, but for its privacy."""
    return {
        "model": toy.NAME,
        "data": data,
        "rounds": rng.choice([1, 2, 3, 4, 6]),
        "checkpoint_every": rng.choice([1, 1, 2, 3]),
        "cohort_size": rng.choice([4, 6]),
        "length": 8,
        "server_optimizer": "fedavg",
        "server_learning_rate": 1.0,
        "seed": rng.choice([0, 1]),
        "lanes_per_device": 1,
    }


def privacy_of_rounds(rng: random.Random, private: bool = False) -> dict[str, Any]:
    """Draw its privacy, or none where it need not be private."""
    if not private and rng.random() < 0.2:
        return {}
    kind: Callable[[], dict[str, Any]] = rng.choice(_ROUNDS)
    settings = {"update_clip_norm": rng.choice([0.5, 1.0])} | kind()
    settings |= rng.choice(
        [{"noise_multiplier": 1.0}, {"noise_multiplier": 2.0}]
        + ([] if settings["cohort_sampler"] == "poisson" else [{"target_epsilon": 3.0}])
    )
    # Few numbers where computing an epsilon takes long, so that it is known already.
    settings["delta"] = 1e-5 if settings["cohort_sampler"] == "poisson" else rng.choice([1e-5, 1e-5, 1e-3])
    if not private and rng.random() < 0.08:
        settings["noise_seed"] = "experiment"
    if settings["cohort_sampler"] == "min_separation":
        settings |= {"min_separation": rng.choice([1, 2, 3])}
        if rng.random() < 0.3:
            settings["max_participations"] = rng.choice([1, 2])
    return settings


_ROUNDS: list[Callable[[], dict[str, Any]]] = [
    lambda: {"privacy": "gaussian", "cohort_sampler": "poisson"},
    lambda: {"privacy": "gaussian", "cohort_sampler": "poisson", "clip_quantile": 0.5, "clip_count_noise": 2.5},
    lambda: {"privacy": "gaussian", "cohort_sampler": "min_separation"},
    lambda: {"privacy": "gaussian", "cohort_sampler": "min_separation", "clip_quantile": 0.5, "clip_count_noise": 2.5},
    lambda: {"privacy": "gaussian", "cohort_sampler": "shuffled_epochs"},
    lambda: {"privacy": "tree", "cohort_sampler": "min_separation"},
    lambda: {"privacy": "tree_honaker", "cohort_sampler": "min_separation"},
    lambda: {"privacy": "banded", "cohort_sampler": "min_separation"},
    lambda: {"privacy": "banded", "cohort_sampler": "shuffled_epochs"},
    lambda: {"privacy": "blt", "cohort_sampler": "min_separation"},
    lambda: {"privacy": "dense", "cohort_sampler": "min_separation"},
]


def privacy_of_steps(rng: random.Random) -> dict[str, Any]:
    """Draw the privacy of central training."""
    if rng.random() < 0.25:
        return {"privacy": "none"}
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-5}
    if rng.random() < 0.3:
        settings |= {"sampling": "truncated_poisson"}
    if rng.random() < 0.08:
        settings["noise_seed"] = "experiment"
    if rng.random() < 0.3:
        settings["adjacency"] = "zero_out"
    if rng.random() < 0.35:
        settings |= {"mechanism": "banded", "bands": rng.choice([2, 2, 3]), "steps": rng.choice([3, 4])}
        if "sampling" in settings:
            settings["adjacency"] = "zero_out"
    return settings
