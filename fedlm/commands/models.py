"""`fedlm models`: the named models and how many parameters each has."""

from dataclasses import dataclass
from typing import Any, Literal, get_origin

from rich.console import Console
from rich.table import Table

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.number_ranges import Count
from fedlm.models.base import parameter_count
from fedlm.models.model_files import ARCHITECTURES
from fedlm.models.model_settings import expected, settable
from fedlm.models.registry import MODELS, create_model


@dataclass(frozen=True)
class ModelsCommand:
    """List the named models with their exact parameter counts, for each one's own vocabulary size.

    A model takes the vocabulary size of the data it is trained on; the counts change with it. Causal models predict the
    next token; masked ones predict masked tokens, from both sides, and have one more token id, that of the mask.

    Settings of its family may stand behind a name: cifg_1m+output_norm=rms_norm, sasrec+max_length=200+tied=false,
    transformer_1m+reattention. The second table lists them. A name such as transformer_3x128, a causal model of 3
    layers of width 128, may have any numbers; the width is a multiple of 32.
    """

    json: bool = False
    """Print one JSON object from name to parameter count."""
    vocabulary_size: Count | None = None
    """Count with this vocabulary size instead of each model's own."""


def main(argv: list[str]) -> int:
    """Run `fedlm models`."""
    command = read_options(ModelsCommand, argv, "fedlm models")
    models = {name: create_model(name, command.vocabulary_size) for name in MODELS}
    counts = {name: parameter_count(model) for name, model in models.items()}
    if command.json:
        print(json_text(counts, indent=2))
        return 0
    table = Table("model", "objective", "parameters", "vocabulary")
    for name, count in counts.items():
        model = models[name]
        table.add_row(name, model.objective, f"{count:,}", f"{model.vocabulary_size:,}")
    settings = Table("family", "settings")
    for family, architecture in ARCHITECTURES.items():
        settings.add_row(family, ", ".join(_shown(*setting) for setting in settable(architecture.config).items()))
    Console().print(table, settings)
    return 0


def _shown(name: str, hint: Any) -> str:
    return f"{name} ({expected(hint)})" if get_origin(hint) is Literal else name


COMMAND = Command(ModelsCommand, main)
