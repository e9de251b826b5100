"""By how much scale-invariant models are ahead of their twins where every client counts the same.

    python -m benchmarks.architectures.clients --dumps ../shared/data/stackexchange
    python -m benchmarks.architectures.clients report

The axes (`python -m benchmarks.architectures.axes`) score sentences, most of which a few clients wrote, and have
intervals over seeds alone. This trains models of some of their points again, at the rates that were selected there,
scores every test and held-out client after the last round, and takes the mean over clients of what each has. A model is
ahead, or behind, where the intervals over seeds and over clients of either kind all leave out 0. The command goes on
where it was stopped, and writes results/clients.json, clients.md and a picture.
"""

import argparse
import json
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.architectures.axes.__main__ import RESULTS, protocol
from benchmarks.architectures.axes.gaps import UNDECIDED, Spread, side
from benchmarks.architectures.axes.plots import pair_words
from benchmarks.architectures.axes.points import AXES, Point, Run
from benchmarks.architectures.axes.records import DIVERGED, Records
from benchmarks.architectures.axes.report import table
from benchmarks.architectures.axes.selection import seeds_of
from benchmarks.architectures.axes.training import prepare_data, settings_of
from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import CheckpointError, UserError
from fedlm.simulations.evaluation.client_evaluation import evaluate_split
from fedlm.simulations.evaluation.trained_models import open_model
from fedlm.simulations.experiments.cell_execution import CellExecutor, LocalProcesses, Row, run_cells
from fedlm.simulations.experiments.simulating import simulate
from fedlm.simulations.experiments.workers import default_workers

SPLITS = ("test", "heldout")
NAME = "clients"
_SCORES = "scores.json"


class Place(NamedTuple):
    """A point of an axis, and the pairs of models that are compared there.

    Attributes:
      words: what is varied of the preset.
      point: with the rates that there were to select from.
      pairs: a model and its twin each.
    """

    words: str
    point: Point
    pairs: tuple[tuple[str, str], ...]


_CIFGS = (("si_cifg", "cifg"),)
_LAYER_NORM = (("si_cifg", "cifg_layer_norm"), ("cifg_layer_norm", "cifg"))
PLACES = (
    Place(
        "the preset",
        AXES["cohort"].points[0],
        (
            *_CIFGS,
            ("si_cifg_published", "cifg"),
            ("si_cifg_unit_rms", "cifg"),
            *_LAYER_NORM,
            ("si_transformer", "transformer"),
        ),
    ),
    Place("standard library", AXES["text"].points[1], _CIFGS),
    Place("420 rounds", AXES["rounds"].points[2], (*_CIFGS, *_LAYER_NORM)),
    Place("200 clients a round", AXES["cohort"].points[3], _CIFGS),
    Place("4.2 M parameters", AXES["size"].points[2], _CIFGS),
)
"""In the order in which they are trained."""


@dataclass(frozen=True)
class ScoredTraining:
    """A training and its scores of every client, a `CellTask`.

    Attributes:
      trained: with its rates and seed.
      rounds: how many it has.
      store: of its text.
      directory: of the training; its scores stay there.
    """

    trained: Run
    rounds: int
    store: Path
    directory: Path

    def is_finished(self) -> bool:
        return (self.directory / _SCORES).exists()

    def run(self, report: Callable[[Row], None]) -> None:
        run = self.directory / "run"
        finished = simulate(
            data=self.store,
            out=run,
            rounds=self.rounds,
            evaluate_every=self.rounds,
            checkpoint_every=50,
            heldout_examples=1,
            test_examples=1,
            **settings_of(self.trained),
        )
        if finished.summary["status"] == DIVERGED:
            raise RuntimeError(f"{run}: the training diverged, so that there is nothing to score")
        model = open_model(run)
        found = {split: evaluate_split(model, split).columns for split in SPLITS}
        scores = {
            split: {"examples": columns["examples"].tolist(), "loss": np.round(columns["loss"], 4).tolist()}
            for split, columns in found.items()
        }
        write_atomically(self.directory / _SCORES, json.dumps(scores))
        shutil.rmtree(run)
        report({})

    def scores(self) -> dict[str, Any]:
        """Read the `examples` and mean `loss` of every client with text, by split."""
        return json.loads((self.directory / _SCORES).read_text(encoding="utf-8"))


class ClientRecords:
    """The table of all clients' losses.

    Attributes:
      about: machine, versions and protocol.
      examples: of each client, by text and split.
      losses: of each client, by training, rounds and split.
    """

    def __init__(self, path: Path, about: dict[str, Any] | None = None):
        """Read a table, or begin one; `about` is None to read only.

        Raises:
          CheckpointError: there is none, or it was measured with another protocol.
        """
        self._path, self.about = path, about or {}
        self.examples: dict[str, dict[str, list[int]]] = {}
        self.losses: dict[tuple[Run, int], dict[str, list[float]]] = {}
        if not path.exists():
            if about is None:
                raise CheckpointError(f"{path}: there is no such file; train first")
            return
        record = json.loads(path.read_text(encoding="utf-8"))
        if about is not None and record["about"]["protocol"] != about["protocol"]:
            raise CheckpointError(f"{path}: was measured with another protocol; give another --results")
        self.about, self.examples = record["about"], record["examples"]
        self.losses = {(Run.of_json(run), run["rounds"]): run["loss"] for run in record["runs"]}

    def add(self, cell: ScoredTraining) -> None:
        """Keep what a training gave.

        Raises:
          CheckpointError: its clients are others than those of the trainings before.
        """
        scores = cell.scores()
        examples = {split: scores[split]["examples"] for split in SPLITS}
        if self.examples.setdefault(cell.trained.setting.data, examples) != examples:
            raise CheckpointError(f"{cell.store}: has other clients than {self._path}; give another --results")
        self.losses[cell.trained, cell.rounds] = {split: scores[split]["loss"] for split in SPLITS}
        runs = [run.as_json() | {"rounds": rounds, "loss": loss} for (run, rounds), loss in self.losses.items()]
        lines = ",\n".join(json.dumps(run) for run in runs)
        head = f'{{"about": {json.dumps(self.about)},\n"examples": {json.dumps(self.examples)},\n'
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, f'{head}"runs": [\n{lines}\n]}}\n')


class EvenGap(NamedTuple):
    """By how much a model's perplexity is above its twin's in the geometric mean over clients, relative to it.

    Attributes:
      mean: over clients and seeds.
      over_seeds: half of its interval where seeds are drawn, and clients are these.
      over_clients: the same where clients are drawn, and seeds are these.
      better: for which share of the clients the model is better, in the mean over seeds.
    """

    mean: float
    over_seeds: float
    over_clients: float
    better: float

    @property
    def sides(self) -> set[str]:
        """On which sides of 0 the two intervals are."""
        return {side(self.mean, self.over_seeds), side(self.mean, self.over_clients)}


def even_gap(model: np.ndarray, twin: np.ndarray) -> EvenGap:
    """Compare losses, float [seeds, clients] each, of the same seeds and clients."""
    differences = model - twin
    seeds, clients = (Spread(tuple(differences.mean(axis).tolist())) for axis in (1, 0))
    ratio = math.exp(seeds.mean)
    return EvenGap(
        ratio - 1,
        ratio * seeds.half_width,
        ratio * clients.half_width,
        float(np.mean(differences < 0)),
    )


def trainings(axes: Records, place: Place) -> list[Run]:
    """List a place's trainings, at the rates that the axes selected."""
    models = dict.fromkeys(model for pair in place.pairs for model in pair)
    return [run for model in models for run in seeds_of(axes, place.point, model)]


def losses_at(
    axes: Records, records: ClientRecords, place: Place, pair: tuple[str, str], split: str
) -> tuple[np.ndarray, np.ndarray] | None:
    """Give both models' losses, float [seeds, clients] each; None where a training is missing."""
    found = [
        [records.losses.get((run, place.point.rounds)) for run in seeds_of(axes, place.point, model)] for model in pair
    ]
    if any(not runs or None in runs for runs in found):
        return None
    one, other = (np.array([run[split] for run in runs if run is not None]) for runs in found)
    return one, other


def gaps_at(axes: Records, records: ClientRecords, place: Place, pair: tuple[str, str]) -> dict[str, EvenGap] | None:
    """Give a pair's gaps by split; None where a training is missing."""
    losses = {split: losses_at(axes, records, place, pair, split) for split in SPLITS}
    return {split: even_gap(*both) for split, both in losses.items() if both is not None} or None


def verdict(gaps: dict[str, EvenGap]) -> str:
    """Whether all intervals are on the same side of 0."""
    sides = set.union(*(gap.sides for gap in gaps.values()))
    return sides.pop() if len(sides) == 1 else UNDECIDED


def write_report(axes: Records, records: ClientRecords, folder: Path) -> Path:
    """Write the page and its picture of what has been trained."""
    rows, every, absent, kinds = [], [], [], ("test clients", "held-out clients")
    for place in PLACES:
        for pair in place.pairs:
            gaps = gaps_at(axes, records, place, pair)
            if gaps is None:
                absent.append(f"{pair_words(pair)} at {place.words}")
                continue
            every.append((place, pair, gaps))
            rows.append(
                [place.words, pair_words(pair), *(interval_words(gaps[split]) for split in SPLITS), verdict(gaps)]
                + [f"{100 * gaps[split].better:.0f} %" for split in SPLITS]
            )
    numbers = "; ".join(
        f"{data}, {len(examples['test'])} test and {len(examples['heldout'])} held-out clients"
        for data, examples in records.examples.items()
    )
    missing = f" Not trained yet: {', '.join(absent)}." if absent else ""
    page = "\n\n".join(
        [
            "# Every client counts the same",
            "Gaps of perplexity in per cent, in the geometric mean over clients after the last round; the first ± is "
            "half of a 95 % interval over three seeds, the second over clients. Better for: the share of the clients "
            f"for whom the first model has the lower loss, in the mean over seeds. Texts: {numbers}.{missing}",
            table(
                [
                    "where",
                    "models",
                    *(f"gap, {kind}" for kind in kinds),
                    "verdict",
                    *(f"better for, {kind}" for kind in kinds),
                ],
                rows,
            ),
            f"![Gaps where every client counts the same]({NAME}.png)",
        ]
    )
    draw(axes, records, every).savefig(folder / f"{NAME}.png", dpi=110)
    path = folder / f"{NAME}.md"
    write_atomically(path, page + "\n")
    return path


def interval_words(gap: EvenGap) -> str:
    """Say a gap with its intervals, in per cent."""
    return f"{100 * gap.mean:+.1f} ± {100 * gap.over_seeds:.1f} ± {100 * gap.over_clients:.1f}"


def draw(
    axes: Records, records: ClientRecords, every: list[tuple[Place, tuple[str, str], dict[str, EvenGap]]]
) -> Figure:
    """Draw all gaps with their intervals, and how the first pair's gaps are spread over clients."""
    figure = Figure(figsize=(14, 1.6 + 0.45 * max(len(every), 6)), layout="constrained")
    left, right = figure.subplots(1, 2)
    for row, (_, _, gaps) in enumerate(every):
        for split, away, colour in zip(SPLITS, (-0.16, 0.16), ("#0072b2", "#e69f00"), strict=True):
            gap = gaps[split]
            for half, thickness, alpha in ((gap.over_seeds, 1.2, 1.0), (gap.over_clients, 5.0, 0.35)):
                ends = [100 * (gap.mean - half), 100 * (gap.mean + half)]
                left.plot(ends, [row + away] * 2, color=colour, linewidth=thickness, alpha=alpha)
            left.plot([100 * gap.mean], [row + away], "o", color=colour, markersize=4)
    for label, colour in (("test clients", "#0072b2"), ("held-out clients", "#e69f00")):
        left.plot([], [], "o-", color=colour, label=label)
    left.plot([], [], color="grey", linewidth=1.2, label="95 % interval over seeds")
    left.plot([], [], color="grey", linewidth=5, alpha=0.35, label="over clients")
    left.set_yticks(range(len(every)), [f"{place.words}:\n{pair_words(pair)}" for place, pair, _ in every], fontsize=7)
    left.invert_yaxis()
    left.axvline(0, color="black", linewidth=0.8)
    left.set_xlabel("perplexity above the twin's in the mean over clients, per cent")
    left.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2)
    _draw_clients(right, axes, records)
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.3)
    return figure


def _draw_clients(panel: Axes, axes: Records, records: ClientRecords) -> None:
    """Draw which share of the clients has at most which gap."""
    for place in PLACES:
        pair = place.pairs[0]
        found = [losses_at(axes, records, place, pair, split) for split in SPLITS]
        differences = [(one - other).mean(0) for one, other in filter(None, found)]
        if differences:
            gaps = np.sort(100 * np.expm1(np.concatenate(differences)))
            panel.plot(gaps, np.arange(1, len(gaps) + 1) / len(gaps), label=place.words, linewidth=1.2)
    panel.axvline(0, color="black", linewidth=0.8)
    panel.axhline(0.5, color="grey", linewidth=0.6)
    panel.set_xlim(-40, 40)
    panel.set_xlabel(f"{pair_words(PLACES[0].pairs[0])}:\na client's perplexity above the twin's, per cent")
    panel.set_ylabel("share of test and held-out clients with at most\nthis gap, in the mean over seeds")
    panel.legend(frameon=False, fontsize=8)


def main(words: Sequence[str] | None = None, executor: CellExecutor | None = None) -> int:
    """Run the command; `executor` is for tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", nargs="?", choices=("run", "report"), default="run")
    places = [place.words for place in PLACES]
    parser.add_argument("--places", nargs="+", choices=places, default=places, help="where to train; everywhere")
    parser.add_argument("--dumps", type=Path, default=Path("../shared/data/stackexchange"), help="Stack Exchange dumps")
    parser.add_argument("--work", type=Path, default=Path("runs/axes"), help="folder of texts and trainings")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of axes.json, and of the table, the page and its picture"
    )
    parser.add_argument("--workers", type=int, help="trainings at the same time; one a core or accelerator")
    options = parser.parse_args(words)
    try:
        axes = Records(options.results / "axes.json")
        path = options.results / f"{NAME}.json"
        if options.step == "report":
            records = ClientRecords(path)
        else:
            records = ClientRecords(path, {"machine": describe_machine(), "protocol": _protocol()})
            _train(options, axes, records, executor or LocalProcesses(options.workers or default_workers(), cores=1))
        print(write_report(axes, records, options.results))
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _protocol() -> dict[str, Any]:
    """Describe what all trainings have in common: as on the axes, but for which clients are scored and when."""
    of_the_axes = ("heldout_examples", "test_examples", "evaluate_every")
    return {name: value for name, value in protocol().items() if name not in of_the_axes}


def _train(options: argparse.Namespace, axes: Records, records: ClientRecords, executor: CellExecutor) -> None:
    for place in PLACES:
        if place.words not in options.places:
            continue
        store = prepare_data(place.point.setting.data, options.work, options.dumps)
        cells = [
            ScoredTraining(run, place.point.rounds, store, options.work / NAME / f"{run.name}_{place.point.rounds}")
            for run in trainings(axes, place)
            if (run, place.point.rounds) not in records.losses
        ]
        print(f"{place.words}: {len(cells)} trainings left", flush=True)

        def observe(cell: ScoredTraining, row: Row) -> None:
            if cell.is_finished():
                records.add(cell)
                print(f"{cell.trained.name}, {cell.rounds} rounds", flush=True)

        for cell in cells:
            observe(cell, {})
        for cell, why in run_cells(cells, executor, observe).items():
            print(f"{cell.trained.name}: failed: {why}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
