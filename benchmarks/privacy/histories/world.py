"""A history: what one operator does, drawn at random, and what is wrong in what he is told at its end."""

import contextlib
import dataclasses
import functools
import json
import os
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.privacy.histories import toy
from benchmarks.privacy.histories.seams import PUBLIC, Killed, Recorder, at_risk, epsilon_at_least, seams
from benchmarks.privacy.histories.tally import Entry, Trial, least_epsilon
from fedlm.commands import account as account_command
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import UserError
from fedlm.fl_core.privacy import private_words
from fedlm.fl_core.privacy.ancestry import BUDGET_FILE
from fedlm.fl_core.privacy.printed_bounds import rounded_up
from fedlm.fl_core.runs.cleaning import removable, remove
from fedlm.fl_core.runs.data_budget import DataBudget
from fedlm.fl_core.runs.initial_parameters import stated_privacy
from fedlm.fl_core.runs.publishing import PAGE_FILE, STATEMENT_FILE, publish
from fedlm.fl_core.runs.recorded_runs import find_runs
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.in_memory import InMemoryText
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.store.writer import StoreWriter
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from fedlm.simulations.experiments import comparison, private_selection
from fedlm.simulations.experiments.comparison import Cell, CellResult, run_comparison
from fedlm.simulations.experiments.configuration import Comparison, Experiment
from fedlm.simulations.experiments.experiment import run_experiment
from fedlm.simulations.experiments.private_selection import run_selection
from fedlm.simulations.pretraining.run import run_pretraining
from fedlm.simulations.pretraining.settings import Pretraining
from fedlm.simulations.reporting.run_privacy import privacy_key, run_privacies

NOT_PRIVATE, NOT_COVERED = "NOT PRIVATE", "VOCABULARY NOT COVERED"
WORDS = ("the cat sat on a mat while some dog ran to one tree and no bird sang any song about old stone walls").split()
_CROWDS = {"all": range(0, 18), "fewer": range(4, 18), "others": range(4, 22), "strangers": range(40, 58)}
_OF_CHOICE = (
    "was not chosen by looking at",
    "choosing is not accounted",
    "the best of a random number",
    "outcome of a private selection",
)
_EPSILON = re.compile(r"epsilon (?:= )?([0-9.e+-]*[0-9])")


class Stored(NamedTuple):
    """A data set that histories import."""

    path: Path
    family: str  # data sets of one family have one vocabulary
    crowd: str


class Stores:
    """Data sets of all kinds, imported once.

    Attributes:
      stores: by family and crowd.
      vocabulary: of families with a private vocabulary: its noise multiplier, and of whose text it was made.
    """

    def __init__(self, folder: Path):
        """Import them into a folder."""
        self.folder = folder
        self.stores: dict[tuple[str, str], Stored] = {}
        self.vocabulary: dict[str, tuple[float, frozenset[str]]] = {}
        self.people: dict[tuple[str, str], frozenset[str]] = {}
        self._opened: dict[tuple[str, str], TokenStore] = {}
        given = self._import("words", "strangers", ImportSettings(vocabulary_size=60)).path / "tokenizer.json"
        # Beside a copy nothing says whose text it was made of.
        alone = Path(shutil.copy(given, folder / "vocabulary.json"))
        for crowd in (*_CROWDS, PUBLIC):
            self._import("given", crowd, ImportSettings(vocabulary=given))
            self._import("public", crowd, ImportSettings(vocabulary=alone, vocabulary_origin="public"))
        deviations: list[int] = []
        real = private_words.rounded_gaussian

        def noted(deviation: int, *others: Any) -> int:
            deviations.append(deviation)
            return real(deviation, *others)

        for family, settings in {
            "training": ImportSettings(vocabulary_size=60),
            "private": ImportSettings(vocabulary_size=120, vocabulary_epsilon=2.0, vocabulary_delta=1e-6),
        }.items():
            with patch.object(private_words, "rounded_gaussian", noted):
                first = self._import(family, "all", settings).path / "tokenizer.json"
            for crowd in (*_CROWDS, PUBLIC):
                if crowd != "all":
                    self._import(family, crowd, ImportSettings(vocabulary=first))
        multiplier = max(deviations) / private_words.COUNT_NORM
        self.vocabulary["private"] = (multiplier * 1.0001, self.people["private", "all"])

    def _import(self, family: str, crowd: str, settings: ImportSettings) -> Stored:
        out = self.folder / f"{family}-{crowd}"
        if crowd == PUBLIC:
            names = [f"{PUBLIC} {number}" for number in range(18)]
        else:
            names = [f"client {number}" for number in _CROWDS[crowd]]
        texts = []
        for name in names:
            rng = random.Random(name)
            sentences = [" ".join(rng.choices(WORDS, k=6)) for _ in range(rng.randint(1, 3))]
            texts.append(ClientText(name, sentences, "train"))
        texts += [ClientText(f"{split} client", ["the cat sat on a mat"], split) for split in ("heldout", "test")]
        import_text("made up", InMemoryText(texts), out, settings, workers=1)
        self.stores[family, crowd] = Stored(out, family, crowd)
        self._opened[family, crowd] = opened = TokenStore.open(out)
        self.people[family, crowd] = at_risk(opened.split("train").client_ids)
        return self.stores[family, crowd]

    def open(self, stored: Stored, path: Path) -> TokenStore:
        """Open a copy of a data set, without reading it again."""
        known = self._opened[stored.family, stored.crowd]
        copied = TokenStore(path, known.header, known.tokenizer)
        copied._splits = known._splits
        return copied


@dataclass
class Run:
    """A run that was begun, as the operator remembers it."""

    folder: Path
    settings: dict[str, Any]
    central: bool
    family: str
    lied: bool  # whether he has said anything false of its first parameters, or of theirs
    assumed: bool  # whether he has said anything of them
    people: set[str] = field(default_factory=set)
    seen: set[Entry] = field(default_factory=set)
    budgeted: Path | None = None
    trial: Trial | None = None  # of a private selection; None of any other
    compared: bool = False  # with other runs, which its statements have to say
    parent: "Run | None" = field(default=None, repr=False)  # whose parameters it begins with


@dataclass
class Together:
    """Runs that one command begins: a comparison, or a private selection."""

    folder: Path
    settings: dict[str, Any]
    first: Run  # none of them, but with what all have in common
    runs: dict[Path, Run] = field(default_factory=dict)
    planned: dict[str, Any] | None = None  # what is said of whichever run will be chosen
    over: bool = False


class Operation(NamedTuple):
    """What the operator does, and the seed of how."""

    name: str
    seed: int


class Fault(NamedTuple):
    """A statement that is not true."""

    where: str
    said: str
    least: float


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
        for slot, crowd in enumerate(["all", rng.choice([*_CROWDS, "strangers", PUBLIC])]):
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
        self._import_again(rng.choice(self._data), rng.choice([*_CROWDS, PUBLIC]))

    def _import_again(self, data: Path, crowd: str) -> None:
        StoreWriter.check(data, overwrite=True)
        self._put(self._stores.stores[self._holds[data].family, crowd], data)

    def _do_budget(self, rng: random.Random) -> None:
        data = rng.choice(self._data)
        DataBudget.set(data, rng.choice([5.0, 10.0, 25.0]), 1e-5)
        self._budgets.add(data)

    def _do_simulate(self, rng: random.Random) -> None:
        data = rng.choice(self._data)
        settings = _settings_of_rounds(rng, data)
        self._begin(rng, data, settings | _privacy_of_rounds(rng), central=False)

    def _do_compare(self, rng: random.Random) -> None:
        self._begin_together(rng, {"seeds": (0, 1)})

    def _do_select(self, rng: random.Random) -> None:
        law = rng.choice([{"private_selection": "poisson"}, {"private_selection": "truncated_negative_binomial"}])
        rates = rng.choice([(0.5,), (0.25, 0.5)])
        self._begin_together(rng, law | {"expected_trials": rng.choice([1.5, 3.0]), "client_learning_rates": rates})

    def _begin_together(self, rng: random.Random, settings: dict[str, Any]) -> None:
        data = rng.choice(self._data)
        of_runs = _settings_of_rounds(rng, data) | _privacy_of_rounds(rng, "private_selection" in settings)
        shared = {name: value for name, value in of_runs.items() if name not in _VARIED}
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
                self._said += self._check_report(together, results)
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
                varied = {name: getattr(cell.experiment, name) for name in _VARIED}
                settings = together.first.settings | varied | {"model": toy.NAME}
                run = dataclasses.replace(
                    together.first, folder=cell.directory, settings=settings, people=set(), seen=set()
                )
                together.runs[cell.directory] = run
                self.runs.append(run)
            if not _has_begun(run):
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
            settings = _settings_of_rounds(rng, data) | _privacy_of_rounds(rng, private=True)
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
        settings = _settings_of_rounds(rng, data) | _privacy_of_rounds(rng, private=True)
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
        self._begin(rng, data, settings | _privacy_of_steps(rng), central=True)

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
        if run.parent is None or run.seen or _has_begun(run):
            return
        behind, claim = _people_of(run.parent.seen), run.settings.get("initial_data", "same")
        wrong = {"public": behind, "disjoint": behind & self._people_in(data)}.get(claim, set())
        run.lied = run.parent.lied or bool(wrong)

    def _people_in(self, data: Path) -> frozenset[str]:
        stored = self._holds[data]
        return self._stores.people[stored.family, stored.crowd]

    def _command(self, rng: random.Random, run: Run, settings: dict[str, Any]) -> None:
        if not _has_begun(run):
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
                found += self._check_run(run)
        for runs in (self.runs[-2:], self.runs[-3:], *self._copies):
            found += self._check_together(runs)
        with contextlib.suppress(UserError):
            for recorded in find_runs(self._folder):
                run = next((one for one in self.runs if one.folder == recorded.directory), None)
                if run is not None:
                    found += self._check_words(run, "fedlm runs list", recorded.privacy, short=True)
        for data in self._budgets:
            found += self._check_budget(data)
        for together in self._together:
            found += self._check_planned(together)
        return found

    def _check_planned(self, together: Together) -> list[Fault]:
        """Hold what was said before a private selection to the run that it has chosen."""
        chosen = self.recorder.tally.chosen.get(str(together.folder), set())
        runs = [run for run in together.runs.values() if run.trial is not None and run.trial.number in chosen]
        if not runs or together.planned is None:
            return []
        return self._check_number(runs[0].people, runs, "fedlm compare, before it chooses", together.planned)

    def _check_report(self, together: Together, results: list[CellResult]) -> list[Fault]:
        """Hold what a report on a comparison says of privacy to all of its runs."""
        found = []
        for key, stated in run_privacies(results).items():
            runs = [together.runs[one.cell.directory] for one in results if privacy_key(one) == key]
            if not stated.private:
                if not all(NOT_PRIVATE in statement for statement in stated.statements):
                    found.append(Fault(f"{together.folder.name}: report", str(stated), 0.0))
                continue
            guarantee = results[0].summary["privacy_guarantee"]
            terms = {"epsilon": stated.epsilon, "delta": guarantee["delta"], "unit": guarantee["unit"]}
            for run in runs:
                found += self._check_number(run.people, [run], "report", terms, run)
            if {one.summary["privacy"] for one in results if privacy_key(one) == key} != set(stated.statements):
                found.append(Fault(f"{together.folder.name}: report leaves a statement out", str(stated), 0.0))
        for one in results:
            found += self._check_words(together.runs[one.cell.directory], "report in words", one.summary["privacy"])
        return found

    def _check_run(self, run: Run) -> list[Fault]:
        found = []
        summary = run.folder / "summary.json"
        if summary.exists():
            record = json.loads(summary.read_text())
            found += self._check_record(run, "summary.json", record)
        with contextlib.suppress(UserError):
            found += self._check_words(run, "the ledger in words", stated_privacy(run.folder))
        with contextlib.suppress(UserError):
            terms = _ledger([run.folder])
            found += self._check_number(run.people, [run], "fedlm account ledger", terms, run)
        out = self._folder / "published"
        with contextlib.suppress(UserError):
            try:
                said = publish(run.folder, out, lambda path: Tokenizer.load(path).fingerprint).privacy
                record = json.loads((out / STATEMENT_FILE).read_text())
                found += self._check_record(run, "fedlm release", record)
                found += self._check_words(run, "fedlm release in words", said)
                page = (out / PAGE_FILE).read_text()
                if record["privacy_guarantee"] is None and NOT_PRIVATE not in page:
                    found.append(Fault(f"{run.folder.name}: {PAGE_FILE}", page[:200], 0.0))
                elif record["privacy_guarantee"] and rounded_up(record["privacy_guarantee"]["epsilon"]) not in page:
                    found.append(Fault(f"{run.folder.name}: {PAGE_FILE} without epsilon", page[:200], 0.0))
            finally:
                shutil.rmtree(out, ignore_errors=True)
        return found

    def _check_record(self, run: Run, where: str, record: dict[str, Any]) -> list[Fault]:
        guarantee, words = record.get("privacy_guarantee"), record["privacy"]
        if guarantee is None:
            return [] if NOT_PRIVATE in words else [Fault(f"{run.folder.name}: {where}", words, 0.0)]
        return [
            *self._check_number(run.people, [run], where, guarantee, run),
            *self._check_words(run, where, words, delta=guarantee["delta"]),
        ]

    def _check_words(self, run: Run, where: str, words: str, short: bool = False, delta: float = 0.0) -> list[Fault]:
        name = f"{run.folder.name}: {where}"
        if words.startswith(NOT_PRIVATE) or "epsilon" not in words or words.startswith("not over"):
            return []
        found = []
        if run.family in ("training", "given") and NOT_COVERED not in words:
            found.append(Fault(f"{name} does not say that the vocabulary is not covered", words, 0.0))
        if run.assumed and "assumed" not in words:
            found.append(Fault(f"{name} does not say what is assumed", words, 0.0))
        if run.compared and not any(one in words for one in _OF_CHOICE):
            found.append(Fault(f"{name} does not say what it was compared with", words, 0.0))
        stated = re.search(r"delta (?:= )?([0-9.e+-]*[0-9])", words)
        epsilon = _EPSILON.search(words)
        if stated and epsilon:
            terms = {"epsilon": float(epsilon[1]) * (1 + 1e-3), "delta": delta or float(stated[1]), "unit": words}
            found += self._check_number(run.people, [run], where, terms, run)
        elif "inf" not in words:
            found.append(Fault(f"{name} has no epsilon", words, 0.0))
        return found

    def _check_number(
        self, people: Iterable[str], runs: list[Run], where: str, terms: dict[str, Any], run: Run | None = None
    ) -> list[Fault]:
        if terms.get("not_private") or terms["epsilon"] is None or any(one.lied for one in runs):
            return []
        self.counts["epsilons compared"] += 1
        seen = set().union(*(one.seen for one in runs))
        vocabularies = {one.family for one in runs} & self._stores.vocabulary.keys()
        worst = 0.0
        for unit in _worst_units(people, seen, _is_example(terms)):
            person = unit if isinstance(unit, str) else unit[0]
            noise = next(
                (
                    self._stores.vocabulary[family][0] * (1 if isinstance(unit, str) else 2**0.5)
                    for family in vocabularies
                    if person in self._stores.vocabulary[family][1]
                ),
                None,
            )
            chosen = self.recorder.tally.chosen
            worst = max(worst, least_epsilon(unit, seen, terms["delta"], noise, chosen))
        if epsilon_at_least(terms["epsilon"], worst):
            return []
        name = "+".join(one.folder.name for one in runs)
        return [Fault(f"{name}: {where}", f"epsilon {terms['epsilon']} at {terms['delta']}", worst)]

    def _check_together(self, runs: list[Run]) -> list[Fault]:
        private = [run for run in runs if (run.folder / "privacy" / "ledger.jsonl").exists()]
        if len(private) < 2:
            return []
        try:
            terms = _ledger([run.folder for run in private], delta=1e-5)
        except UserError:
            return []
        people = set().union(*(run.people for run in private))
        return self._check_number(people, private, "fedlm account ledger of several", terms)

    def _check_budget(self, data: Path) -> list[Fault]:
        if not (data / BUDGET_FILE).exists():
            return [Fault(f"{data.name}: its budget is gone", "", 0.0)]
        budget = DataBudget(data)
        runs = [run for run in self.runs if run.budgeted == data]
        terms = {"epsilon": budget.epsilon, "delta": budget.delta, "unit": "client"}
        people = set().union(*(run.people for run in runs)) if runs else set()
        return self._check_number(people, runs, "its budget", terms)


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


def _has_begun(run: Run) -> bool:
    ledger = run.folder / "privacy" / "ledger.jsonl"
    # Of a process that was killed there may be a part of a line.
    return ledger.exists() and b"\n" in ledger.read_bytes()


def _shown(recorder: Recorder, number: int) -> None:
    """What is shown of a step may follow from its model."""
    if number in recorder.shown:
        recorder.seen |= recorder.tally.behind[recorder.shown[number]]


def _ledger(folders: list[Path], delta: float | None = None) -> dict[str, Any]:
    command = account_command.LedgerCommand(path=tuple(folders), delta=delta)
    return account_command._STATEMENTS["ledger"](command)


def _people_of(seen: Iterable[Entry]) -> set[str]:
    units = set().union(*(entry.people | entry.at_risk for entry in seen))
    return {unit if isinstance(unit, str) else unit[0] for unit in units}


def _is_example(terms: dict[str, Any]) -> bool:
    return "example: " in terms["unit"] or "unit: example" in terms["unit"] or terms["unit"].startswith("example")


def _worst_units(people: Iterable[str], seen: set[Entry], examples: bool) -> list[Hashable]:
    """Units of which one has lost most: one of those that are in the same sums."""
    found: dict[frozenset[int], Hashable] = {}
    if examples:
        units = set().union(*(entry.people | entry.at_risk for entry in seen))
        candidates: list[Any] = [unit for unit in units if not isinstance(unit, str) and unit[0] in people]
    else:
        candidates = sorted(people)
    for unit in sorted(candidates, key=str):
        within = frozenset(id(entry) for entry in seen if unit in entry.people or unit in entry.at_risk)
        found.setdefault(within, unit)
    return list(found.values())


_VARIED = ("client_learning_rate", "server_learning_rate", "seed")
"""Settings of a run that a comparison has several of."""


def _settings_of_rounds(rng: random.Random, data: Path) -> dict[str, Any]:
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


def _privacy_of_rounds(rng: random.Random, private: bool = False) -> dict[str, Any]:
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


def _privacy_of_steps(rng: random.Random) -> dict[str, Any]:
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
