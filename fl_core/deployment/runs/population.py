"""People whose devices train private runs of a server, and what is promised to them of all these runs together.

What is promised stands in the first record of their budget of privacy, so that nobody changes it later. All runs
number their rounds one after another, with so many numbers between two runs that no device takes part too soon again,
whichever of the two goes on. Devices count their rounds by these numbers, see `fedlm.fedlm_client.own_participation`.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlm.fl_core.client_algorithms.registry import EVALUATE
from fedlm.fl_core.deployment.runs.population_settings import POPULATION_DEFAULTS, PopulationSettings
from fedlm.fl_core.deployment.runs.run_queue import STOPPED, SubmittedRun
from fedlm.fl_core.deployment.server.task import PlaceInPopulation, Task
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, state_in
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation

if TYPE_CHECKING:
    # A server without private runs need not load the libraries of privacy.
    from fedlm.fl_core.runs.capabilities.data_budget import Reservation

_TERMS = ("unit", "adjacency", "vocabularies", "assumptions")


class Population:
    """What is promised of all runs of a population together. Any thread may use it."""

    def __init__(self, directory: Path):
        """Name the folder that has its budget of privacy. Raises BudgetError where that is damaged."""
        from fedlm.fl_core.runs.capabilities.data_budget import DataBudget

        self.budget = DataBudget(directory)
        found = POPULATION_DEFAULTS | self.budget.promised
        self.name, self.rounds = str(found["population"]), int(found["rounds"])
        self.promised = BoundedParticipation(found["max_participations"], found["min_separation"])
        self._stated: tuple[int, dict[str, Any], frozenset[str]] = (0, {}, frozenset())

    def check(self, asked: PopulationSettings) -> None:
        """Refuse to promise something else. Raises ConfigurationError."""
        found = {"epsilon": self.budget.epsilon, "delta": self.budget.delta, **self.budget.promised}
        given = {"epsilon": asked.epsilon, "delta": asked.delta, **asked.promised}
        for name, value in given.items():
            if value is not None and value != found[name]:
                raise ConfigurationError(
                    f"{setting(name)} is {value}, but {found[name]} was promised when this server started with the "
                    f"population {self.name!r} for the first time, and stays so; leave it out, or give other people"
                )

    def check_runs(self, runs: Sequence[SubmittedRun]) -> None:
        """Refuse a queue that lacks runs of which the budget knows. Raises ConfigurationError."""
        if lost := self.budget.begun_runs() - {run.name for run in runs}:
            raise ConfigurationError(
                f"population {self.name!r}: the queue lacks {', '.join(sorted(lost))}, begun by what the budget says; "
                "put the queue back as it was"
            )

    def read(self, runs: Sequence[SubmittedRun]) -> dict[str, Any]:
        """Tell what is promised of its runs, among all of a server, together, and what they have reserved of it.

        Returns:
          JSON-able: `name`, `rounds`, `rounds_left` for another run, `max_participations`, `min_separation`,
          `epsilon_budget`, `delta`, `epsilon_reserved` (also by runs that are over), and `unit`, `adjacency`,
          `vocabularies` and `assumptions`, which are None where nothing is reserved; and `statement`, all of that in
          sentences.
        """
        size = self.budget.size
        if size != self._stated[0]:
            self._stated = size, self._state_reserved(), self.budget.begun_runs()
        last = max(self._ends(runs, self._stated[2]), default=0)
        found = {
            "name": self.name,
            "rounds": self.rounds,
            "rounds_left": self.rounds - last,
            **dataclasses.asdict(self.promised),
            "epsilon_budget": self.budget.epsilon,
            "delta": self.budget.delta,
            **self._stated[1],
        }
        return found | {"statement": _in_words(found)}

    def _state_reserved(self) -> dict[str, Any]:
        reserved = self.budget.reserved()
        if reserved is None:
            return {"epsilon_reserved": 0.0} | dict.fromkeys(_TERMS)
        stated = reserved.as_json()
        spent = self.budget.epsilon if self.budget.closed else stated["epsilon"]
        return {"epsilon_reserved": spent} | {name: stated[name] for name in _TERMS}

    def complete(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Add the population's name to all settings of a run. Raises ConfigurationError where they promise less than
        the population was."""
        if settings["privacy"] == "none" or settings["noise_seed"] != "entropy":
            raise ConfigurationError(
                f"{setting('privacy')} is {settings['privacy']} and {setting('noise_seed')} {settings['noise_seed']}, "
                "but the populations of this server have a budget of privacy, so that only private runs with secret "
                f"noise may use it; give {setting('privacy')}, and leave {setting('noise_seed')} out"
            )
        if settings["min_separation"] != self.promised.min_separation:
            raise ConfigurationError(
                f"{setting('min_separation')} is {settings['min_separation']}, but the population was promised "
                f"{self.promised.min_separation}, which its devices hold; give that"
            )
        # Its epsilon rests on no more than what devices themselves hold all runs to, also where a server counts each
        # device of an evaluation once.
        most, held = settings["max_participations"], self.promised.most(settings["rounds"])
        if most is not None and most < held and settings["client_algorithm"] != EVALUATE:
            raise ConfigurationError(
                f"{setting('max_participations')} is {most}, but by what the population was promised its devices may "
                f"take part in {held} of {settings['rounds']} rounds; give that, or leave it out"
            )
        return settings | {"population": self.name}

    def first_round(self, settings: dict[str, Any], runs: Sequence[SubmittedRun]) -> int:
        """Choose where the numbers of a new run's rounds begin. Raises ConfigurationError where not enough are left."""
        ends = self._ends(runs, self.budget.begun_runs())
        first = max(ends) + settings["min_separation"] - 1 if ends else 0
        if first + settings["rounds"] > self.rounds:
            raise ConfigurationError(
                f"{setting('rounds')} is {settings['rounds']}, but of the {self.rounds} rounds that the population was "
                f"promised at most {max(self.rounds - first, 0)} are left for another run"
            )
        return first

    def _ends(self, runs: Sequence[SubmittedRun], begun: Collection[str]) -> list[int]:
        """Give where the numbers of each run end; those of a run that was stopped before it began are free."""
        own = [run for run in runs if run.population == self.name]
        kept = [run for run in own if run.state != STOPPED or run.name in begun]
        return [run.first_round + run.settings["rounds"] for run in kept if run.first_round is not None]

    def reserve(self, run: SubmittedRun, reservation: "Reservation") -> None:
        """Reserve all that a run plans, unless it has. Raises BudgetError where that is too much."""
        if not self.budget.has_reserved(run.name):
            reservation.reserve(f"run {run.name}")

    def place(self, task: Task, run: SubmittedRun, folders: Iterable[Path] = ()) -> Task:
        """Put a run into its place among all others, of which these are the folders."""
        assert run.first_round is not None
        taken = _rounds_taken(folders, self.budget.begun_runs())
        place = PlaceInPopulation(run.name, run.first_round, self.rounds, self.promised, self.budget, taken)
        return dataclasses.replace(task, place=place)


def _rounds_taken(folders: Iterable[Path], begun: Collection[str]) -> dict[str, int]:
    """Count, by the identities of clients, in how many rounds of runs each took part. Raises ConfigurationError where
    one that has begun is not there."""
    taken: dict[str, int] = {}
    for folder in folders:
        if not (folder / DATABASE_FILE).exists():
            if folder.name not in begun:
                continue
            raise ConfigurationError(
                f"{folder}: is not whole, but says how often each client took part in that run, which counts in all "
                "that follow; put it back"
            )
        state = state_in(folder)
        try:
            for client in state.clients():
                taken[client.identity] = taken.get(client.identity, 0) + client.participations
        finally:
            state.close()
    return taken


def _in_words(population: dict[str, Any]) -> list[str]:
    most = population["max_participations"]
    budget = f"epsilon {rounded_up(population['epsilon_budget'])} at delta {rounded_up(population['delta'])}"
    lines = [
        f"population {population['name']}: all runs together may spend {budget}",
        f"rounds: {population['rounds']} of all runs, {population['rounds_left']} of them left; each client in "
        f"{'any number' if most is None else f'{most} at most'}, whose numbers differ by "
        f"{population['min_separation']} or more",
    ]
    if population["unit"] is None:
        return [*lines, "reserved: nothing"]
    reserved = population["epsilon_reserved"]
    return [
        *lines,
        f"reserved: epsilon {rounded_up(math.inf if reserved is None else reserved)} at that delta",
        f"unit: {population['unit']}",
        f"adjacency: {population['adjacency']}",
        *(f"vocabulary: {origin['statement']}" for origin in population["vocabularies"]),
        *(f"assumes: {assumption}" for assumption in population["assumptions"]),
    ]
