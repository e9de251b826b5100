"""A privacy budget of a data set or a population: private runs reserve all that they plan before they begin.

What is reserved is composed by the accountant that states what runs have spent, with what vocabularies have spent, and
never exceeds the budget, whatever crashes. Kinds of records in the file, chained by hashes:

- `budget`: the first; epsilon and delta of all runs together, and what else is promised to a population.
- `reserve`: a run with this commitment to the secret of its noise is about to begin, and may spend its whole plan. A
  `run` that waits reserves under its name, and once more as it begins: the later replaces the earlier, unless begun.
- `begun`: the ledger of that run is on disk.
- `void`: that run was interrupted before it had a ledger; its secret is gone, and has made no noise.
- `closed`: the last; this is a copy, and what was reserved since is not known, so that all counts as reserved.
- `enter`: a process with this name goes on with that run; see `fedlm.fl_core.runs.lineage`.
"""

import contextlib
import fcntl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlm.fl_core.atomic_files import Fence
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.delta import check_delta
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.joint_statement import Joint, compose_trainings
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE, Phase, seen_from
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.record.record_chain import RecordChain
from fedlm.fl_core.runs.capabilities.budget_records import (
    BudgetError,
    check_record,
    damaged_budget,
    each_once,
    entered_process,
    is_closed,
    standing_reservations,
    trainings_of,
    without_waiting,
)


class DataBudget:
    """A budget in a folder, as that of a data set; any number of processes may reserve from it."""

    fence: Fence = contextlib.nullcontext  # within which records are added

    def __init__(self, data: Path):
        """Name the folder, which has a budget. Raises BudgetError where its file is damaged."""
        self._path = data / BUDGET_FILE
        self._head = self._chain().records[0]

    @staticmethod
    def set(
        data: Path,
        epsilon: float,
        delta: float,
        training_data: str | None = None,
        *,
        promised: Mapping[str, Any] = {},
    ) -> "DataBudget":
        """Give a folder a budget.

        Args:
          data: the folder, as of a data set.
          epsilon: that all runs together may spend.
          delta: at which epsilon is stated.
          training_data: fingerprint of the training data, which alone the budget is of; any where None.
          promised: what else is promised of all runs together, JSON-able.

        Raises:
          ConfigurationError: there is a budget, or a number is out of range.
        """
        check_delta(delta)
        if not epsilon > 0:
            raise ConfigurationError(f"{setting('epsilon')} is {epsilon}, but must be positive")
        if (data / BUDGET_FILE).exists():
            raise ConfigurationError(f"{data}: it has a budget already, which does not change")
        head = {"kind": "budget", "epsilon": epsilon, "delta": delta, "training_data_sha256": training_data}
        head |= {"promised": promised} if promised else {}
        RecordChain(data / BUDGET_FILE, check_record, damaged_budget).append(head)
        return DataBudget(data)

    @property
    def epsilon(self) -> float:
        """That all runs together may spend."""
        return float(self._head["epsilon"])

    @property
    def delta(self) -> float:
        """At which epsilon is stated."""
        return float(self._head["delta"])

    @property
    def promised(self) -> dict[str, Any]:
        """What else is promised of all runs together."""
        return dict(self._head.get("promised", {}))

    @property
    def size(self) -> int:
        """Bytes of its file, which only grows."""
        return self._path.stat().st_size

    def check_data(self, training_data: str | None) -> None:
        """Refuse data by their fingerprint. Raises BudgetError where the budget is of others."""
        if self._head.get("training_data_sha256") not in (None, training_data):
            raise damaged_budget(f"{self._path}: the budget is of another data set")

    def reserved(self) -> Joint | None:
        """State what is reserved; None where nothing is."""
        trainings = trainings_of(standing_reservations(self._chain().records)[0])
        return self._together(trainings) if trainings else None

    def _together(self, trainings: list[Phase]) -> Joint:
        seen = seen_from(trainings, self._head.get("training_data_sha256"))
        return compose_trainings(each_once(seen), self.delta)

    def reserve(self, commitment: str, training: Phase, ancestry: tuple[Phase, ...], run: str | None = None) -> None:
        """Reserve the whole plan of a run, and what its first parameters went through as far as nobody has.

        Args:
          commitment: to the secret of its noise, or its name where it waits for its turn.
          training: all that it plans.
          ancestry: what its first parameters went through.
          run: its name, where it may wait: what it reserved then is replaced.

        Raises:
          BudgetError: that exceeds the budget, or the budget is of other data; nothing is reserved.
        """
        self.check_data(training.training_data_sha256)
        with self._locked() as chain:
            standing, begun = standing_reservations(chain.records)
            if commitment in standing:
                return
            standing = without_waiting(standing, begun, run)
            # Those of others too: what one run says of them another may contradict.
            behind = [
                phase
                for phase in ancestry
                if phase.not_private is not None or (phase.ledger or {}).get("secret") not in standing
            ]
            new = [training._replace(ledger={"secret": commitment}), *behind]
            known = trainings_of(standing)
            joint = self._together([*known, *new])
            if joint.epsilon is None or joint.epsilon > self.epsilon:
                raise BudgetError(self._refusal(joint, known, new))
            record = {"kind": "reserve", "secret": commitment, "trainings": [phase._asdict() for phase in new]}
            chain.append(record | ({} if run is None else {"run": run}))

    def _refusal(self, joint: Joint, known: list[Phase], new: list[Phase]) -> str:
        allowed = (
            f"{self._path}: all runs together may spend epsilon = {rounded_up(self.epsilon)} at delta = "
            f"{rounded_up(self.delta)} (unit: {joint.unit.partition(':')[0]}; adjacency: "
            f"{joint.adjacency.partition(':')[0]}), "
        )
        if joint.epsilon is None:
            return f"{allowed}and this run does not fit: nothing can be promised: {'; '.join(joint.not_private)}"
        held, alone = self._together(known) if known else None, self._together(new)
        reserved = "of which nothing is reserved"
        if held is not None:
            whose = ", ".join(dict.fromkeys(phase.words for phase in known))
            reserved = f"of which epsilon = {rounded_up(held.epsilon or 0.0)} is reserved, by {whose}"
        asked = "" if held is None or alone.epsilon is None else f", and {rounded_up(alone.epsilon)} for it alone"
        return (
            f"{allowed}{reserved}; this run does not fit: with it, epsilon would be {rounded_up(joint.epsilon)}"
            f"{asked}. Plan more noise or fewer rounds"
        )

    def begun(self, commitment: str) -> None:
        """Record that the ledger of a run that has reserved is on disk. Raises BudgetError where what it reserved was
        given back meanwhile."""
        with self._locked() as chain:
            standing, begun = standing_reservations(chain.records)
            if commitment not in standing:
                raise BudgetError(f"{self._path}: what this run reserved was given back; the run cannot go on")
            if commitment not in begun:
                chain.append({"kind": "begun", "secret": commitment})

    def void(self, commitment: str) -> None:
        """Give back what was reserved for a run that never had a ledger; one that had keeps it, a copy all."""
        with self._locked() as chain:
            standing, begun = standing_reservations(chain.records)
            if commitment in standing and commitment not in begun and not is_closed(chain.records):
                chain.append({"kind": "void", "secret": commitment})

    def close(self) -> None:
        """Record that this is a copy, from which nothing more is reserved. Raises BudgetError where it says so."""
        with self._locked() as chain:
            chain.append({"kind": "closed"})

    @property
    def closed(self) -> bool:
        """Whether it is a copy."""
        return is_closed(self._chain().records)

    def give_back(self, run: str) -> None:
        """Give back what a run of this name reserved that has not begun."""
        for commitment in self._of_run(run):
            self.void(commitment)

    def has_reserved(self, run: str) -> bool:
        """Say whether anything is reserved for a run of this name."""
        return bool(self._of_run(run))

    def begun_runs(self) -> frozenset[str]:
        """Name the runs that have begun, of those with names."""
        standing, begun = standing_reservations(self._chain().records)
        return frozenset(standing[one]["run"] for one in begun if one in standing and standing[one].get("run"))

    def waiting_runs(self) -> frozenset[str]:
        """Name the runs that have reserved and not begun, of those with names."""
        standing, begun = standing_reservations(self._chain().records)
        return frozenset(record["run"] for one, record in standing.items() if record.get("run") and one not in begun)

    def _of_run(self, run: str) -> list[str]:
        standing, _ = standing_reservations(self._chain().records)
        return [commitment for commitment, record in standing.items() if record.get("run") == run]

    def enter(self, commitment: str, known: Sequence[str], name: str) -> bool:
        """Enter a process that goes on with a run; see `fedlm.fl_core.runs.lineage.CommonPlace.enter`."""
        with self._locked() as chain:
            if entered_process(chain.records, commitment) not in (None, *known):
                return False
            chain.append({"kind": "enter", "secret": commitment, "process": name})
            return True

    def entered(self, commitment: str, name: str) -> bool:
        """Say whether that process is the last that went on with the run."""
        return entered_process(self._chain().records, commitment) == name

    def _chain(self, locked: int | None = None) -> RecordChain:
        chain = RecordChain(self._path, check_record, damaged_budget)
        chain.locked, chain.fence = locked, self.fence
        if not chain.records:
            raise damaged_budget(f"{self._path}: there is no whole record")
        return chain

    @contextlib.contextmanager
    def _locked(self) -> Iterator[RecordChain]:
        with self._path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield self._chain(file.fileno())


class Reservation:
    """What one run reserves; for `Releases`."""

    def __init__(self, budget: DataBudget, training: Phase, ancestry: tuple[Phase, ...], run: str | None = None):
        """Describe all that the run plans, and what its first parameters went through; see `DataBudget.reserve`."""
        self._budget, self._training, self._ancestry, self._run, self._commitment = budget, training, ancestry, run, ""

    def reserve(self, commitment: str) -> None:
        """See `DataBudget.reserve`."""
        self._budget.reserve(commitment, self._training, self._ancestry, self._run)

    def begun(self, commitment: str) -> None:
        """See `DataBudget.begun`; a run that was begun before there was a budget reserves now."""
        self.reserve(commitment)
        self._budget.begun(commitment)
        self._commitment = commitment

    def void(self, commitment: str) -> None:
        """See `DataBudget.void`; what has a name is replaced by the next reservation, so that nobody comes between."""
        if self._run is None:
            self._budget.void(commitment)

    def enter(self, known: Sequence[str], name: str) -> bool:
        """Enter a process that goes on with the run that was begun; see `DataBudget.enter`."""
        return self._budget.enter(self._commitment, known, name)

    def entered(self, name: str) -> bool:
        """See `DataBudget.entered`."""
        return self._budget.entered(self._commitment, name)


def reservation_from(budget: DataBudget, training: Phase, origins: Origins, run: str | None = None) -> Reservation:
    """Make what a private run reserves from a budget.

    Args:
      training: all that the run plans.
      origins: of what it begins with.
      run: its name, where it may wait for its turn; see `DataBudget.reserve`.
    """
    training = origins.noted_in(training._replace(vocabulary=origins.vocabulary.as_json()))
    return Reservation(budget, training, origins.ancestry, run)


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
