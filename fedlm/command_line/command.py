"""Commands, and those that lead to others: their options, their help, and the way to the one that is chosen."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fedlm.command_line.option_help import HELP, HELP_ALL
from fedlm.command_line.suggestions import UnknownCommandError

_USAGE_ERROR = 2


class Command(NamedTuple):
    """A command.

    Attributes:
      options: the dataclass of its options.
      main: runs it with the words after its name, and returns the exit status.
    """

    options: type
    main: Callable[[list[str]], int]


@dataclass(frozen=True)
class Group:
    """A command that leads to others.

    Attributes:
      prog: the command, as it is typed.
      kind: what its sub-commands are called.
      purpose: a sentence about it.
      choices: what each sub-command does, in words, and the sub-command.
      examples: lines that end its help.
    """

    prog: str
    kind: str
    purpose: str
    choices: Mapping[str, "tuple[str, Command | Group]"]
    examples: str

    def main(self, argv: list[str]) -> int:
        """Run the sub-command that the first word names, or print help where it is --help, or where there is none.

        Raises:
          UnknownCommandError: there is no such sub-command.
        """
        if not argv or argv[0] in (*HELP, HELP_ALL):
            print(self._help())
            return 0 if argv else _USAGE_ERROR
        if argv[0] not in self.choices:
            raise UnknownCommandError(self.prog, self.kind, argv[0], self.choices)
        return self.choices[argv[0]][1].main(argv[1:])

    def _help(self) -> str:
        kind, width = self.kind.upper(), max(map(len, self.choices))
        return "\n".join(
            [
                f"usage: {self.prog} {kind} [OPTIONS]",
                "",
                self.purpose,
                "",
                f"{self.kind}s:",
                *(f"  {name:{width}}  {text}" for name, (text, _) in self.choices.items()),
                "",
                f"`{self.prog} {kind} --help` explains its options, and `--help-all` all of them. {self.examples}",
            ]
        )


def leaves(command: Command | Group, prog: str) -> Iterator[tuple[str, type]]:
    """Find the options of all commands that a command leads to, or its own, by the command as it is typed."""
    if isinstance(command, Command):
        yield prog, command.options
    else:
        for name, (_, choice) in command.choices.items():
            yield from leaves(choice, f"{prog} {name}")
