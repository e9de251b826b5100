"""`fedlm model`: take in the weights of published models, and write a run's for other programs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro
from rich.console import Console
from rich.markup import escape

from fedlm.command_line.command import Command, Group
from fedlm.command_line.options import read_options
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Positive
from fedlm.fl_core.privacy.accounting.delta import Delta

if TYPE_CHECKING:
    from fedlm.fl_core.privacy.origins.publisher_claims import PublisherClaim


@dataclass(frozen=True, kw_only=True)
class ImportCommand:
    """Make a run of a published model: GPT-2, Llama, Mistral, Qwen, Gemma, BERT, or what `fedlm model export`
    wrote.

    The folder has config.json, model.safetensors (or several with an index) and tokenizer.json. Pickles are never read.
    Training begins with the run by --init-from, on data imported with its tokenizer.json as --vocabulary. What the
    weights were made from is not known here, so such a run is NOT PRIVATE unless --initial-data says whose text it was.
    """

    folder: tyro.conf.Positional[Path]
    """Folder of the model."""
    out: Path
    """Folder of the run to make."""
    publisher_epsilon: Positive | None = None
    """Epsilon that the publisher claims for the weights. Statements of runs that begin with them quote it as the
    publisher's, with its unit. fedlm does not check it, and counts it in no epsilon."""
    publisher_delta: Delta | None = None
    """Delta of that epsilon."""
    publisher_unit: str | None = None
    """Unit whose presence it hides, in the publisher's words, such as "sequence of 1,024 tokens"."""
    publisher_source: str | None = None
    """Where the publisher states this: a URL, or the title of a report."""


@dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """Write the model of a run, of any kind, for other programs.

    The form huggingface is for transformers; it works for BERT and the decoders that fedlm imports. The form
    safetensors is for any model, in a layout that docs/models.md describes. Both add the adapters of a run with
    --lora-rank to its model. The form peft holds the adapters alone, for Hugging Face's PEFT.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    out: Path
    """Folder to make."""
    format: Literal["huggingface", "safetensors", "peft"]
    """The form to write."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the tensors. auto: that of an imported model, bit for bit; float32 of a model that was trained."""
    vocabulary: Path | None = None
    """Tokenizer: its JSON file, or the folder of a data set. If not given, that of the run's data set."""


def _import(argv: list[str]) -> int:
    command = read_options(ImportCommand, argv, "fedlm model import")
    from fedlm.fl_core.privacy.origins.ancestry import NOT_PRIVATE, OF_A_PUBLISHER
    from fedlm.fl_core.privacy.origins.vocabulary_origin import TOKENIZER_FILE
    from fedlm.simulations.weights.importing import import_model

    claim = _claim(command)
    found = import_model(command.folder, command.out, claim)
    types = ", ".join(f"{number} of {dtype}" for dtype, number in found.dtypes.items())
    _tell(f"{found.parameters:,} parameters in tensors: {types}; {found.vocabulary_size:,} token ids")
    _tell(f"privacy: {NOT_PRIVATE}: {OF_A_PUBLISHER}")
    _tell(f"claimed by the publisher: {'nothing that is known' if claim is None else claim.words()}")
    _tell(
        f"train it with: --model {found.model} --init-from {command.out}, on data of its tokenizer: "
        f"fedlm data import SOURCE ... --vocabulary {command.out / TOKENIZER_FILE} --out FOLDER"
    )
    return 0


def _claim(command: ImportCommand) -> "PublisherClaim | None":
    from fedlm.fl_core.privacy.origins.publisher_claims import PublisherClaim

    names = ("epsilon", "delta", "unit", "source")
    given = {name: getattr(command, f"publisher_{name}") for name in names}
    missing = [f"publisher_{name}" for name, value in given.items() if value is None]
    if len(missing) == len(names):
        return None
    if missing:
        raise ConfigurationError(
            f"the publisher's claim has no {', '.join(map(setting, missing))}; an epsilon says nothing without its "
            "delta, unit and source: give all four, or none"
        )
    return PublisherClaim(**given)


def _export(argv: list[str]) -> int:
    command = read_options(ExportCommand, argv, "fedlm model export")
    from fedlm.simulations.weights.exporting import export_model

    written = export_model(
        command.run,
        command.out,
        command.format,
        dtype=command.dtype,
        vocabulary=command.vocabulary,
    )
    _tell(f"privacy: {written.privacy}")
    _tell(f"{', '.join(written.files)} are in {command.out}; tensors are {', '.join(written.dtypes)}")
    return 0


def _tell(line: str) -> None:
    Console().print(escape(line), soft_wrap=True, highlight=False)


_EXAMPLES = """To begin:

  fedlm model import FOLDER --out runs/imported
  fedlm model export runs/imported --format huggingface --out exported"""


COMMAND = Group(
    "fedlm model",
    "action",
    "Weights of models, in and out.",
    {
        "import": ("make a run of a published model", Command(ImportCommand, _import)),
        "export": ("write the model of a run for other programs", Command(ExportCommand, _export)),
    },
    _EXAMPLES,
)
