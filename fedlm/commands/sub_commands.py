"""Commands that lead to others: their help, and the way to the one that is chosen."""

from collections.abc import Callable, Iterable, Mapping

from fedlm.commands.command_tree import commands_named, run_each_if_looking
from fedlm.commands.option_help import HELP, HELP_ALL
from fedlm.commands.suggestions import closest
from fedlm.fl_core.errors import ConfigurationError

_USAGE_ERROR = 2


def run_choice(
    argv: list[str],
    prog: str,
    kind: str,
    purpose: str,
    choices: Mapping[str, tuple[str, Callable[[list[str]], int]]],
    examples: str,
) -> int:
    """Run the sub-command that the first word names, or print help where it is --help, or where there is none.

    Args:
      argv: the words after `prog`.
      prog: the command, as it is typed.
      kind: what its sub-commands are called.
      purpose: a sentence about the command.
      choices: what each sub-command does, in words, and what runs it with the words after its name.
      examples: lines that end the help.

    Raises:
      ConfigurationError: there is no such sub-command.
    """
    if run_each_if_looking(run for _, run in choices.values()):
        return 0
    if not argv or argv[0] in (*HELP, HELP_ALL):
        width = max(map(len, choices))
        lines = [f"usage: {prog} {kind.upper()} [OPTIONS]", "", purpose, "", f"{kind}s:"]
        lines += [f"  {name:{width}}  {text}" for name, (text, _) in choices.items()]
        print(
            "\n".join(
                [
                    *lines,
                    "",
                    f"`{prog} {kind.upper()} --help` explains its options, and `--help-all` all of them. {examples}",
                ]
            )
        )
        return 0 if argv else _USAGE_ERROR
    if argv[0] not in choices:
        raise ConfigurationError(f"unknown {kind} {argv[0]!r}; {_meant(argv[0], prog, choices)}")
    return choices[argv[0]][1](argv[1:])


def _meant(word: str, prog: str, choices: Iterable[str]) -> str:
    found = [f"{prog} {name}" for name in closest(word, choices)] or commands_named(word)
    hint = f"did you mean {' or '.join(f'`{command}`' for command in found)}? Or " if found else ""
    return f"{hint}choose from {', '.join(choices)}"
