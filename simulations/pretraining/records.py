"""What a central training run says of itself, and whether a folder holds the run that is asked for."""

import json
import math
from pathlib import Path
from typing import Any

from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.runs.checkpoints import parameters_digest
from fedlm.fl_core.runs.processes import is_first
from fedlm.fl_core.runs.round_rows import named_scores
from fedlm.fl_core.scores import DEFINITIONS, Scores
from fedlm.models.base import Params, parameter_count
from fedlm.simulations.experiments.run_record import describe_devices
from fedlm.simulations.pretraining.preparing import PreparedPretraining

_MAY_CHANGE = ("data", "cache", "init_from", "microbatch_size", "sharding", "clipping")


def summarise(
    prepared: PreparedPretraining,
    params: Params,
    rows: list[dict[str, Any]],
    test: Scores,
    diverged: str | None,
    privacy: dict[str, Any],
) -> dict[str, Any]:
    """Make the summary of a run.

    Args:
      prepared: the run.
      params: the final parameters.
      rows: of all steps.
      test: scores on the test clients.
      diverged: why it counts as diverged, where that was seen in training.
      privacy: the statement of what was guaranteed, with `privacy` among it.

    Returns:
      A JSON-able dictionary.
    """
    settings = prepared.settings
    heldout: dict[str, Any] = next((row for row in reversed(rows) if "heldout_loss" in row), {})
    if diverged is None and not math.isfinite(test.loss):
        diverged = "the test loss is not a finite number"
    plan = prepared.plan
    return {
        "status": "diverged" if diverged else "finished",
        "diverged_because": diverged,
        **named_scores(test, "test"),
        **{name: value for name, value in heldout.items() if name.startswith("heldout_")},
        "steps": max((row["step"] + 1 for row in rows), default=0),
        "parameters": parameter_count(prepared.model),
        "parameters_sha256": parameters_digest(params),
        "objective": prepared.model.objective,
        "training_seconds": round(sum(row["seconds"] for row in rows), 3),
        "tokens": sum(row["tokens"] for row in rows),
        **privacy,
        "delta": prepared.delta if plan else None,
        "noise_batch_ratio": plan.noise_multiplier / settings.batch_size if plan else None,
        "clipping_method": prepared.clipping.method if prepared.clipping else None,
        "units": prepared.units.describe(),
        "initial_parameters": prepared.initial.about() if prepared.initial else None,
        "metrics": DEFINITIONS,
        "pretraining": settings.as_json(),
        "vocabulary_sha256": prepared.vocabulary,
        "machine": describe_devices(prepared.precision),
    }


def check_same_settings(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to go on with a run of other settings or data.

    Args:
      found: the facts saved with its checkpoint.
      wanted: those of the run that is asked for.

    Raises:
      CheckpointError: they differ in what may not change.
    """
    old, new = found["pretraining"], wanted["pretraining"]
    changed = [name for name in new if name not in _MAY_CHANGE and old.get(name) != new[name]]
    if changed:
        what = "; ".join(f"{name} was {old.get(name)} and is now {new[name]}" for name in changed)
        raise CheckpointError(
            f"the --out folder holds a run with other settings: {what}. Give the same settings to go on with it, or "
            "another --out to begin a new one"
        )
    for name, what in (("vocabulary", "vocabulary"), ("contents", "content"), ("initial_parameters_sha256", "start")):
        if found.get(name) != wanted[name]:
            raise CheckpointError(
                f"the --out folder holds a run on data, or first parameters, with another {what}; give those that it "
                "was begun with, or another --out"
            )


def finished_summary(prepared: PreparedPretraining, out: Path) -> dict[str, Any] | None:
    """Read the summary of a run that has nothing left to do, in the first process.

    Args:
      prepared: what is asked for.
      out: folder of the run.

    Returns:
      The summary, or None where there is none, or one of other settings or another vocabulary.

    Raises:
      CheckpointError: the file is not a summary.
    """
    path = out / "summary.json"
    if not is_first() or not path.exists():
        return None
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        old, new = summary["pretraining"], prepared.settings.as_json()
        same = all(old.get(name) == value for name, value in new.items() if name not in _MAY_CHANGE)
        same &= summary["vocabulary_sha256"] == prepared.vocabulary
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not a summary of ours ({error}); remove it, or give another --out") from error
    return summary if same else None
