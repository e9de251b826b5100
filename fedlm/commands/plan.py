"""`fedlm plan`: what clients train that have none of our code."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from fedlm.commands.command import Command, Group
from fedlm.commands.options import read_options
from fedlm.fl_core.errors import ConfigurationError, setting

if TYPE_CHECKING:
    from fedlm.fl_core.deployment.plans.plan import PlanSource
    from fedlm.fl_core.settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """Write the plan of a federated run: its local step and what follows the last one as StableHLO programs, or as a
    model of LiteRT, and a manifest that says how a client runs them.

    A server with a key for plans makes such plans of StableHLO itself, for the runtimes of the clients that check in;
    an export is to look into, to compile for devices beforehand, and to try a runtime on. Programs are for CPUs, of
    fixed shapes, and those of StableHLO for months, not years: export again where a runtime is newer. A model of LiteRT
    predicts the next word too, and comes with the application that has its runtime, or from a server to its page.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run, a deployment's or a simulation's; or the TOML file of a deployment's settings (`--config` of
    `fedlm serve`), whose server may be running, or not begun."""
    out: Path
    """Folder to make."""
    format: Literal["stablehlo", "litert"] = "stablehlo"
    """What the programs are: StableHLO, or one model of LiteRT (TensorFlow Lite) of its built-in operations alone,
    which the package ai-edge-litert writes."""
    keys: Path | None = None
    """Folder of the key for plans, of `fedlm keys plan`."""
    unsigned: bool = False
    """Do without a signature. Clients run no such plan."""
    stablehlo: str | None = None
    """Version of StableHLO that the programs are for; the newest that is some weeks old where it is not given."""
    vocabulary: Path | None = None
    """The tokenizer: its JSON file, or the folder of a data set; that of the run's data set, or of the settings, where
    it is not given."""


@dataclass(frozen=True, kw_only=True)
class InspectCommand:
    """Say what is in a plan's folder: programs and their operations, tensors, batches, limits, and who signed it."""

    folder: tyro.conf.Positional[Path]
    """The --out of `fedlm plan export`."""
    plan_key: Path | None = None
    """Public key, `plan.pub`, that the plan must be signed with."""
    json: bool = False
    """Print JSON: the manifest, and beside it the plan's digest, the operations, and whether it is signed."""


_EXAMPLES = """To begin:

  fedlm keys plan
  fedlm plan export runs/deployment --keys keys --vocabulary runs/stdlib --out plan
  fedlm plan inspect plan --plan-key keys/plan.pub"""


def _export(argv: list[str]) -> int:
    command = read_options(ExportCommand, argv, "fedlm plan export")
    from fedlm.fl_core.deployment.plans.litert.folder import write_litert_plan
    from fedlm.fl_core.deployment.plans.litert.graph import load_schema
    from fedlm.fl_core.deployment.plans.litert.model import make_litert_plan
    from fedlm.fl_core.deployment.plans.plan import make_plan
    from fedlm.fl_core.deployment.plans.plan_folder import write_plan
    from fedlm.fl_core.deployment.plans.programs import versions
    from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner

    if command.unsigned == (command.keys is not None):
        raise ConfigurationError("a plan is signed with --keys, which `fedlm keys plan` makes, or exported --unsigned")
    signer = None if command.keys is None else PlanSigner(command.keys / PLAN_KEY_FILE)
    if command.format == "litert":
        if command.stablehlo is not None:
            raise ConfigurationError("--stablehlo is for --format stablehlo: a model of LiteRT has none; leave it out")
        load_schema()
    if command.stablehlo is not None and command.stablehlo not in versions():
        raise ConfigurationError(
            f"{setting('stablehlo')} is {command.stablehlo!r}, but programs are made for {', '.join(versions())}; "
            "choose one"
        )
    source = (_of_settings if command.run.is_file() else _of_run)(command)
    tokenizer = source.tokenizer

    def sign(manifest: bytes) -> bytes | None:
        return None if signer is None else signer.sign(manifest)

    if command.format == "litert":
        model = make_litert_plan(source)
        write_litert_plan(command.out, model, sign(model.manifest), tokenizer)
        digest, of = model.digest, "of LiteRT"
    else:
        version = command.stablehlo or versions()[1]
        plan = make_plan(source, version)
        write_plan(command.out, plan, sign(plan.manifest), tokenizer)
        digest, of = plan.digest, f"for StableHLO {version}"
    print(f"plan {digest} is in {command.out}, {of}{'; NOT SIGNED: clients refuse it' * (signer is None)}")
    return 0


def _of_run(command: ExportCommand) -> "PlanSource":
    """Read what a plan is made of from the folder of a run; one of a simulation says nothing of cutting text."""
    from fedlm.fl_core.composed_settings import compose, value_types
    from fedlm.fl_core.lora_settings import recorded_lora
    from fedlm.fl_core.privacy.ancestry import settings_in
    from fedlm.fl_core.settings import TrainingSettings
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
    from fedlm.commands.serve import ServeCommand

    given = [] if command.vocabulary is None else ["--vocabulary", str(command.vocabulary)]
    words = ["--config", str(command.run), "--out", str(command.out), *given]
    served = read_options(ServeCommand, words, "fedlm plan export")
    source = _described(served.deployment.model, served.deployment.training, served.vocabulary)
    return source._replace(examples=served.deployment.examples)


def _described(name: str, training: "TrainingSettings", vocabulary: Path) -> "PlanSource":
    """Put together what a plan is made of; refuses what a server of these settings does."""
    from fedlm.commands.serve import served_model
    from fedlm.fl_core.deployment.plans.plan import PlanSource

    served = served_model(name, training, vocabulary)
    return PlanSource(name, served.content, served.tokenizer.vocabulary_size, training)


def _inspect(argv: list[str]) -> int:
    command = read_options(InspectCommand, argv, "fedlm plan inspect")
    from fedlm.fl_core.deployment.plans.litert.folder import is_litert_plan, read_litert_plan
    from fedlm.fl_core.deployment.plans.litert.model import LitertPlan
    from fedlm.fl_core.deployment.plans.plan import Plan
    from fedlm.fl_core.deployment.plans.plan_folder import read_plan, reading, signed_by

    if is_litert_plan(command.folder):
        plan: Plan | LitertPlan
        plan, manifest, signature = read_litert_plan(command.folder)
        with reading(command.folder):
            operations = {name: one["operations"] for name, one in manifest["signatures"].items()}
        sizes = {"model": f"{manifest['model']['bytes']:,} bytes of a model of LiteRT"}
    else:
        plan, manifest, operations, signature = read_plan(command.folder)
        sizes = {
            name: f"{program['bytes']:,} bytes of StableHLO {manifest['stablehlo']}"
            for name, program in manifest["programs"].items()
        }
    if command.plan_key is not None and not signed_by(plan.manifest, signature, command.plan_key):
        raise ConfigurationError(f"{command.folder}: the plan is not signed with {command.plan_key}; do not run it")
    signed = "NOT SIGNED" if signature is None else "signed; --plan-key FILE checks by whom"
    if command.plan_key is not None:
        signed = f"signed with {command.plan_key}"
    if command.json:
        beside = {"sha256": plan.digest, "signed": signed, "operations": operations}
        print(json.dumps(beside | {"manifest": manifest}, indent=2))
        return 0
    with reading(command.folder):
        _print(plan.digest, signed, manifest, sizes, operations)
    return 0


def _print(
    digest: str, signed: str, manifest: dict[str, Any], sizes: dict[str, str], operations: dict[str, dict[str, int]]
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    about, batches, upload = (manifest[name] for name in ("about", "batches", "upload"))
    console.print(f"plan {digest}, {signed}", markup=False)
    console.print(
        f"{about['client_algorithm']} on {about['model']}, {about['precision']}; batches of {batches['batch_size']} x "
        f"{batches['length'] + 1} tokens, at most {batches['max_batches']} of them",
        markup=False,
    )
    limits = manifest.get("limits")
    bounds = (
        ""
        if limits is None
        else (
            f"; memory {limits['memory_bytes']:,} bytes, {limits['compile_seconds']} s to compile, "
            f"{limits['call_seconds']} s a call"
        )
    )
    console.print(f"download {manifest['download']['values']:,} values; upload {upload['bytes']:,} bytes{bounds}")
    for name in dict.fromkeys((*sizes, *operations)):
        counted = ", ".join(
            f"{one.removeprefix('stablehlo.')} {count}" for one, count in sorted(operations.get(name, {}).items())
        )
        console.print(f"{name}: {': '.join(filter(None, (sizes.get(name), counted)))}", markup=False)
    table = Table("tensor", "shape", "values", "offset")
    for one in manifest["download"]["tensors"]:
        table.add_row(
            one["name"], "x".join(map(str, one["shape"])), f"{math.prod(one['shape']):,}", f"{one['offset']:,}"
        )
    console.print(table)


COMMAND = Group(
    "fedlm plan",
    "action",
    "Training that travels as programs.",
    {
        "export": ("write the plan of a run", Command(ExportCommand, _export)),
        "inspect": ("say what is in a plan", Command(InspectCommand, _inspect)),
    },
    _EXAMPLES,
)
