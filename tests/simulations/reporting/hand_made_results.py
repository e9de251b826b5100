"""Results of comparisons that never ran, for the tests of the report."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedlm.fl_core.composed_settings import compose, with_changes
from fedlm.simulations.comparisons.cells import Cell, CellResult
from fedlm.simulations.experiments.configuration import Comparison, Experiment

ROUNDS = 4


def make_comparison(models: Sequence[str], **changes: Any) -> Comparison:
    settings = {
        "data": Path("corpus"),
        "rounds": ROUNDS,
        "models": tuple(models),
        "client_learning_rates": (0.5, 1.0),
        "server_learning_rates": (0.01,),
        "seeds": (0, 1),
    }
    return compose(Comparison, **settings | changes)


def make_result(
    model: str = "cifg_tiny",
    client: float = 0.5,
    server: float = 0.01,
    seed: int = 0,
    loss: float | None = 5.0,
    perplexity: float | None = None,
    status: str = "finished",
    curve: Sequence[float | None] | None = None,
    **summary: Any,
) -> CellResult:
    """A run whose held-out perplexity is `curve`, a value a round, and at last exp(loss) where that is not given."""
    experiment = compose(
        Experiment,
        data=Path("corpus"),
        model=model,
        client_learning_rate=client,
        server_learning_rate=server,
        seed=seed,
    )
    if perplexity is None and loss is not None:
        perplexity = math.exp(loss)
    if curve is None:
        curve = [None if perplexity is None else perplexity * (ROUNDS - done) for done in range(ROUNDS)]
    rows = [make_row(number, value) for number, value in enumerate(curve)]
    cell = Cell(experiment, Path("cells") / model / str(seed))
    if status == "failed":
        return CellResult(cell, {"status": "failed", "error": summary.get("error", "out of memory")}, rows)
    filled = {
        "status": status,
        "diverged_at_round": 3 if status == "diverged" else None,
        "diverged_because": "the held-out loss is not a finite number" if status == "diverged" else None,
        "heldout_loss": loss,
        "heldout_perplexity": perplexity,
        "heldout_accuracy": 0.2,
        "heldout_in_vocabulary_accuracy": 0.21,
        "test_loss": loss,
        "test_perplexity": perplexity,
        "test_accuracy": 0.22,
        "test_in_vocabulary_accuracy": 0.23,
        "rounds": len(rows),
        "parameters": 12_345,
        "bytes_down": 4_000_000,
        "bytes_up": 1_000_000,
        "training_seconds": 2.0,
        "privacy": "NOT PRIVATE",
        "privacy_guarantee": None,
        "not_private_because": [],
        "vocabulary_sha256": "abc",
        "machine": {"platform": "cpu", "python": "3.11"},
    }
    return CellResult(cell, filled | summary, rows)


def make_private_result(
    mechanism: str = "tree", epsilon: float = 5.0, noise_seed: str = "entropy", **settings: Any
) -> CellResult:
    """A run with noise; an infinite epsilon makes one of the same comparison without."""
    result = make_result(**settings)
    if math.isinf(epsilon):
        return result
    experiment = with_changes(
        result.cell.experiment,
        privacy=mechanism,
        target_epsilon=epsilon,
        noise_seed=noise_seed,
        cohort_sampler="min_separation",
        update_clip_norm=1.0,
    )
    cell = dataclasses.replace(result.cell, experiment=experiment)
    words = f"({epsilon:g}, 1e-05)-differential privacy; unit: client; adjacency: zero-out; {mechanism} noise"
    said: dict[str, Any] = {
        "noise_multiplier": 7.5,
        "privacy": words,
        "privacy_guarantee": {"epsilon": epsilon, "delta": 1e-5, "rho": 0.125},
    }
    if noise_seed == "experiment":
        said["privacy"] = (
            f"NOT PRIVATE: the noise follows from the experiment's seed. With secret noise it would be {words}"
        )
        said["privacy_guarantee"] = None
        said["not_private_because"] = ["the noise follows from the experiment's seed"]
    summary = result.summary if result.status == "failed" else result.summary | said
    return dataclasses.replace(result, cell=cell, summary=summary)


def make_row(number: int, perplexity: float | None) -> dict[str, Any]:
    loss = None if perplexity is None else math.log(perplexity)
    return {
        "round": number,
        "clients": 10,
        "bytes_down": 1_000_000,
        "bytes_up": 250_000,
        "seconds": 0.5,
        "heldout_loss": loss,
        "heldout_perplexity": perplexity,
        "heldout_accuracy": 0.2,
        "heldout_in_vocabulary_accuracy": 0.21,
    }
