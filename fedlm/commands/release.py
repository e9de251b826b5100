"""`fedlm release`: write what may be published of a run into a folder of its own."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.markup import escape

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options


@dataclass(frozen=True, kw_only=True)
class ReleaseCommand:
    """Write what you may publish of a run into a folder of its own.

    That is the model (model.npz, which `fedlm.fl_core.runs.statements.publishing.load_published` reads), its settings,
    and its privacy statement, as a page for people who review it (statement.html) and as JSON (statement.json). The
    statement composes all trainings that the parameters went through, with assumptions. Do not publish the run's own
    folder: it holds counts and measurements that no guarantee covers. The tokenizer is left out where no promise covers
    it.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    out: Path
    """Folder to make."""
    vocabulary: Path | None = None
    """Tokenizer: its JSON file, or the folder of a data set. If not given, that of the run's data set."""
    uncovered_tokenizer: bool = False
    """Publish the tokenizer although no promise covers it; it may have words of a few people."""


def main(argv: list[str]) -> int:
    """Run `fedlm release`."""
    command = read_options(ReleaseCommand, argv, "fedlm release")
    from fedlm.fl_core.runs.statements.publishing import publish
    from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

    published = publish(
        command.run,
        command.out,
        lambda path: Tokenizer.load(path).fingerprint,
        command.vocabulary,
        uncovered_tokenizer=command.uncovered_tokenizer,
    )
    console = Console()
    colour = "default" if published.private else "red"
    console.print(f"privacy: [{colour}]{escape(published.privacy)}[/]", soft_wrap=True, highlight=False)
    console.print(f"tokenizer: {escape(published.tokenizer)}", soft_wrap=True, highlight=False)
    console.print(f"{', '.join(published.files)} are in {escape(str(command.out))}", soft_wrap=True, highlight=False)
    return 0


COMMAND = Command(ReleaseCommand, main)
