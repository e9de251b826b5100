"""A privacy budget that a data set carries: private runs reserve all that they plan to spend before they begin.

What is reserved is composed by the accountant that states what runs have spent, with what the data set's vocabulary has
spent, and never exceeds the budget, whatever crashes. Kinds of records in the file, chained by hashes:

- `budget`: the first; epsilon and delta of all runs on the data set together.
- `reserve`: a run with this commitment to the secret of its noise is about to begin, and may spend its whole plan.
- `begun`: the ledger of that run is on disk.
- `void`: that run was interrupted before it had a ledger; its secret is gone, and has made no noise.
- `enter`: a process with this name goes on with that run; see `fedlm.fl_core.runs.lineage`.
"""

import contextlib
import fcntl
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedlm.fl_core.errors import ConfigurationError, UserError, setting
from fedlm.fl_core.privacy.accounting.delta import check_delta
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.joint_statement import Joint, compose_trainings
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE, Phase, seen_from, with_all_doubts
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.origins.vocabulary_origin import origin_of_data
from fedlm.fl_core.privacy.record.record_chain import Record, RecordChain


class BudgetError(UserError):
    """A data set's budget is spent, or its file is damaged."""


class DataBudget:
    """The budget of one data set; any number of processes may reserve from it."""

    def __init__(self, data: Path):
        """Name the data set, which has a budget. Raises BudgetError where its file is damaged."""
        self._path = data / BUDGET_FILE
        self._head = self._chain().records[0]

    @staticmethod
    def set(data: Path, epsilon: float, delta: float, training_data: str | None = None) -> "DataBudget":
        """Give a data set a budget.

        Args:
          data: folder of the data set.
          epsilon: that all runs together may spend.
          delta: at which epsilon is stated.
          training_data: fingerprint of the training data, which alone the budget is of; any where None.

        Raises:
          ConfigurationError: the data set has a budget, or a number is out of range.
        """
        check_delta(delta)
        if not epsilon > 0:
            raise ConfigurationError(f"{setting('epsilon')} is {epsilon}, but must be positive")
        if (data / BUDGET_FILE).exists():
            raise ConfigurationError(f"{data / BUDGET_FILE}: the data set has a budget already, which does not change")
        head = {"kind": "budget", "epsilon": epsilon, "delta": delta, "training_data_sha256": training_data}
        RecordChain(data / BUDGET_FILE, _check, _damaged).append(head)
        return DataBudget(data)

    @property
    def epsilon(self) -> float:
        """That all runs together may spend."""
        return float(self._head["epsilon"])

    @property
    def delta(self) -> float:
        """At which epsilon is stated."""
        return float(self._head["delta"])

    def check_data(self, training_data: str | None) -> None:
        """Refuse data by their fingerprint. Raises BudgetError where the budget is of others."""
        if self._head.get("training_data_sha256") not in (None, training_data):
            raise _damaged(f"{self._path}: the budget is of another data set")

    def reserved(self) -> Joint | None:
        """State what is reserved; None where nothing is."""
        trainings = _trainings(self._chain().records)
        return self._together(trainings) if trainings else None

    def _together(self, trainings: list[Phase]) -> Joint:
        seen = seen_from(trainings, self._head.get("training_data_sha256"))
        return compose_trainings(_each_once(seen), self.delta)

    def reserve(self, commitment: str, training: Phase, ancestry: tuple[Phase, ...]) -> None:
        """Reserve the whole plan of a run, and what its first parameters went through as far as nobody has.

        Raises:
          BudgetError: that exceeds the budget, or the budget is of other data; nothing is reserved.
        """
        self.check_data(training.training_data_sha256)
        with self._locked() as chain:
            known = _trainings(chain.records)
            reserving = {record["secret"] for record in _reservations(chain.records)}
            if commitment in reserving:
                return
            # Those of others too: what one run says of them another may contradict.
            behind = [
                phase
                for phase in ancestry
                if phase.not_private is not None or (phase.ledger or {}).get("secret") not in reserving
            ]
            new = [training._replace(ledger={"secret": commitment}), *behind]
            joint = self._together([*known, *new])
            if joint.epsilon is None or joint.epsilon > self.epsilon:
                spent = "nothing can be promised: " + "; ".join(joint.not_private)
                if joint.epsilon is not None:
                    spent = f"with it, epsilon would be {rounded_up(joint.epsilon)}"
                raise BudgetError(
                    f"{self._path}: the runs on this data set may spend epsilon = {rounded_up(self.epsilon)} at "
                    f"delta = {rounded_up(self.delta)} together, and this run does not fit: {spent}. Plan "
                    "more noise or fewer rounds"
                )
            chain.append({"kind": "reserve", "secret": commitment, "trainings": [phase._asdict() for phase in new]})

    def begun(self, commitment: str) -> None:
        """Record that the ledger of a run that has reserved is on disk."""
        self._settle("begun", commitment)

    def void(self, commitment: str) -> None:
        """Give back what was reserved for a run that never had a ledger; one that had keeps it."""
        self._settle("void", commitment)

    def enter(self, commitment: str, known: Sequence[str], name: str) -> bool:
        """Enter a process that goes on with a run; see `fedlm.fl_core.runs.lineage.CommonPlace.enter`."""
        with self._locked() as chain:
            before = _entered(chain.records, commitment)
            if before not in (None, *known):
                return False
            chain.append({"kind": "enter", "secret": commitment, "process": name})
            return True

    def entered(self, commitment: str, name: str) -> bool:
        """Say whether that process is the last that went on with the run."""
        return _entered(self._chain().records, commitment) == name

    def _settle(self, kind: str, commitment: str) -> None:
        with self._locked() as chain:
            of_run = [record["kind"] for record in chain.records if record.get("secret") == commitment]
            if of_run and of_run[-1] == "reserve":
                chain.append({"kind": kind, "secret": commitment})

    def _chain(self) -> RecordChain:
        chain = RecordChain(self._path, _check, _damaged)
        if not chain.records:
            raise _damaged(f"{self._path}: there is no whole record")
        return chain

    @contextlib.contextmanager
    def _locked(self) -> Iterator[RecordChain]:
        with self._path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield self._chain()


class Reservation:
    """What one run reserves; for `Releases`."""

    def __init__(self, budget: DataBudget, training: Phase, ancestry: tuple[Phase, ...]):
        """Describe all that the run plans, and what its first parameters went through."""
        self._budget, self._training, self._ancestry = budget, training, ancestry
        self._commitment = ""

    def reserve(self, commitment: str) -> None:
        """See `DataBudget.reserve`."""
        self._budget.reserve(commitment, self._training, self._ancestry)

    def begun(self, commitment: str) -> None:
        """See `DataBudget.begun`; a run that was begun before there was a budget reserves now."""
        self.reserve(commitment)
        self._budget.begun(commitment)
        self._commitment = commitment

    def void(self, commitment: str) -> None:
        """See `DataBudget.void`."""
        self._budget.void(commitment)

    def enter(self, known: Sequence[str], name: str) -> bool:
        """Enter a process that goes on with the run that was begun; see `DataBudget.enter`."""
        return self._budget.enter(self._commitment, known, name)

    def entered(self, name: str) -> bool:
        """See `DataBudget.entered`."""
        return self._budget.entered(self._commitment, name)


def reservation_of(data: Path, training: Phase, origins: Origins) -> Reservation | None:
    """Make what a private run on a data set reserves; None where that has no budget.

    Args:
      data: folder of the data set.
      training: all that the run plans.
      origins: of what it begins with.
    """
    if not (data / BUDGET_FILE).exists():
        return None
    training = origins.noted_in(training._replace(vocabulary=origin_of_data(data).as_json()))
    return Reservation(DataBudget(data), training, origins.ancestry)


def budget_of(data: Path, private: bool) -> DataBudget | None:
    """Open the budget of a data set, None where it has none, for a run that is private or not.

    Raises:
      BudgetError: it has one, and the run is not private.
    """
    if not (data / BUDGET_FILE).exists():
        return None
    if not private:
        raise BudgetError(
            f"{data / BUDGET_FILE}: the data set has a privacy budget, so that only private runs with secret noise may "
            f"use it; give {setting('privacy')}, or another data set"
        )
    return DataBudget(data)


def _reservations(records: list[Record]) -> list[Any]:
    void = {record["secret"] for record in records if record["kind"] == "void"}
    return [one for one in records if one["kind"] == "reserve" and one["secret"] not in void]


def _entered(records: list[Record], commitment: str) -> str | None:
    of_run = [one["process"] for one in records if one["kind"] == "enter" and one["secret"] == commitment]
    return of_run[-1] if of_run else None


def _trainings(records: list[Record]) -> list[Phase]:
    return [Phase(**phase) for record in _reservations(records) for phase in record["trainings"]]


def _each_once(found: list[Phase]) -> list[Phase]:
    """Take every training once, as far as it went: one that first parameters come from may have gone on meanwhile; and
    for one on the same people where any run does."""
    farthest: dict[str, Phase] = {}
    for phase in found:
        name = (phase.ledger or {}).get("secret") or json.dumps(phase)
        known = farthest.setdefault(name, phase)
        farthest[name] = with_all_doubts(max(known, phase, key=_releases), known, phase)
    return list(farthest.values())


def _releases(phase: Phase) -> int:
    return sum(end - first for first, end in phase.generations)


def _check(records: list[Record], record: Record) -> None:
    kinds = ("reserve", "begun", "void", "enter") if records else ("budget",)
    if record.get("kind") not in kinds:
        raise _damaged(f"a record {record.get('kind')!r} where one of {', '.join(kinds)} was expected")


def _damaged(found: str) -> BudgetError:
    return BudgetError(f"{found}; put the file of the privacy budget back as it was")
