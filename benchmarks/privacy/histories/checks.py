"""What is wrong in what an operator is told."""

import contextlib
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.privacy.histories.data_sets import Stores
from benchmarks.privacy.histories.remembered import Run, Together
from benchmarks.privacy.histories.tally import Entry, Tally, least_epsilon
from fedlm.commands import account as account_command
from fedlm.fl_core.errors import UserError
from fedlm.fl_core.privacy.ancestry import BUDGET_FILE
from fedlm.fl_core.privacy.printed_bounds import rounded_up
from fedlm.fl_core.runs.data_budget import DataBudget
from fedlm.fl_core.runs.initial_parameters import stated_privacy
from fedlm.fl_core.runs.publishing import PAGE_FILE, STATEMENT_FILE, publish
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from fedlm.simulations.experiments.comparison import CellResult
from fedlm.simulations.reporting.run_privacy import privacy_key, run_privacies

NOT_PRIVATE, NOT_COVERED = "NOT PRIVATE", "VOCABULARY NOT COVERED"
_OF_CHOICE = (
    "was not chosen by looking at",
    "choosing is not accounted",
    "the best of a random number",
    "outcome of a private selection",
)
_EPSILON = re.compile(r"epsilon (?:= )?([0-9.e+-]*[0-9])")


class Fault(NamedTuple):
    """A statement that is not true."""

    where: str
    said: str
    least: float


class Checks:
    """Holds statements to the tally. Each returns what is wrong.

    Args:
      stores: of the histories.
      tally: of all sums of this one.
      counts: in which it is counted how many epsilons were compared.
      folder: of this history.
    """

    def __init__(self, stores: Stores, tally: Tally, counts: Counter[str], folder: Path):
        self._stores, self._tally, self._counts, self._folder = stores, tally, counts, folder

    def planned(self, together: Together) -> list[Fault]:
        """Hold what was said before a private selection to the run that it has chosen."""
        chosen = self._tally.chosen.get(str(together.folder), set())
        runs = [run for run in together.runs.values() if run.trial is not None and run.trial.number in chosen]
        if not runs or together.planned is None:
            return []
        return self._number(runs[0].people, runs, "fedlm compare, before it chooses", together.planned)

    def report(self, together: Together, results: list[CellResult]) -> list[Fault]:
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
                found += self._number(run.people, [run], "report", terms, run)
            if {one.summary["privacy"] for one in results if privacy_key(one) == key} != set(stated.statements):
                found.append(Fault(f"{together.folder.name}: report leaves a statement out", str(stated), 0.0))
        for one in results:
            found += self.words(together.runs[one.cell.directory], "report in words", one.summary["privacy"])
        return found

    def run(self, run: Run) -> list[Fault]:
        """Hold what is said of a run, in its folder, by the ledger and in a release of it."""
        found = []
        summary = run.folder / "summary.json"
        if summary.exists():
            record = json.loads(summary.read_text())
            found += self._record(run, "summary.json", record)
        with contextlib.suppress(UserError):
            found += self.words(run, "the ledger in words", stated_privacy(run.folder))
        with contextlib.suppress(UserError):
            terms = _ledger([run.folder])
            found += self._number(run.people, [run], "fedlm account ledger", terms, run)
        out = self._folder / "published"
        with contextlib.suppress(UserError):
            try:
                said = publish(run.folder, out, lambda path: Tokenizer.load(path).fingerprint).privacy
                record = json.loads((out / STATEMENT_FILE).read_text())
                found += self._record(run, "fedlm release", record)
                found += self.words(run, "fedlm release in words", said)
                page = (out / PAGE_FILE).read_text()
                if record["privacy_guarantee"] is None and NOT_PRIVATE not in page:
                    found.append(Fault(f"{run.folder.name}: {PAGE_FILE}", page[:200], 0.0))
                elif record["privacy_guarantee"] and rounded_up(record["privacy_guarantee"]["epsilon"]) not in page:
                    found.append(Fault(f"{run.folder.name}: {PAGE_FILE} without epsilon", page[:200], 0.0))
            finally:
                shutil.rmtree(out, ignore_errors=True)
        return found

    def _record(self, run: Run, where: str, record: dict[str, Any]) -> list[Fault]:
        guarantee, words = record.get("privacy_guarantee"), record["privacy"]
        if guarantee is None:
            return [] if NOT_PRIVATE in words else [Fault(f"{run.folder.name}: {where}", words, 0.0)]
        return [
            *self._number(run.people, [run], where, guarantee, run),
            *self.words(run, where, words, delta=guarantee["delta"]),
        ]

    def words(self, run: Run, where: str, words: str, short: bool = False, delta: float = 0.0) -> list[Fault]:
        """Hold an epsilon in words."""
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
            found += self._number(run.people, [run], where, terms, run)
        elif "inf" not in words:
            found.append(Fault(f"{name} has no epsilon", words, 0.0))
        return found

    def _number(
        self, people: Iterable[str], runs: list[Run], where: str, terms: dict[str, Any], run: Run | None = None
    ) -> list[Fault]:
        if terms.get("not_private") or terms["epsilon"] is None or any(one.lied for one in runs):
            return []
        self._counts["epsilons compared"] += 1
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
            chosen = self._tally.chosen
            worst = max(worst, least_epsilon(unit, seen, terms["delta"], noise, chosen))
        if epsilon_at_least(terms["epsilon"], worst):
            return []
        name = "+".join(one.folder.name for one in runs)
        return [Fault(f"{name}: {where}", f"epsilon {terms['epsilon']} at {terms['delta']}", worst)]

    def several(self, runs: list[Run]) -> list[Fault]:
        """Hold what the ledgers of several runs come to."""
        private = [run for run in runs if (run.folder / "privacy" / "ledger.jsonl").exists()]
        if len(private) < 2:
            return []
        try:
            terms = _ledger([run.folder for run in private], delta=1e-5)
        except UserError:
            return []
        people = set().union(*(run.people for run in private))
        return self._number(people, private, "fedlm account ledger of several", terms)

    def budget(self, data: Path, runs: list[Run]) -> list[Fault]:
        """Hold a data set's budget to the runs that took from it."""
        if not (data / BUDGET_FILE).exists():
            return [Fault(f"{data.name}: its budget is gone", "", 0.0)]
        budget = DataBudget(data)
        terms = {"epsilon": budget.epsilon, "delta": budget.delta, "unit": "client"}
        people = set().union(*(run.people for run in runs)) if runs else set()
        return self._number(people, runs, "its budget", terms)


def _ledger(folders: list[Path], delta: float | None = None) -> dict[str, Any]:
    command = account_command.LedgerCommand(path=tuple(folders), delta=delta)
    return account_command._STATEMENTS["ledger"](command)


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


def epsilon_at_least(printed: float | None, least: float) -> bool:
    """Say whether a printed epsilon, None for an infinite one, is at least the tally's, but for rounding."""
    return printed is None or printed >= least * (1 - 2e-3) - 1e-4 or math.isinf(printed)
