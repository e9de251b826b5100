"""Which trainings come next: those that rates are selected by, then the other seeds at the rates that were selected."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.architectures.axes.points import Axis, Point, Run
from benchmarks.architectures.axes.records import Records

Task = tuple[Run, int]
"""A training, and how many rounds it is to have had."""


@dataclass(frozen=True)
class Selection:
    """How far a model's rates are selected at a point.

    Attributes:
      left: trainings that can be done now.
      chosen: client and server rate, the best so far of those that came to the end; None where none did.
      decided: whether nothing is left to be selected.
    """

    left: tuple[Task, ...]
    chosen: tuple[float, float] | None = None
    decided: bool = False


def select(records: Records, point: Point, model: str) -> Selection:
    """Go through the rungs as far as they are trained.

    For each server rate, the client rate with the lowest held-out loss over the last rounds of a rung goes on, from its
    checkpoint. Chosen is the pair with the lowest held-out loss of all that have come to the end, also of those
    that came there for another axis.
    """

    def run_of(client: float, server: float) -> Run:
        return Run(point.setting, model, client, server, point.seeds[0])

    def loss(client: float, server: float, rounds: int) -> float:
        run = run_of(client, server)
        return records.heldout_loss(run, rounds) if records.has(run, rounds) else math.inf

    pairs = [(client, server) for client in point.client_rates for server in point.server_rates]
    best = min(pairs, key=lambda pair: loss(*pair, point.rounds))
    chosen = best if loss(*best, point.rounds) < math.inf else None
    clients = {server: list(point.client_rates) for server in point.server_rates}
    for rounds, number in point.rungs():
        clients = {server: some[:number] for server, some in clients.items()}
        reached = [run_of(client, server) for server, some in clients.items() for client in some]
        left = tuple((run, rounds) for run in reached if not records.has(run, rounds))
        if left:
            return Selection(left, chosen)
        for server, some in clients.items():
            losses = {client: loss(client, server, rounds) for client in some}
            clients[server] = sorted((one for one in some if losses[one] < math.inf), key=lambda one: losses[one])
    return Selection((), chosen, True)


def seeds_of(records: Records, point: Point, model: str) -> list[Run]:
    """List a model's trainings at its rates, the best so far where they are not selected, one a seed; none without."""
    chosen = select(records, point, model).chosen
    return [] if chosen is None else [Run(point.setting, model, *chosen, seed) for seed in point.seeds]


def next_tasks(records: Records, axis: Axis) -> list[Task]:
    """List what of an axis can be trained now, each training once and as far as it may go now, point by point."""
    tasks: dict[Run, int] = {}
    for point in axis.points:
        for model in axis.models:
            for run, rounds in _next_of(records, point, model):
                tasks[run] = max(rounds, tasks.get(run, 0))
    return list(tasks.items())


def _next_of(records: Records, point: Point, model: str) -> Iterable[Task]:
    selection = select(records, point, model)
    if not selection.decided:
        return selection.left
    seeds = seeds_of(records, point, model)
    return [(run, point.rounds) for run in seeds if not records.has(run, point.rounds)]


class Left(NamedTuple):
    """What is left of a model's trainings at a point; no other point is taken to share any.

    Attributes:
      rounds: of all trainings together.
      parts: in which they are done.
    """

    rounds: int
    parts: int


def left_of(records: Records, point: Point, model: str) -> Left:
    """Count what is left of a model at a point."""
    selection = select(records, point, model)
    if selection.decided:
        seeds = [run for run in seeds_of(records, point, model) if not records.has(run, point.rounds)]
        return Left(sum(point.rounds - _done(records, run) for run in seeds), len(seeds))
    rounds = sum(wanted - _done(records, run) for run, wanted in selection.left)
    parts, last = len(selection.left), max(wanted for _, wanted in selection.left)
    for wanted, number in _pairs_along(point):
        if wanted > last:
            rounds, parts, last = rounds + (wanted - last) * number, parts + number, wanted
    others = len(point.seeds) - 1
    return Left(rounds + point.rounds * others, parts + others)


def _done(records: Records, run: Run) -> int:
    return records.runs[run]["rounds"] if run in records.runs else 0


def _pairs_along(point: Point) -> list[tuple[int, int]]:
    """List after how many rounds how many pairs of rates have come so far."""
    return [(rounds, number * len(point.server_rates)) for rounds, number in point.rungs()]


def selection_rounds(point: Point) -> tuple[int, int]:
    """Give how many rounds it takes to select one model's rates at a point, and how many all pairs would take."""
    cost, before = 0, 0
    for rounds, number in _pairs_along(point):
        cost += (rounds - before) * number
        before = rounds
    return cost, point.rounds * len(point.client_rates) * len(point.server_rates)
