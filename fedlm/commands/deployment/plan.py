"""`fedlm plan`: plans, which clients without fedlm's models train by."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.console import Console
from rich.table import Table

from fedlm.command_line.command import Command, Group
from fedlm.command_line.options import read_options
from fedlm.fl_core.errors import ConfigurationError

if TYPE_CHECKING:
    from fedlm.fl_core.deployment.plans.plan import PlanSource
    from fedlm.fl_core.rounds.settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """Write the plan of a federated run: a model of LiteRT (TensorFlow Lite) that trains, makes uploads and predicts,
    and a manifest that says how a client runs it.

    A server with a key for plans makes the same plan itself, for clients that check in. Export one to look into it, or
    to ship it with an application. The package ai-edge-litert writes it.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run, a deployment's or a simulation's; or the TOML file of a deployment's settings (`--config` of
    `fedlm serve`), whether its server runs or not."""
    out: Path
    """Folder to make."""
    keys: Path | None = None
    """Folder of the key for plans, of `fedlm keys plan`."""
    unsigned: bool = False
    """Export without a signature. Clients do not run such a plan."""
    vocabulary: Path | None = None
    """Tokenizer: its JSON file, or the folder of a data set. If not given, that of the run's data set, or of the
    settings."""


@dataclass(frozen=True, kw_only=True)
class InspectCommand:
    """Say what is in a plan's folder: signatures and their operations, tensors, batches, limits, and who signed it."""

    folder: tyro.conf.Positional[Path]
    """The --out of `fedlm plan export`."""
    plan_key: Path | None = None
    """Public key, `plan.pub`, that the plan must be signed with."""
    json: bool = False
    """Print JSON: the manifest, and beside it the plan's digest and whether it is signed."""


_EXAMPLES = """To begin:

  fedlm keys plan
  fedlm plan export runs/deployment --keys keys --vocabulary runs/stdlib --out plan
  fedlm plan inspect plan --plan-key keys/plan.pub"""


def _export(argv: list[str]) -> int:
    command = read_options(ExportCommand, argv, "fedlm plan export")
    from fedlm.fl_core.deployment.plans.litert.graph import load_schema
    from fedlm.fl_core.deployment.plans.plan import make_plan
    from fedlm.fl_core.deployment.plans.plan_folder import write_plan
    from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner

    if command.unsigned == (command.keys is not None):
        raise ConfigurationError("a plan is signed with --keys, which `fedlm keys plan` makes, or exported --unsigned")
    signer = None if command.keys is None else PlanSigner(command.keys / PLAN_KEY_FILE)
    load_schema()
    source = (_of_settings if command.run.is_file() else _of_run)(command)
    plan = make_plan(source)
    write_plan(command.out, plan, None if signer is None else signer.sign(plan.manifest), source.tokenizer)
    print(f"plan {plan.digest} is in {command.out}{'; NOT SIGNED: clients refuse it' * (signer is None)}")
    return 0


def _of_run(command: ExportCommand) -> "PlanSource":
    """Read what a plan is made of from the folder of a run; one of a simulation says nothing of cutting text."""
    from fedlm.fl_core.composed_settings import compose, value_types
    from fedlm.fl_core.privacy.origins.ancestry import settings_in
    from fedlm.fl_core.rounds.settings import TrainingSettings
    from fedlm.fl_core.runs.capabilities.lora_settings import recorded_lora
    from fedlm.simulations.weights.exporting import read_run, tokenizer_of

    stored = read_run(command.run, command.vocabulary)
    settings = settings_in(stored.about)
    if "client_batch_size" not in settings or recorded_lora(settings) is not None:
        raise ConfigurationError(f"{command.run}: no run of clients that train a whole model; give the --out of one")
    training = compose(
        TrainingSettings, **{name: settings[name] for name in value_types(TrainingSettings) if name in settings}
    )
    source = _described(str(settings["model"]), training, tokenizer_of(command.run, stored.about, command.vocabulary))
    return source._replace(examples=settings["examples"]) if "examples" in settings else source


def _of_settings(command: ExportCommand) -> "PlanSource":
    """Read the same from a file of settings, as a server does that is begun with it."""
    from fedlm.commands.deployment.serve import ServeCommand

    given = [] if command.vocabulary is None else ["--vocabulary", str(command.vocabulary)]
    words = ["--config", str(command.run), "--out", str(command.out), *given]
    served = read_options(ServeCommand, words, "fedlm plan export")
    source = _described(served.run.deployment.model, served.run.deployment.training, served.run.vocabulary)
    return source._replace(examples=served.run.deployment.examples)


def _described(name: str, training: "TrainingSettings", vocabulary: Path) -> "PlanSource":
    """Put together what a plan is made of; refuses what a server of these settings does."""
    from fedlm.commands.deployment.served_run import served_model
    from fedlm.fl_core.deployment.plans.plan import PlanSource

    served = served_model(name, training, vocabulary)
    return PlanSource(name, served.content, served.tokenizer.vocabulary_size, training)


def _inspect(argv: list[str]) -> int:
    command = read_options(InspectCommand, argv, "fedlm plan inspect")
    from fedlm.fl_core.deployment.plans.plan_folder import read_plan, reading, signed_by

    plan, manifest, signature = read_plan(command.folder)
    if command.plan_key is not None and not signed_by(plan.manifest, signature, command.plan_key):
        raise ConfigurationError(f"{command.folder}: the plan is not signed with {command.plan_key}; do not run it")
    signed = "NOT SIGNED" if signature is None else "signed; --plan-key FILE checks by whom"
    if command.plan_key is not None:
        signed = f"signed with {command.plan_key}"
    if command.json:
        print(json.dumps({"sha256": plan.digest, "signed": signed, "manifest": manifest}, indent=2))
        return 0
    with reading(command.folder):
        _print(plan.digest, signed, manifest)
    return 0


def _print(digest: str, signed: str, manifest: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    about, batches, upload, limits = (manifest[name] for name in ("about", "batches", "upload", "limits"))
    console.print(f"plan {digest}, {signed}", markup=False)
    console.print(
        f"{about['client_algorithm']} on {about['model']}, {about['precision']}; batches of {batches['batch_size']} x "
        f"{batches['length'] + 1} tokens, at most {batches['max_batches']} of them",
        markup=False,
    )
    console.print(
        f"download {manifest['download']['values']:,} values; upload {upload['bytes']:,} bytes; memory "
        f"{limits['memory_bytes']:,} bytes, {limits['load_seconds']} s to load, {limits['call_seconds']} s a call"
    )
    console.print(f"model of LiteRT: {manifest['model']['bytes']:,} bytes", markup=False)
    for name, signature in manifest["signatures"].items():
        counted = ", ".join(f"{one} {count}" for one, count in sorted(signature["operations"].items()))
        console.print(f"{name}: {counted}", markup=False)
    table = Table("tensor", "shape", "values", "offset")
    for one in manifest["download"]["tensors"]:
        table.add_row(
            one["name"], "x".join(map(str, one["shape"])), f"{math.prod(one['shape']):,}", f"{one['offset']:,}"
        )
    console.print(table)


COMMAND = Group(
    "fedlm plan",
    "action",
    "Plans: training as a model of LiteRT, for clients without our code.",
    {
        "export": ("write the plan of a run", Command(ExportCommand, _export)),
        "inspect": ("say what is in a plan", Command(InspectCommand, _inspect)),
    },
    _EXAMPLES,
)
