"""`fedlm account`: what a run promises, or has spent, as a statement that a person can publish."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from fedlm.command_line.command import Command, Group
from fedlm.command_line.options import read_options
from fedlm.commands.account.central import DpSgdCommand, state_central
from fedlm.commands.account.check import CheckCommand, check
from fedlm.commands.account.examples import ExamplesCommand, plan_examples
from fedlm.commands.account.federated import command_of, state_federated
from fedlm.commands.account.plot import PlotCommand, draw
from fedlm.commands.account.printing import print_statement
from fedlm.commands.account.published import PublishedCommand, compare
from fedlm.commands.account.runs import (
    BudgetCommand,
    LedgerCommand,
    SimulateStatementCommand,
    state_budget,
    state_ledger,
    state_simulation,
)
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.simulations.experiments.presets import SIMULATION_PRESETS


class _Kind(NamedTuple):
    words: str
    options: type
    run: Callable[[Any], int]  # returns the exit status


def _stated(state: Callable[[Any], dict[str, Any]], command: Any) -> int:
    statement = state(command)
    if command.json:
        print(json_text(statement, indent=2))
    else:
        print_statement(statement)
    return 0


_KINDS = {
    mechanism.name.replace("_", "-"): _Kind(
        mechanism.summary, command_of(mechanism), partial(_stated, partial(state_federated, mechanism))
    )
    for mechanism in MECHANISMS.values()
} | {
    "dpsgd": _Kind(
        "central DP-SGD with Poisson or truncated Poisson batches, or with banded noise",
        DpSgdCommand,
        partial(_stated, state_central),
    ),
    "examples": _Kind(
        "central DP-SGD for users whose examples are sampled one by one, beside sampled users",
        ExamplesCommand,
        plan_examples,
    ),
    "simulate": _Kind(
        "what `fedlm simulate` with the same options would promise, without running it",
        SimulateStatementCommand,
        partial(_stated, state_simulation),
    ),
    "ledger": _Kind(
        "what a run has spent, or several runs together, from their ledgers",
        LedgerCommand,
        partial(_stated, state_ledger),
    ),
    "budget": _Kind(
        "what private runs on a data set may spend together, and what is reserved",
        BudgetCommand,
        partial(_stated, state_budget),
    ),
    "check": _Kind("whether a release's statement follows from its plan, without the run", CheckCommand, check),
    "published": _Kind("what others have published, and what we find for the same plans", PublishedCommand, compare),
    "plot": _Kind(
        "epsilon against rounds, and the noise of the mechanisms side by side, as a picture", PlotCommand, draw
    ),
}


def _run(name: str, argv: list[str]) -> int:
    kind = _KINDS[name]
    presets, essentials = (SIMULATION_PRESETS, _ESSENTIALS) if name == "simulate" else (None, ())
    return kind.run(read_options(kind.options, argv, f"fedlm account {name}", presets=presets, essentials=essentials))


_EXAMPLES = """For example:

  fedlm account tree --rounds 3000 --max-participations 5 --min-separation 400 \\
      --noise-multiplier 7 --delta 1e-10"""
_ESSENTIALS = (
    *("json", "model", "data", "rounds", "cohort_size", "cohort_sampler", "min_separation", "max_participations"),
    *("update_clip_norm", "privacy", "noise_multiplier", "target_epsilon", "target_rho", "delta"),
)
COMMAND = Group(
    "fedlm account",
    "subject",
    "State what a run promises, or has spent: epsilon and delta with unit, adjacency and assumptions.",
    {name: (kind.words, Command(kind.options, partial(_run, name))) for name, kind in _KINDS.items()},
    _EXAMPLES,
)
