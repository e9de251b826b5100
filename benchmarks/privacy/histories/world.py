"""A history: what one operator does, drawn at random, and what is wrong in what he is told at its end."""

import contextlib
import dataclasses
import functools
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.privacy.histories import toy
from benchmarks.privacy.histories.checks import Checks, Fault
from benchmarks.privacy.histories.data_sets import CROWDS, Stored, Stores
from benchmarks.privacy.histories.drawn_settings import VARIED, privacy_of_rounds, privacy_of_steps, settings_of_rounds
from benchmarks.privacy.histories.recorder import PUBLIC, Killed, Recorder
from benchmarks.privacy.histories.remembered import Run, Together, has_begun
from benchmarks.privacy.histories.seams import seams
from benchmarks.privacy.histories.tally import Entry, Trial
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import UserError
from fedlm.fl_core.privacy.ancestry import BUDGET_FILE
from fedlm.fl_core.runs.cleaning import removable, remove
from fedlm.fl_core.runs.data_budget import DataBudget
from fedlm.fl_core.runs.recorded_runs import find_runs
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.store.writer import StoreWriter
from fedlm.simulations.experiments import comparison, private_selection
from fedlm.simulations.experiments.comparison import Cell, CellResult, run_comparison
from fedlm.simulations.experiments.configuration import Comparison, Experiment
from fedlm.simulations.experiments.experiment import run_experiment
from fedlm.simulations.experiments.private_selection import run_selection
from fedlm.simulations.pretraining.run import run_pretraining
from fedlm.simulations.pretraining.settings import Pretraining


class Operation(NamedTuple):
    """What the operator does, and the seed of how."""

    name: str
    seed: int


_WEIGHTS = {
    "simulate": 30,
    "pretrain": 14,
    "compare": 4,
    "select": 6,
    "go_on_together": 3,
    "spend": 3,
    "there_and_back": 2,
    "resume": 22,
    "reimport": 8,
    "copy": 8,
    "extend": 4,
    "budget": 3,
    "clean": 3,
    "lose_checkpoint": 3,
    "state": 5,
}


def draw_history(seed: int) -> list[Operation]:
    """Draw what an operator does."""
    rng = random.Random(f"history {seed}")
    names = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=rng.randint(2, 7))
    return [Operation(name, rng.getrandbits(32)) for name in ("import", rng.choice(["simulate", "pretrain"]), *names)]


def run_history(
    stores: Stores, operations: Iterable[Operation], stored_by_orbax: bool = False, counts: Counter[str] | None = None
) -> list[Fault]:
    """Do it all in a folder of its own. Returns what is wrong in what was said at its end; counts what was done."""
    shared = "/dev/shm"
    folder = Path(tempfile.mkdtemp(prefix="history-", dir=shared if os.access(shared, os.W_OK) else None))
    try:
        history = History(stores, folder)
        with seams(history.recorder, stored_by_orbax), patch.object(TokenStore, "open", history.open):
            for operation in operations:
                history.do(operation)
            found = history.check()
        if counts is not None:
            counts += history.counts
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class History:
    """The state of one history.

    Attributes:
      counts: how often what was done, refused, killed and compared.
    """

    def __init__(self, stores: Stores, folder: Path):
        self._stores, self._folder = stores, folder
        self.recorder = Recorder()
        self.runs: list[Run] = []
        self._together: list[Together] = []
        self._copies: list[list[Run]] = []
        self._saves_left: int | None = None  # of the next command, where it is certain when it is killed
        self._data: list[Path] = []
        self._holds: dict[Path, Stored] = {}
        self._budgets: set[Path] = set()
        self.counts: Counter[str] = Counter()
        self._checks = Checks(stores, self.recorder.tally, self.counts, folder)
        self._said: list[Fault] = []

    def open(self, path: Path) -> TokenStore:
        """Take the place of `TokenStore.open`."""
        return self._stores.open(self._holds[path], path)

    def do(self, operation: Operation) -> None:
        """Do one thing."""
        rng = random.Random(operation.seed)
        self.counts[operation.name] += 1
        try:
            getattr(self, f"_do_{operation.name}")(rng)
        except UserError:
            self.counts["refused"] += 1

    # What an operator does

    def _do_import(self, rng: random.Random) -> None:
        family = rng.choice(["training", "training", "private", "private", "public", "given"])
        for slot, crowd in enumerate(["all", rng.choice([*CROWDS, "strangers", PUBLIC])]):
            data = self._folder / f"data{slot}"
            self._data.append(data)
            self._put(self._stores.stores[family, crowd], data)
        if rng.random() < 0.15:
            self._do_budget(rng)

    def _put(self, stored: Stored, data: Path) -> None:
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(stored.path, data, ignore=shutil.ignore_patterns("cache"))
        self._holds[data] = stored

    def _do_reimport(self, rng: random.Random) -> None:
        self._import_again(rng.choice(self._data), rng.choice([*CROWDS, PUBLIC]))

    def _import_again(self, data: Path, crowd: str) -> None:
        StoreWriter.check(data, overwrite=True)
        self._put(self._stores.stores[self._holds[data].family, crowd], data)

    def _do_budget(self, rng: random.Random) -> None:
        data = rng.choice(self._data)
        DataBudget.set(data, rng.choice([5.0, 10.0, 25.0]), 1e-5)
        self._budgets.add(data)

    def _do_simulate(self, rng: random.Random) -> None:
        data = rng.choice(self._data)
        settings = settings_of_rounds(rng, data)
        self._begin(rng, data, settings | privacy_of_rounds(rng), central=False)

    def _do_compare(self, rng: random.Random) -> None:
        self._begin_together(rng, {"seeds": (0, 1)})

    def _do_select(self, rng: random.Random) -> None:
        law = rng.choice([{"private_selection": "poisson"}, {"private_selection": "truncated_negative_binomial"}])
        rates = rng.choice([(0.5,), (0.25, 0.5)])
        self._begin_together(rng, law | {"expected_trials": rng.choice([1.5, 3.0]), "client_learning_rates": rates})

    def _begin_together(self, rng: random.Random, settings: dict[str, Any]) -> None:
        data = rng.choice(self._data)
        of_runs = settings_of_rounds(rng, data) | privacy_of_rounds(rng, "private_selection" in settings)
        shared = {name: value for name, value in of_runs.items() if name not in VARIED}
        first = Run(self._folder, shared, False, self._holds[data].family, False, False, compared=True)
        first = self._first_parameters(rng, first)
        folder = self._folder / f"together{len(self._together)}"
        of_all = {name: value for name, value in first.settings.items() if name != "model"}
        settings = {"models": (toy.NAME,), "server_learning_rates": (1.0,)} | settings | of_all
        together = Together(folder, settings, first)
        self._together.append(together)
        self._command_together(rng, together)
        for _ in range(3):
            if not together.over and rng.random() < 0.7:
                if rng.random() < 0.2:
                    with contextlib.suppress(UserError):
                        self._import_again(data, rng.choice(["fewer", "others"]))
                with contextlib.suppress(UserError):
                    self._command_together(rng, together)

    def _do_go_on_together(self, rng: random.Random) -> None:
        if self._together:
            self._command_together(rng, rng.choice(self._together))

    def _command_together(self, rng: random.Random, together: Together) -> None:
        settings, planned = compose(Comparison, **together.settings), together.planned
        run_all = functools.partial(self._run_all, together)
        with self._at_risk_of_kills(rng):
            if settings.selection.private_selection == "none":
                with patch.object(comparison, "run_cells", run_all):
                    results = run_comparison(settings, together.folder, 1)
                self._said += self._checks.report(together, results)
            else:
                with (
                    patch.object(private_selection, "run_cells", run_all),
                    patch.object(private_selection, "_choose", self._noted_choice(together)),
                ):
                    try:
                        run_selection(settings, together.folder, 1, lambda said: self._planned(together, said))
                    except UserError:
                        # Nothing that was planned now has come to be.
                        together.planned = planned
                        raise
            together.over = True

    def _planned(self, together: Together, said: Any) -> None:
        together.planned = said.as_terms()

    def _noted_choice(self, together: Together, real: Any = private_selection._choose) -> Callable[..., CellResult]:
        def choose(cell: Cell, link: Path) -> CellResult:
            trial = together.runs[cell.directory].trial
            assert trial is not None
            self.recorder.tally.chosen.setdefault(trial.selection, set()).add(trial.number)
            self.counts["chosen"] += 1
            return real(cell, link)

        return choose

    def _run_all(self, together: Together, cells: list[Cell], *others: Any) -> dict[Cell, str]:
        """Take the place of `run_cells`, which has processes of its own."""
        selection = compose(Comparison, **together.settings).selection
        law = "poisson" if selection.private_selection == "poisson" else "geometric"
        for number, cell in enumerate(cells):
            run = together.runs.get(cell.directory)
            if run is None:
                varied = {name: getattr(cell.experiment, name) for name in VARIED}
                settings = together.first.settings | varied | {"model": toy.NAME}
                run = dataclasses.replace(
                    together.first, folder=cell.directory, settings=settings, people=set(), seen=set()
                )
                together.runs[cell.directory] = run
                self.runs.append(run)
            if not has_begun(run):
                run.compared = True
                if selection.private_selection != "none":
                    run.trial = Trial(str(together.folder), number, law, selection.expected_trials)
            if not (run.folder / "summary.json").exists():
                with self._watched(run, run.settings["data"]):
                    run_experiment(cell.experiment, run.folder, self._show, tuning=cell.tuning)
        return {}

    def _do_there_and_back(self, rng: random.Random) -> None:
        # Who were other people to the second run are the third one's own.
        here, there = self._data[:2]
        self._import_again(there, "strangers")
        before: Run | None = None
        for data in (here, there, here):
            settings = settings_of_rounds(rng, data) | privacy_of_rounds(rng, private=True)
            run = Run(self._new_folder(), settings, False, self._holds[data].family, False, False)
            if before is not None:
                run.settings["init_from"], run.parent = before.folder, before
                if not _people_of(before.seen) & self._people_in(data):
                    run.settings["initial_data"], run.assumed = "disjoint", True
            self.runs.append(run)
            self._command(rng, run, run.settings)
            before = run

    def _do_spend(self, rng: random.Random) -> None:
        # Each alone fits into the budget, and not all together.
        data = rng.choice(self._data)
        if not (data / BUDGET_FILE).exists():
            DataBudget.set(data, rng.choice([5.0, 10.0]), 1e-5)
            self._budgets.add(data)
        settings = settings_of_rounds(rng, data) | privacy_of_rounds(rng, private=True)
        for _ in range(3):
            with contextlib.suppress(UserError):
                run = Run(self._new_folder(), settings, False, self._holds[data].family, False, False)
                self.runs.append(run)
                self._command(rng, run, settings)

    def _do_pretrain(self, rng: random.Random) -> None:
        data = rng.choice(self._data)
        settings = {
            "model": toy.NAME,
            "data": data,
            "cache": self._stores.folder / "cache",
            "steps": rng.choice([1, 2, 3, 4]),
            "checkpoint_every": rng.choice([1, 1, 2]),
            "batch_size": 4,
            "length": 8,
            "unit": rng.choice(["user", "user", "example"]),
            "packing": "none",
            "clipping": "vmap",
            "seed": rng.choice([0, 1]),
        }
        self._begin(rng, data, settings | privacy_of_steps(rng), central=True)

    def _begin(self, rng: random.Random, data: Path, settings: dict[str, Any], central: bool) -> None:
        run = Run(self._new_folder(), settings, central, self._holds[data].family, False, False)
        run = self._first_parameters(rng, run)
        self.runs.append(run)
        self._command(rng, run, run.settings)
        if rng.random() < 0.4 and not (run.folder / "summary.json").exists():
            with contextlib.suppress(UserError):
                self._import_again(data, rng.choice(["fewer", "others"]))
            self._command(rng, run, run.settings)

    def _new_folder(self) -> Path:
        return self._folder / f"run{len(self.runs)}"

    def _first_parameters(self, rng: random.Random, run: Run) -> Run:
        """Have a run that is about to begin do so with another's parameters, or not."""
        settings, assumed, parent = dict(run.settings), False, None
        if self.runs and rng.random() < 0.55:
            parent = self.runs[-1] if rng.random() < 0.6 else rng.choice(self.runs)
            settings["init_from"] = parent.folder
            behind = _people_of(parent.seen)
            here = self._people_in(settings["data"])
            true = (["disjoint"] if not behind & here else []) + (["public"] if not behind else [])
            claim = rng.choice(["same", *true, *true]) if rng.random() < 0.97 else rng.choice(["public", "disjoint"])
            if claim != "same":
                settings["initial_data"] = claim
            assumed = claim != "same"
        return dataclasses.replace(run, settings=settings, assumed=assumed, parent=parent)

    def _judge(self, run: Run, data: Path) -> None:
        """Find out whether what the operator says of a run's first parameters is so when the run begins."""
        if run.parent is None or run.seen or has_begun(run):
            return
        behind, claim = _people_of(run.parent.seen), run.settings.get("initial_data", "same")
        wrong = {"public": behind, "disjoint": behind & self._people_in(data)}.get(claim, set())
        run.lied = run.parent.lied or bool(wrong)

    def _people_in(self, data: Path) -> frozenset[str]:
        stored = self._holds[data]
        return self._stores.people[stored.family, stored.crowd]

    def _command(self, rng: random.Random, run: Run, settings: dict[str, Any]) -> None:
        if not has_begun(run):
            # Begun by itself, it is compared with nothing, wherever its folder lies.
            run.compared, run.trial = False, None
        with self._at_risk_of_kills(rng), self._watched(run, settings["data"]):
            if run.central:
                run_pretraining(compose(Pretraining, **settings), run.folder, _Watching(self.recorder))
            else:
                run_experiment(compose(Experiment, **settings), run.folder, self._show)

    def _show(self, row: dict[str, Any], rounds: int) -> None:
        _shown(self.recorder, row["round"])

    @contextlib.contextmanager
    def _at_risk_of_kills(self, rng: random.Random) -> Iterator[None]:
        recorder, chance = self.recorder, rng.random()
        recorder.moments = rng.randint(0, 40) if chance < 0.25 else None
        recorder.saves = rng.randint(0, 2) if 0.25 < chance < 0.45 else None
        if self._saves_left is not None:
            recorder.moments, recorder.saves, self._saves_left = None, self._saves_left, None
        try:
            yield
        except Killed:
            self.counts["killed"] += 1
        finally:
            recorder.moments = recorder.saves = None

    @contextlib.contextmanager
    def _watched(self, run: Run, data: Path) -> Iterator[None]:
        self._judge(run, data)
        recorder, before = self.recorder, len(run.seen)
        recorder.seen, recorder.people, recorder.shown, recorder.trial = run.seen, run.people, {}, run.trial
        try:
            yield
        finally:
            recorder.trial = None
            if len(run.seen) > before and data in self._budgets:
                run.budgeted = data

    def _do_resume(self, rng: random.Random) -> None:
        run = self._any(rng)
        settings = dict(run.settings)
        kind = rng.choice(["same"] * 5 + ["other data", "other data", "setting"])
        if kind == "other data":
            settings["data"] = rng.choice(self._data)
        elif kind == "setting":
            changes: list[dict[str, Any]] = [
                {"seed": 7},
                {"checkpoint_every": 1},
                {"steps" if run.central else "rounds": 2},
                {"noise_multiplier": 0.5},
                {"delta": 0.1},
                {"initial_data": rng.choice(["public", "disjoint", "same"])},
                {"noise_seed": rng.choice(["entropy", "experiment"])},
            ]
            settings |= rng.choice(changes)
            # What is said of a run that was refused before it began is said for the first time.
            if "initial_data" in settings and not (run.folder / "privacy" / "ledger.jsonl").exists():
                settings["initial_data"] = run.settings.get("initial_data", "same")
        self._command(rng, run, settings)

    def _do_extend(self, rng: random.Random) -> None:
        run = self._any(rng)
        name = "steps" if run.central else "rounds"
        longer = {name: run.settings[name] + rng.choice([1, 2])}
        self._command(rng, run, run.settings | longer)
        run.settings |= longer

    def _any(self, rng: random.Random) -> Run:
        # Mostly the last one that was interrupted.
        open_ones = [run for run in self.runs if not (run.folder / "summary.json").exists()]
        return rng.choice(open_ones if open_ones and rng.random() < 0.7 else self.runs)

    def _do_copy(self, rng: random.Random) -> None:
        if rng.random() < 0.3:
            self._saves_left = 1
            self._do_simulate(rng)
        run = self._any(rng)
        if run.folder.exists():
            copied = dataclasses.replace(run, folder=self._new_folder(), people=set(run.people), seen=set(run.seen))
            shutil.copytree(run.folder, copied.folder)
            self.runs.append(copied)
            self._copies.append([run, copied])
            # Where one of them is killed, and the other is not, their noise differs from there on.
            self._saves_left = rng.choice([None, 0])
            for one in rng.sample([run, copied, run, copied], 4):
                with contextlib.suppress(UserError):
                    self._command(rng, one, one.settings)

    def _do_clean(self, rng: random.Random) -> None:
        for run in find_runs(self._folder):
            remove(removable(run))

    def _do_lose_checkpoint(self, rng: random.Random) -> None:
        folder = rng.choice(self.runs).folder / "checkpoints"
        found = sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal())
        if found:
            shutil.rmtree(folder / str(found[-1]))

    def _do_state(self, rng: random.Random) -> None:
        self._said += self.check()

    # What he is told

    def check(self) -> list[Fault]:
        """Hold every statement to the tally."""
        found = self._said
        for run in self.runs:
            if run.folder.exists():
                found += self._checks.run(run)
        for runs in (self.runs[-2:], self.runs[-3:], *self._copies):
            found += self._checks.several(runs)
        with contextlib.suppress(UserError):
            for recorded in find_runs(self._folder):
                run = next((one for one in self.runs if one.folder == recorded.directory), None)
                if run is not None:
                    found += self._checks.words(run, "fedlm runs list", recorded.privacy, short=True)
        for data in self._budgets:
            found += self._checks.budget(data, [run for run in self.runs if run.budgeted == data])
        for together in self._together:
            found += self._checks.planned(together)
        return found


class _Watching:
    """Hears of the steps of central training."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder

    def stepped(self, done: int, steps: int, tokens_per_second: float) -> None:
        pass

    def published(self, row: dict[str, Any]) -> None:
        _shown(self._recorder, row["step"])

    def noticed(self, message: str) -> None:
        pass


def _shown(recorder: Recorder, number: int) -> None:
    """What is shown of a step may follow from its model."""
    if number in recorder.shown:
        recorder.seen |= recorder.tally.behind[recorder.shown[number]]


def _people_of(seen: Iterable[Entry]) -> set[str]:
    units = set().union(*(entry.people | entry.at_risk for entry in seen))
    return {unit if isinstance(unit, str) else unit[0] for unit in units}
