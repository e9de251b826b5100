"""Pages of the commands and their options, made of what `--help-all` prints."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from sphinx.application import Sphinx

from fedlm.command_line import option_help, options
from fedlm.command_line.command_tree import COMMANDS, find_commands
from fedlm.command_line.described_options import Option, OptionGroup
from fedlm.commands.cli import main

FOLDER = Path(__file__).parents[1] / "reference" / "generated" / "commands"


class Explained(NamedTuple):
    """What a command says of itself."""

    prog: str
    about: str
    groups: list[OptionGroup]


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before Sphinx looks for its sources."""
    app.connect("config-inited", lambda app, config: write_pages(FOLDER))
    return {"parallel_read_safe": True}


def write_pages(folder: Path) -> None:
    """Write a page for each command, but those that are as they were, so that Sphinx does not read them anew."""
    folder.mkdir(parents=True, exist_ok=True)
    explained = [explain(prog) for prog in find_commands()]
    pages = {f"{name}.md": "\n".join(page(name, explained)) + "\n" for name in COMMANDS}
    for stale in {path.name for path in folder.iterdir()} - pages.keys():
        (folder / stale).unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def explain(prog: str) -> Explained:
    """Ask a command for all of its help, and take it before it is laid out as text."""
    asked: list[Explained] = []

    def take(prog: str, about: str, groups: Iterable[OptionGroup], essentials: None) -> None:
        asked.append(Explained(prog, about, list(groups)))

    with mock.patch.object(options, "print_help", take), contextlib.suppress(SystemExit):
        main([*prog.split()[1:], option_help.HELP_ALL])
    (command,) = asked
    return command


def page(name: str, explained: Iterable[Explained]) -> Iterator[str]:
    """Yield the lines of a command's page, with those of its sub-commands."""
    mine = [command for command in explained if command.prog.split()[1] == name]
    yield from (f"# fedlm {name}", "")
    if len(mine) > 1 or mine[0].prog != f"fedlm {name}":
        yield from (sentence(COMMANDS[name]), "")
    for command in mine:
        depth = 1 if command.prog == f"fedlm {name}" else 2
        if depth > 1:
            yield from (f"## {command.prog}", "")
        yield from paragraphs(command.about)
        yield from (f"```{{program}} {command.prog}", "```", "")
        for group in command.groups:
            if not group.options:
                continue
            if group.title:
                yield from (f"{'#' * (depth + 1)} {sentence(group.title).rstrip('.')}", "")
            for option in group.options:
                yield from described(option)


def described(option: Option) -> Iterator[str]:
    """Yield the lines that describe an option."""
    about = [with_flags(option.text)]
    if option.required:
        about.append("*Required.*")
    elif default := shown_default(option.default):
        about.append(f"*Default:* `{default}`.")
    yield from (f"````{{option}} {signature(option)}", " ".join(about), "````", "")


def with_flags(text: str) -> str:
    """Mark the options that a text names as code, as far as they are not."""
    return re.sub(r"(`[^`]*`)|(?<![\w-])--[a-z][\w-]*", lambda found: found[1] or f"`{found[0]}`", text)


def signature(option: Option) -> str:
    """Write an option as it is typed, with its value."""
    values = "" if option.positional else option.values.replace(", ", "|")  # Sphinx takes a comma for another name
    return f"{option.flag} {values}".rstrip()


def shown_default(value: Any) -> str:
    """Write a default as it would be typed; empty where there is nothing to type."""
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def paragraphs(text: str) -> Iterator[str]:
    """Yield a docstring's paragraphs; indented ones are examples."""
    for paragraph in text.split("\n\n"):
        if any(line.startswith(" ") for line in paragraph.splitlines()):
            yield from ("```text", *(line.strip() for line in paragraph.splitlines()), "```", "")
        else:
            yield from (with_flags(paragraph), "")


def sentence(text: str) -> str:
    """Write words as a sentence."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
