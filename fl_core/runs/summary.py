"""What the summary of a run says beside how it ended: of its scores, its model and the machine."""

import platform
from typing import Any

import jax

from fedlm.fl_core.rounds.scores import DEFINITIONS, Scores
from fedlm.fl_core.runs.round_rows import named_scores
from fedlm.models.base import Model, parameter_count


def describe_training(
    model: Model, precision: str, rows: list[dict[str, Any]], test: Scores | None = None
) -> dict[str, Any]:
    """Describe what was trained, and how well, on test clients where there are any; the newest held-out scores among
    the rows are repeated."""
    heldout: dict[str, Any] = next((row for row in reversed(rows) if "heldout_loss" in row), {})
    return {
        **({} if test is None else named_scores(test, "test")),
        **{name: value for name, value in heldout.items() if name.startswith("heldout_")},
        "parameters": parameter_count(model),
        "training_seconds": round(sum(row["seconds"] for row in rows), 3),
        "metrics": DEFINITIONS,
        "machine": {
            "platform": jax.default_backend(),
            "devices": jax.device_count(),
            "processes": jax.process_count(),
            "precision": precision,
            "jax": jax.__version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
        },
    }
