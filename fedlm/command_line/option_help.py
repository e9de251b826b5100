"""The help of a command: what it does, and its options, the essential ones first or all of them."""

import shutil
import textwrap
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.text import Text

from fedlm.command_line.described_options import Option, OptionGroup

HELP = ("-h", "--help")
HELP_ALL = "--help-all"
_WIDEST, _COLUMN = 120, 28


def print_help(prog: str, about: str, groups: Sequence[OptionGroup], essentials: Collection[str] | None) -> None:
    """Print the help of a command.

    Args:
      prog: the command, as it is typed.
      about: what it does, in paragraphs.
      groups: all its options.
      essentials: the names of options to explain, in brief; the others are only named. None: explain all.
    """
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    lines = [*_usage(prog, groups, width), ""]
    for paragraph in about.split("\n\n"):
        lines += [*_wrapped(paragraph, width), ""]
    for group in groups if essentials is None else _in_brief(groups, essentials):
        lines += _group(group, essentials, width) if group.options else []
    if essentials is not None:
        lines += _wrapped(f"{HELP_ALL} explains in full what is in brief here, and what is only named.", width)
    text = Text("\n".join(lines).rstrip("\n"))
    text.highlight_regex(r"(?m)^\S[^\n]*:$", "bold")
    text.highlight_regex(r"(?m)(?<=^  )--[\w\[\]-]+", "cyan")
    Console(highlight=False).print(text, soft_wrap=True)


def _usage(prog: str, groups: Sequence[OptionGroup], width: int) -> list[str]:
    options = [option for group in groups for option in group.options]
    words = [option.flag + "..." * option.values.endswith("...") for option in options if option.positional]
    words += [f"{option.flag} {option.values}" for option in options if option.required and not option.positional]
    return _beside(f"usage: {prog} ", f"{' '.join(words)} [OPTIONS]".strip(), width)


def _in_brief(groups: Sequence[OptionGroup], essentials: Collection[str]) -> list[OptionGroup]:
    """Put groups of which nothing is explained into one, behind the others."""
    explained = [group for group in groups if any(option.name in essentials for option in group.options)]
    named = [option for group in groups if group not in explained for option in group.options]
    return [*explained, OptionGroup("What else a run may have", named)]


def _group(group: OptionGroup, essentials: Collection[str] | None, width: int) -> list[str]:
    lines, only_named = [f"{group.title}:"], []
    for option in group.options:
        if essentials is None or option.name in essentials:
            lines += _explained(option, width, briefly=essentials is not None)
        else:
            only_named.append(option.flag)
    return [*lines, *_beside("  also ", " ".join(only_named), width), ""]


def _wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines; one whose lines are indented stays as it is."""
    if any(line.startswith(" ") for line in text.splitlines()):
        return text.splitlines()
    return _beside("", " ".join(text.split()), width)


def _beside(left: str, text: str, width: int) -> list[str]:
    """Break a text into lines to the right of what the first of them begins with."""
    room = max(width - len(left), 20)
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return [(left if number == 0 else " " * len(left)) + line for number, line in enumerate(lines)]


def _explained(option: Option, width: int, briefly: bool) -> list[str]:
    left = f"  {option.flag} {option.values}".rstrip() if not option.positional else f"  {option.flag}"
    text = f"{option.summary if briefly else option.text} {_default(option)}".strip()
    if len(left) <= _COLUMN - 2:
        return _beside(left.ljust(_COLUMN), text, width)
    return [
        *textwrap.wrap(left, width, subsequent_indent=" " * 6, break_on_hyphens=False),
        *_beside(" " * _COLUMN, text, width),
    ]


def _default(option: Option) -> str:
    if option.required:
        return "(required)"
    value = option.default
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "(default: on)" if value else ""
    return f"(default: {' '.join(map(str, value)) if isinstance(value, tuple) else value})"
