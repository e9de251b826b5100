"""`fedlm memorization`: what a run's model can be made to repeat of the text that it was trained on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options, set_up_devices
from fedlm.command_line.progress import EvaluationProgress
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.number_ranges import Count
from fedlm.simulations.evaluation.memorization.measuring import BASELINE, MemorizationSettings, measure_memorization


@dataclass(frozen=True, kw_only=True)
class MemorizationCommand:
    """Measure how much of its training text the model of a run's last checkpoint repeats.

    The model is shown the beginning of sequences that it was trained on, and continues them greedily. A sequence counts
    as extracted if the continuation is the true one, and as approximately extracted within 10 % edit distance (Carlini
    et al. 2023). The command does the same with held-out sequences. The model guessed as much as it repeats of these;
    what it repeats beyond, it memorised. If `fedlm pretrain` planted canaries, the command also measures their exposure
    (Carlini et al. 2019).
    """

    settings: MemorizationSettings
    checkpoint: Path
    """Folder of a run of `fedlm simulate` or `fedlm pretrain`."""
    data: Path | None = None
    """Folder of the run's data set. If not given, where it was when the run began."""
    cache: Path | None = None
    """Folder for the tokens of the data, laid end to end. If not given, the folder `cache` of the data set."""
    devices: Count | None = None
    """Devices to use (CPU cores without an accelerator). If not given, all."""
    json: bool = False
    """Print one JSON object in place of tables."""
    plot: Path | None = None
    """Draw the rates against --prefix into this PNG file."""

    def __post_init__(self) -> None:
        if self.plot is not None and not self.plot.parent.is_dir():
            raise ConfigurationError(
                f"{setting('plot')} is {self.plot}, but there is no folder {self.plot.parent}; make it first"
            )


def main(argv: list[str]) -> int:
    """Run `fedlm memorization`."""
    command = read_options(MemorizationCommand, argv, "fedlm memorization")
    set_up_devices(command.devices)
    with EvaluationProgress("decoding", "sequences") as progress:
        found = measure_memorization(
            command.checkpoint,
            command.data,
            cache=command.cache,
            settings=command.settings,
            observe=progress.update,
        )
    if command.plot is not None:
        from fedlm.simulations.evaluation.memorization.plots import plot_rates

        write_atomically(command.plot, plot_rates(found))
    if command.json:
        print(json_text(found, indent=2))
        return 0
    console = Console()
    console.print(extraction_table(found))
    for name, counts in found["sequences"].items():
        console.print(
            f"{name}: of {counts['seen']:,} sequences looked at, {counts['long_enough']:,} were long enough, "
            f"{counts['tested']:,} were tested",
            soft_wrap=True,
        )
    if found["canaries"]:
        console.print(exposure_table(found["canaries"]))
    console.print(f"privacy of the model: {escape(found['privacy'])}", soft_wrap=True)
    console.print(found["privacy_of_these_numbers"], soft_wrap=True)
    return 0


def extraction_table(found: dict[str, Any]) -> Table:
    """Make the table of extraction rates: for each prefix a row a split, and one for their difference."""
    within = f"within {100 * found['approximate_within']:.0f} % edits"
    title = f"{found['model']} after {found['steps']} steps: extraction of {found['suffix']} tokens"
    columns = ("exact", within)
    table = Table("prefix", "sequences of", *(Column(name, no_wrap=True) for name in columns), title=title)
    for row in found["extraction"]:
        for name in dict.fromkeys((found["split"], BASELINE)):
            if name in row:
                cells = [_interval(row[name][kind], "rate") for kind in ("exact", "approximate")]
                table.add_row(str(row["prefix"]), name, *cells)
        if row["beyond_heldout"]:
            cells = [_interval(row["beyond_heldout"][kind], "difference") for kind in ("exact", "approximate")]
            table.add_row(str(row["prefix"]), f"{found['split']} beyond {BASELINE}", *cells, end_section=True)
    table.caption = f"percent, with {100 * found['confidence']:.0f} % confidence intervals"
    return table


_EXPOSURES = ("mean", "median", "median_low", "median_high", "largest", "extrapolated_median")


def exposure_table(canaries: dict[str, Any]) -> Table:
    """Make the table of exposures: a row for each number of repeats."""
    columns = ("repeats", "canaries", "mean", "median", "largest", "median, extrapolated")
    table = Table(*columns, title=f"exposure of canaries of {canaries['words']} random words, in bits")
    for row in canaries["by_repeats"]:
        mean, middle, low, high, largest, extrapolated = (f"{row[name]:.2f}" for name in _EXPOSURES)
        median = f"{middle} ({low}, {high})"
        table.add_row(str(row["repeats"]), str(row["canaries"]), mean, median, largest, extrapolated)
    table.caption = (
        f"the mean of canaries that the model has not seen is {canaries['chance_mean']:.2f}, their median "
        f"{canaries['chance_median']:.0f}; medians have {100 * canaries['confidence']:.0f} % confidence intervals; "
        f"ranks among {canaries['references']:,} random sequences tell at most {canaries['largest_by_rank']:.2f}"
    )
    return table


def _interval(numbers: dict[str, float], middle: str) -> str:
    return f"{100 * numbers[middle]:.2f} ({100 * numbers['low']:.2f}, {100 * numbers['high']:.2f})"


COMMAND = Command(MemorizationCommand, main)
