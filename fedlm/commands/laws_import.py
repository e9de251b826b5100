"""`fedlm laws import`: take in measurements that were made elsewhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from fedlm.commands.options import read_options
from fedlm.fl_core.atomic_files import make_folder
from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.laws.importing import import_measurements
from fedlm.simulations.laws.measurements import write_measurements


@dataclass(frozen=True, kw_only=True)
class LawsImportCommand:
    """Take in measurements that were made elsewhere, to be fitted as those of `fedlm laws run` are.

    The file has comma-separated values and a header. It needs the columns that the published results of McKenna et al.
    2025 have, Model, Learning Rate, Iterations, Noise Batch Ratio and Cross Entropy, or ours, model, learning_rate,
    step, noise_batch_ratio and loss; it may have other columns of ours, such as seed and loss_error, and what it has
    besides is not read. The sizes of the published models, BertTiny to BertMega, are known, and so are those of
    `fedlm models`; other models need the columns parameters and non_embedding_parameters.
    """

    file: Annotated[Path, tyro.conf.Positional]
    """The file."""
    out: Path
    """The Parquet file to write."""
    batch_size: int = 1024
    """Examples of a step, where the file has no column batch_size."""
    length: int = 512
    """Tokens of an example, where the file has no column length."""
    steps: int | None = None
    """Steps of a run's schedule, where the file has no column steps; the most that it has measurements of where it is
    not given."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "length", "steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigurationError(f"{name} is {value}, but must be at least 1")


def main(argv: list[str]) -> int:
    """Run `fedlm laws import`."""
    command = read_options(LawsImportCommand, argv, "fedlm laws import")
    found = import_measurements(command.file, command.batch_size, command.length, command.steps)
    make_folder(command.out.parent)
    write_measurements(found, command.out)
    models, rates, ratios = (len(set(column)) for column in (found.model, found.learning_rate, found.noise_batch_ratio))
    Console().print(
        f"{len(found):,} measurements of {models} models, {rates} learning rates and {ratios} noise-batch ratios: "
        f"{command.out}",
        soft_wrap=True,
        highlight=False,
    )
    return 0
