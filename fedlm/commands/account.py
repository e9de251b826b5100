"""`fedlm account`: what a run promises, or has spent, as a statement that a person can publish."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import tyro
from rich.console import Console
from rich.markup import escape

from fedlm.command_line.command import Command, Group
from fedlm.command_line.options import read_options
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.number_ranges import Count, LargeCount, Positive, Probability
from fedlm.fl_core.privacy.accounting.delta import Delta
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_down, rounded_up
from fedlm.fl_core.privacy.mechanisms.interface import Mechanism
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE, settings_in
from fedlm.fl_core.privacy.origins.publisher_claims import CLAIMS_FIELD
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD
from fedlm.fl_core.privacy.participation import (
    BoundedParticipation,
    PoissonParticipation,
    participation_in_words,
)
from fedlm.fl_core.privacy.promise.plan import LEDGER_FILE, PrivacyPlan, plan_noise
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.simulations.experiments.configuration import Experiment
from fedlm.simulations.experiments.presets import SIMULATION_PRESETS

if TYPE_CHECKING:
    from fedlm.fl_core.privacy.record.ledger import PrivacyLedger

KINDS = {
    **{mechanism.name.replace("_", "-"): mechanism.summary for mechanism in MECHANISMS.values()},
    "dpsgd": "central DP-SGD with Poisson or truncated Poisson batches, or with banded noise",
    "simulate": "what `fedlm simulate` with the same options would promise, without running it",
    "ledger": "what a run has spent, or several runs together, from their ledgers",
    "budget": "what private runs on a data set may spend together, and what is reserved",
    "plot": "epsilon against rounds, and the noise of the mechanisms side by side, as a picture",
}


@dataclass(frozen=True, kw_only=True)
class _Noise:
    noise_multiplier: Positive | None = None
    """Standard deviation of one draw of noise, in clip norms."""
    epsilon: Positive | None = None
    """Instead of the noise multiplier: find the least noise for this epsilon."""
    rho: Positive | None = None
    """Instead of the noise multiplier: find the least noise for this rho of zero-concentrated differential privacy."""
    delta: Delta
    """Delta at which epsilon is stated."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class _Federated(_Noise):
    rounds: Count
    """T, the number of rounds."""
    max_participations: Count | None = None
    """k, the most rounds in which a client takes part."""
    min_separation: Count = 1
    """b, the least difference between the numbers of two rounds of a client: 1 allows adjacent rounds. (TensorFlow
    Privacy counts the rounds between the two, which is one less.)"""


@dataclass(frozen=True, kw_only=True)
class _Sampling:
    sampling_probability: Probability | None = None
    """Probability that a client takes part in a round, independently and in secret (Poisson sampling)."""


def _command_of(mechanism: Mechanism) -> type:
    """Make the options of a mechanism's statement, its own last."""
    sampled = mechanism.independent_rounds
    who = (
        "Either every client takes part in every round independently with `--sampling-probability`, which amplifies "
        "privacy\n(adjacency: add-or-remove), or in at most `--max-participations` rounds that anybody may choose "
        "(zero-out)."
        if sampled
        else "Unit: a client, with all its examples. Adjacency: zero-out."
    )
    about = f"State the privacy of a federated run with {mechanism.summary}.\n\n{who}"
    bases = (mechanism.options, *((_Sampling,) if sampled else ()), _Federated)
    return dataclass(frozen=True, kw_only=True)(type("_MechanismCommand", bases, {"__doc__": about}))


@dataclass(frozen=True, kw_only=True)
class DpSgdCommand(_Noise):
    """State the privacy of central training with DP-SGD, or with banded noise.

    Unit: an example. Every example is in a batch independently with probability batch-size / examples. With bands, each
    example belongs to one of as many parts, and is in the batches of its part with as many times that probability.
    Accounted by privacy loss distributions: epsilon is an upper bound at any delta, with a lower bound and the looser
    epsilon of Renyi accounting beside it.
    """

    examples: LargeCount
    """N, the number of examples."""
    batch_size: LargeCount
    """B, the mean number of examples in a batch."""
    steps: Count
    """T, the number of steps."""
    sampling: Literal["poisson", "truncated-poisson"] = "poisson"
    """How batches are drawn. truncated-poisson: a batch that is too large for the device loses examples at random."""
    truncated_batch_size: LargeCount | None = None
    """Most examples that the device takes, for truncated-poisson. If not given, the batch size plus six standard
    deviations."""
    mechanism: Literal["gaussian", "banded"] = "gaussian"
    """gaussian: the noise of every step is independent. banded: it is correlated, with cyclic sampling (amplified
    banded matrix factorization)."""
    bands: Count | None = None
    """Bands of the banded mechanism. If not given, the number with the least error at epsilon."""
    adjacency: Literal["add_or_remove", "zero_out"] = "add_or_remove"
    """Which data sets are neighbours: one example more or less, or one example whose gradient is zero."""


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


@dataclass(frozen=True, kw_only=True)
class PlotCommand:
    """Draw epsilon against rounds, and the error of the mechanisms at equal privacy."""

    rounds: Count
    """T, the number of rounds."""
    max_participations: Count | None = None
    """k, the most rounds in which a client takes part."""
    min_separation: Count = 1
    """b, the least difference between the numbers of two rounds of a client."""
    epsilon: Positive
    """Epsilon for which every mechanism gets its noise."""
    delta: Delta
    """Delta at which epsilon is stated."""
    out: Path
    """The picture, .png, .svg or .pdf."""


def _state(kind: str, argv: list[str]) -> int:
    presets = SIMULATION_PRESETS if kind == "simulate" else None
    mechanism = MECHANISMS.get(kind.replace("-", "_"))
    essentials = _ESSENTIALS if kind == "simulate" else ()
    command: Any = read_options(
        _options_of(kind), argv, f"fedlm account {kind}", presets=presets, essentials=essentials
    )
    if kind == "plot":
        return _plot(command)
    statement = _federated(mechanism, command) if mechanism else _STATEMENTS[kind](command)
    if command.json:
        print(json_text(statement, indent=2))
    else:
        _print(statement)
    return 0


def _federated(mechanism: Mechanism, command: Any) -> dict[str, Any]:
    from fedlm.fl_core.privacy.promise.guarantee import account

    probability = getattr(command, "sampling_probability", None)
    participation: Any = BoundedParticipation(command.max_participations, command.min_separation)
    if probability is not None:
        if command.max_participations is not None or command.min_separation != 1:
            raise ConfigurationError(
                f"{setting('sampling_probability')} together with {setting('max_participations')} or "
                f"{setting('min_separation')}: a bound on participation is not made use of where clients are sampled; "
                "give one or the other"
            )
        participation = PoissonParticipation(probability)
    # The command has the mechanism's options among its own.
    with_noise = plan_noise(mechanism.name, command.rounds, participation, options=command)
    plan = _with_chosen_noise(command, with_noise)
    statement = account(plan, command.delta).as_json()
    return statement | {"privacy_profile": _profile(plan, statement["epsilon"]), "plan": plan.as_json()}


def _profile(plan: PrivacyPlan, epsilon: float | None) -> list[dict[str, float]]:
    """The least delta at some epsilons around the stated one."""
    from fedlm.fl_core.privacy.promise.guarantee import privacy_profile

    epsilons = [part * (epsilon or 1.0) for part in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)]
    deltas = privacy_profile(plan, epsilons)
    return [{"epsilon": one, "delta": delta} for one, delta in zip(epsilons, deltas, strict=True)]


def _with_chosen_noise(command: _Noise, with_noise: Callable[[float], PrivacyPlan]) -> PrivacyPlan:
    from fedlm.fl_core.privacy.promise.guarantee import calibrate

    given = [name for name in ("noise_multiplier", "epsilon", "rho") if getattr(command, name) is not None]
    if len(given) != 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigurationError(f"give exactly one of --noise-multiplier, --epsilon and --rho, not {flags or 'none'}")
    if command.noise_multiplier is not None:
        return with_noise(command.noise_multiplier)
    return calibrate(with_noise, command.delta, command.epsilon, command.rho)


def _dpsgd(command: DpSgdCommand) -> dict[str, Any]:
    from fedlm.fl_core.privacy.promise.band_choice import best_bands
    from fedlm.fl_core.privacy.promise.central_plan import central_plan, enough_for_most_batches, most_bands
    from fedlm.fl_core.privacy.promise.guarantee import account

    truncated = command.truncated_batch_size
    if command.sampling == "poisson" and truncated is not None:
        raise ConfigurationError(f"{setting('truncated_batch_size')} does nothing with poisson sampling; leave it out")
    if command.sampling == "truncated-poisson" and truncated is None:
        truncated = enough_for_most_batches(command.batch_size)

    def planned(bands: int | None) -> PrivacyPlan:
        def with_noise(noise_multiplier: float) -> PrivacyPlan:
            return central_plan(
                command.examples,
                command.batch_size,
                command.steps,
                noise_multiplier,
                truncated_batch_size=truncated,
                adjacency=command.adjacency,
                bands=bands,
            )

        return _with_chosen_noise(command, with_noise)

    if command.mechanism == "gaussian" and command.bands is not None:
        raise ConfigurationError(f"{setting('bands')} does nothing with the mechanism gaussian; leave it out")
    if command.mechanism == "gaussian" or command.bands is not None:
        plan = planned(command.bands)
    elif command.epsilon is None:
        raise ConfigurationError("bands can only be chosen for an epsilon; give --bands, or --epsilon")
    else:
        plan = best_bands(planned, most_bands(command.examples, command.batch_size, command.steps))
    return account(plan, command.delta).as_json() | {
        "bands": len(plan.coefficients) or None,
        "truncated_batch_size": truncated,
        "noise_batch_ratio": plan.noise_multiplier / command.batch_size,
        "plan": plan.as_json(),
    }


def _simulation(command: SimulateStatementCommand) -> dict[str, Any]:
    from fedlm.fl_core.privacy.statement import state_plan
    from fedlm.simulations.experiments.preparation import prepare

    prepared = prepare(command.experiment)
    privacy = prepared.privacy
    if privacy is None:
        raise ConfigurationError(
            f"{setting('privacy')} is none: such a run promises nothing; give --privacy, or a preset that has it"
        )
    aggregation = privacy.plan()
    statement = state_plan(aggregation.plan, privacy.delta, prepared.identity.about())
    return statement.as_terms() | {"clip_norm": aggregation.clip_norm, "plan": aggregation.plan.as_json()}


def _ledger(command: LedgerCommand) -> dict[str, Any]:
    from fedlm.fl_core.privacy.statement import state, state_together

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


def _budget(command: BudgetCommand) -> dict[str, Any]:
    from fedlm.fl_core.runs.data_budget import DataBudget
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
        raise ConfigurationError(f"{given}: neither a ledger nor the folder of a private run; give one of these")
    return path


def _print(statement: dict[str, Any]) -> None:
    console = Console()
    if statement.get("not_private"):
        console.print(f"[red]NOT PRIVATE[/]: {statement['not_private']}")
    unlimited = statement["epsilon"] is None and not statement.get("not_private")
    shown = statement | ({"epsilon": "infinite"} if unlimited else {})
    for name in _SHOWN:
        if shown.get(name) is not None:
            _print_line(console, name.replace("_", " "), _shown(name, shown[name]))
    if "participation" in statement:
        words = f"{participation_in_words(statement['participation'])}; counted without noise, not to be published"
        _print_line(console, "realised", words)
    vocabularies = statement.get("vocabularies", [statement[ORIGIN_FIELD]] if ORIGIN_FIELD in statement else [])
    for vocabulary in vocabularies:
        _print_line(console, "vocabulary", vocabulary["statement"])
    for training in statement.get("trainings", ()):
        plan = training["plan"]
        noise = f"{plan['mechanism']} noise, multiplier {plan['noise_multiplier']:.6g}" if plan else "no noise"
        text = f"{training['folder']}: fedlm {training['command']}, {training['steps']} releases at most, {noise}"
        _print_line(console, "training", text)
    for claim in statement.get(CLAIMS_FIELD, ()):
        _print_line(console, "claimed by a publisher", claim["statement"])
    for number, assumption in enumerate(statement["assumptions"]):
        _print_line(console, "" if number else "assumptions", f"- {assumption}")


def _shown(name: str, value: Any) -> str:
    if name in _BOUNDS and isinstance(value, float):
        return _BOUNDS[name](value, 6)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _print_line(console: Console, name: str, text: str) -> None:
    lines = wrap(text, max(console.width - _MARGIN - 2, 40)) if console.is_terminal else [text]
    for number, line in enumerate(lines):
        console.print(f"{'' if number else name:>{_MARGIN}}  {escape(line)}", soft_wrap=True, highlight=False)


def _plot(command: PlotCommand) -> int:
    from fedlm.simulations.reporting.plots.privacy_plots import plot_mechanisms

    plot_mechanisms(**{field.name: getattr(command, field.name) for field in dataclasses.fields(command)})
    Console().print(f"plot: {command.out}", soft_wrap=True)
    return 0


_EXAMPLES = """For example:

  fedlm account tree --rounds 3000 --max-participations 5 --min-separation 400 \\
      --noise-multiplier 7 --delta 1e-10"""
_ESSENTIALS = (
    *("json", "model", "data", "rounds", "cohort_size", "cohort_sampler", "min_separation", "max_participations"),
    *("update_clip_norm", "privacy", "noise_multiplier", "target_epsilon", "target_rho", "delta"),
)
_MARGIN = 25
_SHOWN = (
    "mechanism",
    "epsilon_budget",
    "epsilon",
    "epsilon_lower",
    "delta",
    "epsilon_by_rdp",
    "rho",
    "sensitivity",
    "noise_multiplier",
    "noise_batch_ratio",
    "bands",
    "rounds",
    "unit",
    "adjacency",
    "truncated_batch_size",
    "planned_rounds",
    "interrupted_generations",
    "clip_norm",
)
_BOUNDS = {
    **dict.fromkeys(("epsilon_budget", "epsilon", "delta", "epsilon_by_rdp", "rho", "sensitivity"), rounded_up),
    "epsilon_lower": rounded_down,
}
_STATEMENTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "dpsgd": _dpsgd,
    "simulate": _simulation,
    "ledger": _ledger,
    "budget": _budget,
}
_COMMANDS: dict[str, type] = {
    "dpsgd": DpSgdCommand,
    "simulate": SimulateStatementCommand,
    "ledger": LedgerCommand,
    "budget": BudgetCommand,
    "plot": PlotCommand,
}


def _options_of(kind: str) -> type:
    mechanism = MECHANISMS.get(kind.replace("-", "_"))
    return _command_of(mechanism) if mechanism else _COMMANDS[kind]


COMMAND = Group(
    "fedlm account",
    "subject",
    "State what a run promises, or has spent: epsilon and delta with unit, adjacency and assumptions.",
    {kind: (text, Command(_options_of(kind), partial(_state, kind))) for kind, text in KINDS.items()},
    _EXAMPLES,
)
