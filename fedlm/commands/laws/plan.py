"""`fedlm laws plan`: the best private training for a budget, by measured laws."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.fl_core.atomic_files import make_folder, write_atomically
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.number_ranges import AtLeastOne, Count, Positive, PositiveOrInfinite
from fedlm.fl_core.privacy.accounting.delta import Delta, planned_delta
from fedlm.simulations.laws.planning.federated_settings import FederatedSettings

if TYPE_CHECKING:
    from fedlm.simulations.laws.laws_file import Laws
    from fedlm.simulations.laws.planning.central_training import ChosenTraining, TrainingData
    from fedlm.simulations.laws.planning.federated_training import ChosenFederatedTraining


@dataclass(frozen=True, kw_only=True)
class LawsPlanCommand:
    """Find the model, batch size, steps and noise of the least loss for a number of examples, an epsilon and a compute.

    Laws that `fedlm laws fit` fitted predict the loss. The command compares all trainings that spend the compute, some
    ten thousand. It looks the noise of each up in a table that is right to 0.1 %. The noise-batch ratio follows from
    the noise, and the loss from that ratio, model size and steps (McKenna et al. 2025, "Scaling laws for differentially
    private language models"). It then takes the model that can be built nearest to the best one, in the measured
    architecture, and the accountant computes its noise again. That is what is stated: the unit is an example,
    neighbours have one example more or less, and batches are drawn by Poisson sampling, as `fedlm pretrain` does.
    Compute is 6 times parameters, batch size, steps and length.

    Nothing is planned outside the sizes and noise that were measured. Where steps go beyond the longest training, the
    output says that it extrapolates.

    With --federated the command finds model, cohort size, rounds and noise for --people and --client-trainings instead
    of examples and compute, by laws of federated runs (`fedlm laws import`). The noise has the mechanism of these runs,
    since with another mechanism the same noise multiplier means another loss; measure each that you want to compare. A
    client training counts the same for all models. --cohort-sampler says how cohorts are drawn. The accountant may
    refuse it, such as Poisson cohorts with correlated noise. The unit is a client, with neighbours by addition or
    removal with Poisson cohorts, else by zero-out; `fedlm account` gives the same epsilon.
    """

    laws: Path | None = None
    """File of laws, as `fedlm laws fit` writes it. If not given, the laws that come with fedlm, of small models on one
    text; the answer says so."""
    examples: AtLeastOne | None = None
    """N, the number of examples to draw from, each of which is hidden. If not given, that of --data."""
    epsilon: PositiveOrInfinite
    """Epsilon that the whole training may spend; inf for a training that is NOT PRIVATE."""
    compute: Positive | None = None
    """C, floating-point operations: 6 times parameters, batch size, steps and length."""
    delta: Delta | None = None
    """Delta at which epsilon is stated. If not given, the number of examples, or people, to the power -1.1."""
    length: Count | None = None
    """Tokens of an example. If not given, as many as in the laws."""
    data: Path | None = None
    """Token store to train on. The plan has its vocabulary and number of examples."""
    near: Positive = 0.01
    """Also print the range of trainings whose loss is larger by at most this share."""
    json: bool = False
    """Print one JSON object."""
    write_config: Path | None = None
    """Write a file of options, .toml, for `fedlm pretrain --config FILE --out RUN`, or with --federated for `fedlm
    simulate`. It trains what was planned. A model without a name is described in a file beside it. Without --data the
    training needs `--data` too. The run finds the noise for as many examples, or clients, as its data has."""
    federated: bool = False
    """Plan a federated training."""
    of_federated: FederatedSettings

    def __post_init__(self) -> None:
        if self.write_config is not None and self.write_config.suffix != ".toml":
            raise ConfigurationError(f"{setting('write_config')} is {str(self.write_config)!r}, but must end in .toml")
        if self.federated:
            if self.laws is None:
                raise ConfigurationError(
                    "give --laws with --federated: those that come with fedlm are of central training"
                )
            self._check_unused(
                f"with federated; give {setting('people')} and {setting('client_trainings')}", self, _CENTRAL
            )
            return
        self._check_unused(
            f"without {setting('federated')}", self.of_federated, [one.name for one in fields(FederatedSettings)]
        )
        if self.compute is None:
            raise ConfigurationError("give --compute, which a plan of central training needs")
        if self.examples is None and self.data is None:
            raise ConfigurationError("give --examples, or --data to count them")

    def _check_unused(self, when: str, settings: Any, names: Sequence[str]) -> None:
        for name in names:
            if getattr(settings, name) is not None:
                raise ConfigurationError(f"{setting(name)} is {getattr(settings, name)}, which does nothing {when}")


_CENTRAL = ("examples", "compute", "length", "data")


def main(argv: list[str]) -> int:
    """Run `fedlm laws plan`."""
    command = read_options(LawsPlanCommand, argv, "fedlm laws plan")
    from fedlm.commands.laws.printed_plan import print_plan
    from fedlm.simulations.laws.laws_file import ABOUT, SHIPPED_FILE, read_laws, shipped_laws
    from fedlm.simulations.laws.measuring.imported_runs import FEDERATED
    from fedlm.simulations.laws.planning.central_planner import Budget, Planner, make_plan
    from fedlm.simulations.laws.planning.central_training import choose_training, settings_of
    from fedlm.simulations.laws.planning.configurations import as_json

    laws = shipped_laws() if command.laws is None else read_laws(command.laws)
    file = command.laws or SHIPPED_FILE
    if laws.surface is None:
        raise ConfigurationError(
            f"{file}: has no surface of losses to plan by; fit it to measurements of several models and ratios"
        )
    if command.federated:
        return _plan_federated(command, laws)
    if laws.task.get("command") == FEDERATED:
        raise ConfigurationError(f"{file}: is of federated runs; give --federated")
    assert command.compute is not None
    length = command.length or laws.surface.length
    data = None if command.data is None else _opened(command.data, length, laws)
    examples = float(command.examples or (0 if data is None else data.examples))
    if data is not None and examples != data.examples:
        raise ConfigurationError(
            f"{setting('examples')} is {examples:g}, but {command.data} has {data.examples:,} of {length} tokens; "
            "leave one out"
        )
    delta = planned_delta(command.delta, examples)
    budget = Budget(examples, command.epsilon, delta, command.compute)
    plan = make_plan(Planner(laws.surface, length), budget, command.near)
    chosen = choose_training(laws, plan, data)
    if command.json:
        print(json_text(as_json({"training": chosen, "plan": plan, "laws": laws.source})))
    else:
        print_plan(chosen, plan, command.near, laws.surface.measured_steps)
        if command.laws is None:
            print(f"by the laws that come with fedlm, of {laws.source.get(ABOUT, 'a grid that they do not name')}")
    if command.write_config is not None:
        what = f"{chosen.examples} examples, epsilon {command.epsilon:g}, compute {command.compute:g}"
        _write_config(command, laws, chosen, settings_of=settings_of, budget=what)
    return 0


def _plan_federated(command: LawsPlanCommand, laws: "Laws") -> int:
    from fedlm.commands.laws.printed_plan import print_federated_plan
    from fedlm.simulations.laws.planning.configurations import as_json
    from fedlm.simulations.laws.planning.federated_training import plan_federated, settings_of

    found = plan_federated(laws, command.of_federated, command.epsilon, command.delta, near=command.near)
    if command.json:
        print(json_text(as_json({"training": found, "laws": laws.source})))
    else:
        print_federated_plan(found, command.near)
    if command.write_config is not None:
        trainings = f"{command.of_federated.client_trainings:g} client trainings"
        _write_config(
            command,
            laws,
            found,
            settings_of=settings_of,
            budget=f"{found.people} people, epsilon {command.epsilon:g}, {trainings}",
        )
    return 0


def _opened(data: Path, length: int, laws: "Laws") -> "TrainingData":
    """Count a store's examples, as they are trained on, and say what they and its vocabulary are."""
    from fedlm.simulations.data.store.token_store import TokenStore
    from fedlm.simulations.laws.planning.central_training import TrainingData
    from fedlm.simulations.pretraining.batches.opening_units import open_units

    store = TokenStore.open(data)
    packing = laws.task.get("packing", "packed")
    units = open_units(
        store, "train", length, unit="example", packing=packing, sequences_per_unit=1, seed=0, cache=data / "cache"
    )
    unit = f"{units.noun}: {units.unit}, in all steps"
    return TrainingData(units.count, store.vocabulary_size, unit, units.protects, store.vocabulary_origin)


def _write_config(
    command: LawsPlanCommand,
    laws: "Laws",
    chosen: "ChosenTraining | ChosenFederatedTraining",
    *,
    settings_of: "Callable[[Any, Laws, str], dict[str, Any]]",
    budget: str,
) -> None:
    """Write the options of a run that trains what was chosen, and the budget above them."""
    assert command.write_config is not None
    if chosen.model is None:
        raise ConfigurationError(
            f"the models of the laws, {', '.join(laws.surface.models if laws.surface else ())}, are none that can be "
            "built here, so that there is no config; measure named models"
        )
    make_folder(command.write_config.parent)
    described = command.write_config.with_suffix(".model.json")
    settings = settings_of(chosen, laws, chosen.model.name or str(described))
    if chosen.model.name is None:
        write_atomically(described, json.dumps(chosen.model.description, indent=1) + "\n")
    if command.data is not None:
        settings["data"] = str(command.data)
    # Strings and numbers of JSON are TOML's too.
    lines = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in settings.items())
    write_atomically(command.write_config, f"# fedlm laws plan: {budget}; predicted loss {chosen.loss:.4f}\n{lines}")
    if not command.json:
        run = "simulate" if command.federated else "pretrain"
        data = "" if "data" in settings else " --data DATA"
        print(f"`fedlm {run} --config {command.write_config}{data} --out RUN` trains it")


COMMAND = Command(LawsPlanCommand, main)
