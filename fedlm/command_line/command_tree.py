"""All commands and their options, for the documents, and for whoever gives the right option to the wrong command."""

import contextlib
import gc
import importlib
import sys
from types import ModuleType

from fedlm.command_line.command import leaves
from fedlm.command_line.suggestions import UnknownCommandError, UnknownOptionsError
from fedlm.fl_core.composed_settings import value_types
from fedlm.fl_core.extras import MissingExtraError

_OF_DEPLOYMENTS = {
    "serve": "train one model with clients that dial in",
    "server": "train the runs that are submitted, one after another, with clients that dial in",
    "run": "submit runs to a server, list, approve, pause, resume and stop them",
    "audit": "export the audit log of a server, and verify one",
    "status": "show the state of a running server",
    "fleet": "run many virtual clients of a server",
    "client": "take part in a deployment with text that stays on this device",
    "keys": "make the certificates of a deployment's server and clients",
    "plan": "write the plan that clients without our code train, and look into it",
}
"""Those in `fedlm.commands.deployment`."""
COMMANDS = {
    "models": "list the named models with their exact parameter counts",
    "data": "import federated data sets, describe, sample and export them",
    "simulate": "train one model in simulated cross-device rounds",
    "compare": "compare models over learning rates and seeds, and write a report",
    "pretrain": "train one model centrally, with DP-SGD or DP-Adam",
    "laws": "measure scaling laws of private training, fit them, and plan by them",
    "runs": "list runs of any kind, draw their curves over each other, and remove what they do not need",
    **_OF_DEPLOYMENTS,
    "account": "state what a private run promises, or has spent, and plot mechanisms side by side",
    "model": "import the weights of published models, and export a run's for other programs",
    "release": "write what you may publish of a run: model, settings and privacy statement",
    "generate": "let the model of a run continue texts",
    "recommend": "let the model of a run recommend items after a user's history",
    "evaluate": "score a run on each client of a split, by what it recommends, or on known tasks",
    "memorization": "measure how much of its training text a model repeats, and the exposure of canaries",
}
"""What each command does; the module of its name is imported when it is called."""


def imported(name: str) -> ModuleType:
    """Import a command and all that it needs, none of which is ever garbage: the collector need not look through it."""
    module = f"fedlm.commands.{'deployment.' if name in _OF_DEPLOYMENTS else ''}{name}"
    if module in sys.modules:
        return sys.modules[module]
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()


def find_commands() -> dict[str, type]:
    """Find the dataclass of options of every command whose libraries are installed, by the command as it is typed."""
    found: dict[str, type] = {}
    for name in COMMANDS:
        with contextlib.suppress(MissingExtraError):
            found |= leaves(imported(name).COMMAND, f"fedlm {name}")
    return found


def in_all_words(error: UnknownCommandError | UnknownOptionsError) -> str:
    """Say what an error says, and in which commands there is what was typed."""
    if isinstance(error, UnknownCommandError):
        return error.worded([] if error.close() else _commands_named(error.word))
    return error.worded({name: _commands_with_option(name) for name in error.unknown})


def _commands_with_option(name: str) -> list[str]:
    """List the commands that have an option; where three of one parent have it, the parent in their place."""
    having = [prog for prog, options in find_commands().items() if name in value_types(options)]
    parents = [prog.rpartition(" ")[0] for prog in having]
    return list(
        dict.fromkeys(
            parent if parents.count(parent) > 2 and parent.count(" ") else prog
            for prog, parent in zip(having, parents, strict=True)
        )
    )


def _commands_named(word: str) -> list[str]:
    """List the commands, also those that lead to others, whose last word is this."""
    paths = [prog.split() for prog in find_commands()]
    found = (" ".join(path[: path.index(word) + 1]) for path in paths if word in path[1:])
    return list(dict.fromkeys(found))
