"""`fedlm account simulate`, `ledger` and `budget`: what runs would promise, have spent, or may spend together."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Positive
from fedlm.fl_core.privacy.accounting.delta import Delta
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE, settings_in
from fedlm.fl_core.privacy.promise.plan import LEDGER_FILE
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.simulations.experiments.configuration import Experiment

if TYPE_CHECKING:
    from fedlm.fl_core.privacy.record.ledger import PrivacyLedger


@dataclass(frozen=True, kw_only=True)
class SimulateStatementCommand:
    """State what `fedlm simulate` with the same options, preset and configuration would promise, without running it."""

    experiment: Experiment
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class LedgerCommand:
    """State what a run has spent, from its ledger, or what several runs have spent together.

    The statement includes what the run's first parameters went through. Several runs are taken to be of the same
    people, and one accountant composes all their releases, each once. For one run that is over, the output has how
    often clients took part beside what was planned. That was counted without noise, for whoever runs the training: do
    not publish it.
    """

    path: tyro.conf.Positional[tuple[Path, ...]]
    """Ledgers, or folders of runs."""
    delta: Delta | None = None
    """Delta at which epsilon is stated. If not given, that of the runs."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigurationError("there is no run; give at least one ledger, or folder of a run")

    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class BudgetCommand:
    """Give a data set a privacy budget, or show what is reserved of it.

    Before it begins, every private run on the data set reserves all that it plans to spend. A run that does not fit is
    refused, and so are runs without privacy. One accountant composes everything. A budget does not change.
    """

    data: tyro.conf.Positional[Path]
    """Folder of the data set."""
    epsilon: Positive | None = None
    """Epsilon that all runs together may spend, to set the budget. If not given, the command shows what is reserved."""
    delta: Delta | None = None
    """Delta at which epsilon is stated."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        if (self.epsilon is None) != (self.delta is None):
            raise ConfigurationError("a budget needs both epsilon and delta; give both to set it, or none to show it")


def state_simulation(command: SimulateStatementCommand) -> dict[str, Any]:
    """State what a simulation would promise."""
    from fedlm.fl_core.privacy.statement import state_plan
    from fedlm.simulations.experiments.preparation import prepare

    prepared = prepare(command.experiment)
    privacy = prepared.privacy
    if privacy is None:
        raise ConfigurationError(
            f"{setting('privacy')} is none: such a run promises nothing; give --privacy, or a preset that has it"
        )
    aggregation = privacy.plan()
    statement = state_plan(aggregation.plan, prepared.delta, prepared.identity.about())
    return statement.as_terms() | {"clip_norm": aggregation.clip_norm, "plan": aggregation.plan.as_json()}


def state_ledger(command: LedgerCommand) -> dict[str, Any]:
    """State what runs have spent."""
    from fedlm.fl_core.privacy.joint_statement import state_together
    from fedlm.fl_core.privacy.statement import state

    ledgers = {str(path): _read_ledger(path) for path in command.path}
    if len(ledgers) > 1:
        return state_together(ledgers, command.delta).as_json()
    (ledger,) = ledgers.values()
    settings = settings_in(ledger.about)
    found = state(ledger, command.delta).as_terms() | {
        "planned_rounds": ledger.plan.rounds,
        "interrupted_generations": len(ledger.generations) - 1,
        "clip_norm": settings.get("update_clip_norm", settings.get("clip_norm")),
    }
    participation = _realised_participation(command.path[0])
    return found if participation is None else found | {"participation": participation}


def _realised_participation(given: Path) -> dict[str, Any] | None:
    """Read how often clients took part in a run, beside what was planned; None where no summary says it."""
    from fedlm.fl_core.runs.identity import SUMMARY_FILE
    from fedlm.fl_core.runs.recorded_runs import read_run

    path = _ledger_path(given).absolute()
    directory = path.parents[1]
    if path.parent.name != PRIVACY_FOLDER or not (directory / SUMMARY_FILE).exists():
        return None
    return (read_run(directory).summary or {}).get("participation")


def state_budget(command: BudgetCommand) -> dict[str, Any]:
    """Set the budget of a data set, or state what is reserved of it."""
    from fedlm.fl_core.runs.capabilities.data_budget import DataBudget
    from fedlm.simulations.data.store.token_store import TokenStore

    training_data = TokenStore.open(command.data).training_data(check=command.epsilon is not None)
    if command.epsilon is not None and command.delta is not None:
        budget = DataBudget.set(command.data, command.epsilon, command.delta, training_data)
    elif (command.data / BUDGET_FILE).exists():
        budget = DataBudget(command.data)
        budget.check_data(training_data)
    else:
        raise ConfigurationError(f"{command.data}: the data set has no budget; give --epsilon and --delta to set one")
    reserved = budget.reserved()
    nothing: dict[str, Any] = {"epsilon": 0.0, "delta": budget.delta, "trainings": [], "assumptions": []}
    return {"epsilon_budget": budget.epsilon, **(nothing if reserved is None else reserved.as_json())}


def _read_ledger(given: Path) -> "PrivacyLedger":
    from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
    from fedlm.fl_core.runs.outcome import ledger_in

    path = _ledger_path(given).absolute()
    found = ledger_in(path.parents[1]) if path.parent.name == PRIVACY_FOLDER else None
    return found or PrivacyLedger(path)


def _ledger_path(given: Path) -> Path:
    folders = [given, given / PRIVACY_FOLDER]
    path = next((folder / LEDGER_FILE for folder in folders if (folder / LEDGER_FILE).exists()), given)
    if not path.is_file():
        from fedlm.fl_core.runs.recorded_runs import is_run

        if is_run(given):
            raise ConfigurationError(f"{given}: NOT PRIVATE: this run has no ledger, so nothing is promised of it")
        raise ConfigurationError(f"{given}: neither a ledger nor the folder of a private run; give one of these")
    return path
