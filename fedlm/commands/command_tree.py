"""All commands and their options, for whoever gives the right option to the wrong command.

No list of them is kept: each command is run as far as to where it would read its options.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterable
from contextvars import ContextVar

from fedlm.fl_core.composed_settings import value_types

_found: ContextVar[dict[str, type] | None] = ContextVar("found", default=None)


class _NotedError(BaseException):
    """Ends a command that would read its options now."""


def find_commands() -> dict[str, type]:
    """Find the dataclass of options of every command, by the command as it is typed."""
    main = importlib.import_module("fedlm.commands.cli").main  # by its name, as it finds the commands
    found: dict[str, type] = {}
    token = _found.set(found)
    try:
        main([])
    finally:
        _found.reset(token)
    return found


def run_each_if_looking(choices: Iterable[Callable[[list[str]], int]]) -> bool:
    """Run all sub-commands of a command, if that is how commands are being looked for; returns whether they are."""
    if _found.get() is None:
        return False
    for choice in choices:
        with contextlib.suppress(_NotedError):
            choice([])
    return True


def note_if_looking(prog: str, command: type) -> None:
    """Where commands are being looked for, note one, and go no further."""
    found = _found.get()
    if found is not None:
        found[prog] = command
        raise _NotedError


def commands_with_option(name: str) -> list[str]:
    """List the commands that have an option; where three of one parent have it, the parent in their place."""
    having = [prog for prog, command in find_commands().items() if name in value_types(command)]
    parents = [prog.rpartition(" ")[0] for prog in having]
    return list(
        dict.fromkeys(
            parent if parents.count(parent) > 2 and parent.count(" ") else prog
            for prog, parent in zip(having, parents, strict=True)
        )
    )


def commands_named(word: str) -> list[str]:
    """List the commands, also those that lead to others, whose last word is this."""
    paths = [prog.split() for prog in find_commands()]
    found = (" ".join(path[: path.index(word) + 1]) for path in paths if word in path[1:])
    return list(dict.fromkeys(found))
