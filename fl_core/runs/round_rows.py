"""A row of numbers for each round of a run, and whether the rows tell of divergence."""

import math
from dataclasses import dataclass
from typing import Any

import jax

from fedlm.fl_core.rounds.aggregation import norm_quantiles
from fedlm.fl_core.rounds.round_loop import RoundResult
from fedlm.fl_core.rounds.scores import Scores
from fedlm.fl_core.runs.files.metrics_log import finite_or_none

DIVERGED_ROUNDS = 3
WENT_BACK = "went_back"
"""In the row of a round after which a run went back to an earlier model: how many scores in a row were absurd."""
_OF_WHO_CAME = ("round", "cohort", "clients", "clients_dropped", "bytes_down", "bytes_up")
WENT_BACK_TO = "went_back_to"
"""In the same row: how many rounds that earlier model had seen."""
_NORM_QUANTILES = {"update_norm_p10": 0.1, "update_norm_p50": 0.5, "update_norm_p90": 0.9}


@dataclass(frozen=True)
class Divergence:
    """Why a run counts as diverged."""

    round_number: int  # the round at which it was seen
    reason: str


def round_row(result: RoundResult, trains: bool = True) -> dict[str, Any]:
    """Make the metrics row of a round; where clients do not train, it tells who came alone."""
    row = _whole_row(result)
    return row if trains else {name: value if name in _OF_WHO_CAME else None for name, value in row.items()}


def _whole_row(result: RoundResult) -> dict[str, Any]:
    aggregate = jax.device_get(result.cohort.aggregate._replace(delta=()))
    accepted = max(float(aggregate.clients - aggregate.dropped), 1.0)
    tokens = float(aggregate.training.tokens)
    return {
        "round": result.round_number,
        "train_loss": float(aggregate.training.loss) / tokens if tokens else None,
        "cohort": result.cohort_size,
        "clients": int(aggregate.clients),
        "clients_dropped": int(aggregate.dropped),
        "clients_clipped": _count(aggregate.clipped),
        "examples": _count(aggregate.examples),
        "steps": result.cohort.steps,
        "update_norm": float(aggregate.update_norm) / accepted,
        **dict(
            zip(_NORM_QUANTILES, norm_quantiles(aggregate.norm_counts, list(_NORM_QUANTILES.values())), strict=True)
        ),
        "gradient_norm": float(aggregate.training.gradient_norm) / max(result.cohort.steps, 1),
        "bytes_down": result.cohort.bytes_down,
        "bytes_up": result.cohort.bytes_up,
    }


def _count(number: Any) -> int | None:
    # Of noised sums of clients' integers nobody knows more than the sum.
    return int(number) if math.isfinite(number) else None


def find_divergence(rows: list[dict[str, Any]]) -> Divergence | None:
    """Decide from its record whether a run has diverged beyond recovery. Returns the divergence where the held-out loss
    is no number and the run did not go back, where it went back for the third score in a row, or where no client's
    update was finite for three rounds in a row; else None."""
    found, recent = find_lost_score(rows), rows[-DIVERGED_ROUNDS:]
    if found is not None:
        return found
    if len(recent) == DIVERGED_ROUNDS and all(row["clients"] == row["clients_dropped"] > 0 for row in recent):
        return Divergence(rows[-1]["round"], f"no client sent a finite update for {DIVERGED_ROUNDS} rounds in a row")
    return None


def find_lost_score(rows: list[dict[str, Any]]) -> Divergence | None:
    """Decide as `find_divergence` does, by the held-out loss alone: from what models tell, not from what clients send.
    Returns None where that does not tell of divergence."""
    if not rows:
        return None
    last = rows[-1]
    if last.get(WENT_BACK, 0) >= DIVERGED_ROUNDS:
        return Divergence(last["round"], f"the held-out loss was absurd {DIVERGED_ROUNDS} times in a row")
    if last.get("heldout_loss", 0.0) is None and WENT_BACK not in last:
        return Divergence(last["round"], "the held-out loss is not a finite number")
    return None


def find_worse_than_guess(rows: list[dict[str, Any]], vocabulary_size: int) -> Divergence | None:
    """Decide of a run that is over whether it ended worse than it could have begun: with a newest held-out loss that is
    no number, which ends no private run before, or more than half a nat above that of a uniform guess. A model that
    hardly trained is close to that guess, on either side. Returns None where it did not, nothing was held out, or no
    client answered."""
    scored = [row for row in rows if "heldout_loss" in row][-1:]
    if (lost := find_lost_score(scored)) is not None:
        return lost
    heldout = scored[0]["heldout_loss"] if scored else None
    if heldout is None or heldout <= math.log(vocabulary_size) + 0.5 or not was_answered(rows):
        return None
    return Divergence(rows[-1]["round"], "the held-out loss ended more than half a nat above that of a uniform guess")


def was_answered(rows: list[dict[str, Any]]) -> bool:
    """Say whether any client answered in a round. Steps of central training have no clients."""
    return any(row.get("clients", 1) > 0 for row in rows)


def named_scores(scores: Scores, prefix: str) -> dict[str, float | None]:
    """Name scores for a JSON record: from `heldout_` or `test_` and the score's name to the number, None where it is
    not finite."""
    return {f"{prefix}_{name}": finite_or_none(value) for name, value in scores._asdict().items()}
