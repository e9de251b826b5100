"""What models cost: bytes, time and parameters."""

from typing import NamedTuple

from fedlm.simulations.reporting.selection import Group, ModelResult, finite


class Costs(NamedTuple):
    """What a round costs, on average; None where no round was recorded."""

    bytes_up: float | None  # that the whole cohort uploads
    bytes_down: float | None  # that the whole cohort downloads
    seconds: float | None  # of wall clock, scoring on the held-out clients included
    clients_per_second: float | None  # trained


def costs(group: Group) -> Costs:
    """Average what a round costs over the seeds that finished, or over all where none did."""
    rows = [row for result in group.finished or group.results for row in result.rows]

    def total(name: str) -> float:
        return sum(finite(row.get(name)) or 0.0 for row in rows)

    if not rows:
        return Costs(None, None, None, None)
    seconds = total("seconds")
    return Costs(
        bytes_up=total("bytes_up") / len(rows),
        bytes_down=total("bytes_down") / len(rows),
        seconds=seconds / len(rows) if seconds else None,
        clients_per_second=total("clients") / seconds if seconds else None,
    )


def parameters(model: ModelResult) -> int | None:
    """Look a model's parameter count up; None where every one of its runs failed."""
    counts = [result.summary.get("parameters") for group in model.groups for result in group.results]
    return next((count for count in counts if count is not None), None)
