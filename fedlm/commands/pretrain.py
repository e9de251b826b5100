"""`fedlm pretrain`: train one model centrally, with differential privacy."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.command_line.processes import ProcessGroup, join_processes
from fedlm.command_line.progress import StepProgress, bytes_text, scores_in_words, trained_part
from fedlm.command_line.run_endings import exit_status, say_no_good, say_privacy
from fedlm.fl_core.number_ranges import Count
from fedlm.simulations.pretraining.settings import Pretraining

if TYPE_CHECKING:
    from fedlm.simulations.pretraining.device_plan import DevicePlan
    from fedlm.simulations.pretraining.preparing import PreparedPretraining

_COLUMNS = ("held besides", "arguments", "outputs", "temporaries", "memory", "sent in a step")


@dataclass(frozen=True, kw_only=True)
class PretrainCommand:
    """Train one model centrally, with DP-SGD, DP-Adam or DP-AdamW.

    Poisson sampling draws the batches. The run clips the gradient of every unit (a sequence, or all sequences of a
    user), and adds noise to their sum. It writes metrics.jsonl, TensorBoard events, checkpoints and summary.json into
    its folder. If you stop it, the same command goes on where it was. Its ledger has what every checkpoint spends, and
    `fedlm account ledger OUT` states it. `--privacy none` trains without clipping and noise, and its summary says NOT
    PRIVATE. The exit status is 3 if the run diverged; the summary is written all the same. `fedlm simulate --init-from
    OUT` begins with the parameters. `--init-from RUN --lora-rank R` trains low-rank adapters of that run's model
    instead of all of it.

    Several processes, on one machine or on many, train together: start each with the same options, the same
    `--coordinator` and `--num-processes`, and a `--process-id` of its own. Process 0 writes the folder and prints.
    """

    pretraining: Pretraining
    processes: ProcessGroup
    plan_devices: tuple[Count, ...] = ()
    """Train nothing, but print what a step needs of each device: memory, and bytes exchanged. Several numbers of
    devices give a table for each. CPU devices stand in for them while the same programs are compiled, which takes
    minutes for a large model. Precision auto is then float32, and the microbatch size that of an accelerator."""
    out: Path
    """Folder of the run."""


_ESSENTIALS = (
    *("out", "model", "data", "init_from", "steps", "batch_size", "length", "unit", "privacy", "epsilon", "lora_rank"),
    *(
        "noise_multiplier",
        "noise_batch_ratio",
        "delta",
        "clip_norm",
        "optimizer",
        "learning_rate",
        "schedule",
        "seed",
        "evaluate_every",
    ),
    *("checkpoint_every", "devices"),
)


def main(argv: list[str]) -> int:
    """Run `fedlm pretrain`."""
    command = read_options(PretrainCommand, argv, "fedlm pretrain", essentials=_ESSENTIALS)
    if command.plan_devices:
        return _plan(command)
    join_processes(command.processes)
    from fedlm.fl_core.processes import is_first
    from fedlm.simulations.pretraining.run import run_pretraining

    settings = command.pretraining
    if not is_first():
        return exit_status(run_pretraining(settings, command.out)["status"])
    with StepProgress(settings.model, "step") as progress:
        summary = run_pretraining(settings, command.out, progress)
    console = Console()
    if not say_no_good(console, summary):
        what = "of masked words " if summary["objective"] == "masked" else ""
        console.print(
            f"{scores_in_words(summary, what)} after {summary['steps']} steps ({summary['parameters']:,} "
            f"parameters{trained_part(summary)})",
            soft_wrap=True,
        )
    say_privacy(console, summary["privacy"])
    if summary.get("privacy_guarantee"):
        console.print(f"noise-batch ratio {summary['noise_batch_ratio']:.4g}; {escape(summary['units']['protects'])}")
    console.print(f"everything is in {command.out}", soft_wrap=True)
    return exit_status(summary["status"])


def _plan(command: PretrainCommand) -> int:
    import jax

    jax.config.update("jax_platforms", "cpu")
    join_processes(ProcessGroup(devices=max(command.plan_devices)))
    from fedlm.models.precision import precision_scope
    from fedlm.simulations.pretraining.device_plan import plan_step
    from fedlm.simulations.pretraining.preparing import ACCELERATOR_MICROBATCH, prepare_pretraining, trainer_of

    settings, console = command.pretraining, Console()
    if settings.microbatch_size is None:
        settings = replace(settings, microbatch_size=ACCELERATOR_MICROBATCH)
    prepared = prepare_pretraining(settings)
    bands = len(prepared.plan.coefficients) if prepared.plan is not None else 0
    cache = (settings.cache or settings.data / "cache") / "plans"
    for count in command.plan_devices:
        with Console(stderr=True).status(f"{count} devices") as status, precision_scope(prepared.precision):
            plan = plan_step(
                trainer_of(prepared, jax.devices()[:count]),
                prepared.units.sequences_per_unit,
                settings.length,
                bands=bands or 1,
                padded_lengths=len(prepared.units.padded_lengths),
                cache=cache,
                compiling=lambda name, count=count, status=status: status.update(f"{count} devices: compiling {name}"),  # type: ignore[misc]
            )
        _print_plan(console, prepared, plan)
    return 0


def _print_plan(console: Console, prepared: "PreparedPretraining", plan: "DevicePlan") -> None:
    settings = prepared.settings
    table = Table("phase", *_COLUMNS, title=f"one of {plan.devices} devices", title_justify="left")
    for phase in plan.phases:
        needs = phase.needs
        sizes = (phase.held, needs.arguments, needs.outputs, needs.temporaries, phase.memory, phase.exchanged)
        table.add_row(phase.name, *map(bytes_text, sizes))
    console.print(table)
    kept = ", ".join(f"{name} {bytes_text(size)}" for name, size in plan.kept.items() if size)
    lines = (
        f"{settings.model}, sharding {settings.sharding}, microbatches of {settings.microbatch_size} x "
        f"{settings.length} tokens on each device, {plan.microbatches} in a batch of {settings.batch_size}",
        f"kept on each device: {kept}",
        f"at its most {bytes_text(plan.memory)} on each device, which sends {bytes_text(plan.exchanged)} in a step",
    )
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


COMMAND = Command(PretrainCommand, main)
