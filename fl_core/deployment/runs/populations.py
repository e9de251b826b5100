"""All populations of a server: the first one's budget of privacy lies in its folder, each further one's in a folder."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlm.fl_core.atomic_files import make_folder
from fedlm.fl_core.deployment.runs.population import Population
from fedlm.fl_core.deployment.runs.population_settings import POPULATION_DEFAULTS, PopulationSettings
from fedlm.fl_core.deployment.runs.run_queue import SubmittedRun
from fedlm.fl_core.deployment.server.settings import check_population
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE

POPULATIONS_FOLDER = "populations"
_DEFAULT = POPULATION_DEFAULTS["population"]


class Populations:
    """What is promised of the runs of each population; nothing where runs are NOT PRIVATE. Any thread may use it.

    Attributes:
      all: by name, the first one first.
    """

    def __init__(self, populations: Sequence[Population] = ()):
        self.all: Mapping[str, Population] = {one.name: one for one in populations}

    @staticmethod
    def open(directory: Path, asked: PopulationSettings, runs: Sequence[SubmittedRun]) -> "Populations":
        """Find what a server promises, and promise it to each population that is new.

        Raises:
          ConfigurationError: something else was promised, or the server has runs that nothing was promised of.
        """
        found = [Population(folder) for folder in _folders(directory)]
        known = {one.name: one for one in found}
        if lost := {run.population for run in runs if run.first_round is not None} - known.keys():
            raise ConfigurationError(
                f"{directory}: {BUDGET_FILE} of the population {', '.join(sorted(lost))} is missing, but private runs "
                "are there; put it back"
            )
        for name in _names(asked, found):
            if name in known:
                known[name].check(asked)
            else:
                found.append(_promise(directory, name, asked, runs))
        for one in found:
            one.check_runs(runs)
        return Populations(found)

    def of(self, run: SubmittedRun) -> Population | None:
        """Find the population of a run; None of one that is NOT PRIVATE."""
        return None if run.first_round is None else self.all[run.population]

    def chosen(self, settings: Mapping[str, Any]) -> Population:
        """Find the population of a new run by its settings. Raises ConfigurationError where there is none."""
        name = settings["population"]
        if name == _DEFAULT and len(self.all) == 1:
            return next(iter(self.all.values()))
        if name not in self.all:
            raise ConfigurationError(
                f"{setting('population')} is {name!r}, but this server's populations are "
                f"{', '.join(map(repr, self.all))}; give one of them"
            )
        return self.all[name]

    def give_back(self, run: SubmittedRun) -> None:
        """Give back what a run has reserved and will not spend."""
        if (population := self.of(run)) is not None:
            population.budget.give_back(run.name)

    def give_back_of_others(self, runs: Collection[SubmittedRun]) -> Iterator[str]:
        """Give back what runs that are not there any more have reserved, and name them."""
        names = {run.name for run in runs}
        for population in self.all.values():
            for name in population.budget.waiting_runs() - names:
                population.budget.give_back(name)
                yield name

    def read(self, runs: Sequence[SubmittedRun]) -> list[dict[str, Any]]:
        """Tell of each population what `Population.read` does."""
        return [population.read(runs) for population in self.all.values()]


def _folders(directory: Path) -> list[Path]:
    numbered = directory / POPULATIONS_FOLDER
    others = [one for one in numbered.iterdir() if one.name.isdecimal()] if numbered.is_dir() else []
    return [one for one in (directory, *sorted(others, key=lambda one: int(one.name))) if (one / BUDGET_FILE).exists()]


def _names(asked: PopulationSettings, found: Sequence[Population]) -> Sequence[str]:
    if asked.population or not (asked.promised or asked.epsilon is not None):
        return asked.population
    return [found[0].name if found else _DEFAULT]


def _promise(directory: Path, name: str, asked: PopulationSettings, runs: Sequence[SubmittedRun]) -> Population:
    if asked.epsilon is None or asked.delta is None:
        names = ", ".join(map(setting, [*asked.promised, *(["population"] if asked.population else [])]))
        raise ConfigurationError(
            f"{names}: promised to {name!r} with a budget of privacy alone; give {setting('epsilon')} and "
            f"{setting('delta')} too, or leave it out"
        )
    if any(run.first_round is None for run in runs):
        raise ConfigurationError(
            f"{directory}: the server has runs that are NOT PRIVATE, so that nothing can be promised to the "
            "people who trained them; give another folder, and other people"
        )
    from fedlm.fl_core.runs.capabilities.data_budget import DataBudget

    check_population(name)
    folder, number = directory, 1
    while (folder / BUDGET_FILE).exists():
        number += 1
        folder = directory / POPULATIONS_FOLDER / str(number)
    make_folder(folder)
    promised = POPULATION_DEFAULTS | asked.promised | {"population": name}
    DataBudget.set(folder, asked.epsilon, asked.delta, promised=promised)
    return Population(folder)
