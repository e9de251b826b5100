"""What a run says of itself: a row of numbers a round, whether it diverged, and a summary."""

import json
import math
import platform
from pathlib import Path
from typing import Any

import jax

from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.runs.checkpoints import parameters_digest
from fedlm.fl_core.runs.round_rows import Divergence, named_scores
from fedlm.fl_core.scores import DEFINITIONS, ClientSums, Scores
from fedlm.models.base import Model, Params, parameter_count
from fedlm.simulations.data.cohort_files import CohortFile
from fedlm.simulations.evaluation.client_scores import describe_clients
from fedlm.simulations.experiments.configuration import Experiment, as_json, with_defaults


def summarise(
    experiment: Experiment,
    model: Model,
    precision: str,
    vocabulary: str,
    params: Params,
    rows: list[dict[str, Any]],
    test: Scores,
    clients: ClientSums,
    divergence: Divergence | None,
    cohort_file: CohortFile | None,
    about: dict[str, Any],
) -> dict[str, Any]:
    """Make the summary of a run.

    Args:
      experiment: its settings.
      model: what was trained.
      precision: the resolved policy.
      vocabulary: fingerprint of the data's tokenizer.
      params: the final parameters.
      rows: of all rounds.
      test: scores on the test clients.
      clients: sums of each of them.
      divergence: seen during training; one seen only in the end is added here.
      cohort_file: that cohorts were drawn by, if one was.
      about: what else there is to say, with `privacy`, the statement of what was guaranteed, among it.

    Returns:
      A JSON-able dictionary.
    """
    heldout: dict[str, Any] = next((row for row in reversed(rows) if "heldout_loss" in row), {})
    if divergence is None and heldout and heldout["heldout_loss"] > math.log(model.vocabulary_size):
        divergence = Divergence(rows[-1]["round"], "the held-out loss ended above that of a uniform guess")
    return {
        "status": "diverged" if divergence else "finished",
        "diverged_at_round": divergence.round_number if divergence else None,
        "diverged_because": divergence.reason if divergence else None,
        **named_scores(test, "test"),
        "test_clients": describe_clients(clients),
        **{name: value for name, value in heldout.items() if name.startswith("heldout_")},
        "rounds": len(rows),
        "parameters": parameter_count(model),
        "parameters_sha256": parameters_digest(params),
        "clients_dropped": sum(row["clients_dropped"] for row in rows),
        "bytes_down": sum(row["bytes_down"] for row in rows),
        "bytes_up": sum(row["bytes_up"] for row in rows),
        "training_seconds": round(sum(row["seconds"] for row in rows), 3),
        **about,
        "metrics": DEFINITIONS,
        "experiment": as_json(experiment),
        "vocabulary_sha256": vocabulary,
        "cohort_file": cohort_file._asdict() if cohort_file else None,
        "machine": describe_devices(precision),
    }


def describe_devices(precision: str) -> dict[str, Any]:
    """Say what a run was computed on.

    Args:
      precision: the resolved policy.

    Returns:
      A JSON-able dictionary.
    """
    return {
        "platform": jax.default_backend(),
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "precision": precision,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def finished_summary(
    experiment: Experiment, out: Path, cohort_file: CohortFile | None = None, vocabulary: str | None = None
) -> dict[str, Any] | None:
    """Read the summary of a run that has nothing left to do.

    Args:
      experiment: what is asked for.
      out: folder of the run.
      cohort_file: that cohorts are drawn by, if one is.
      vocabulary: fingerprint of the data's tokenizer; any will do where it is None.

    Returns:
      The summary, or None where there is none or it is of other settings, another cohort file or another vocabulary.

    Raises:
      CheckpointError: the file is not a summary.
    """
    path = out / "summary.json"
    if not path.exists():
        return None
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        same = with_defaults(summary["experiment"]) == as_json(experiment)
        drawn_by = summary.get("cohort_file")
        same &= (drawn_by and drawn_by["sha256"]) == (cohort_file and cohort_file.sha256)
        same &= vocabulary in (None, summary.get("vocabulary_sha256", vocabulary))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not a summary of ours ({error}); remove it, or give another --out") from error
    return summary if same else None
