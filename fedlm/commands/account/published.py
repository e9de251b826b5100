"""`fedlm account published`: what others have published, beside what this accountant finds for the same plans."""

from dataclasses import dataclass
from typing import Any

import tyro
from rich.console import Console

from fedlm.command_line.suggestions import UnknownCommandError
from fedlm.commands.account.printing import print_line
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.promise.published import PUBLISHED_STATEMENTS, PublishedStatement, Recomputed, recompute

_SLOW = 10  # seconds, from which on a reader is told to wait


@dataclass(frozen=True, kw_only=True)
class PublishedCommand:
    """Recompute a privacy statement that others have published, from its plan: their number, ours, and why they differ.

    Without a name, the command lists the statements.
    """

    name: tyro.conf.Positional[str | None] = None
    """The statement."""
    json: bool = False
    """Print one JSON object."""


def compare(command: PublishedCommand) -> int:
    """Print one statement, or list all. Raises UnknownCommandError where there is none of the name."""
    if command.name is None:
        _list(command.json)
        return 0
    if command.name not in PUBLISHED_STATEMENTS:
        raise UnknownCommandError("fedlm account published", "statement", command.name, PUBLISHED_STATEMENTS)
    statement = PUBLISHED_STATEMENTS[command.name]
    waiting = Console(stderr=True)
    if statement.seconds >= _SLOW:
        waiting.print(f"optimising a matrix, which takes about {statement.seconds} seconds", highlight=False)
    with waiting.status(f"accounting {command.name}"):
        found = recompute(statement)
    if command.json:
        print(json_text({"name": command.name, **_as_json(statement, found)}, indent=2))
    else:
        _print(command.name, statement, found)
    return 0


def _as_json(statement: PublishedStatement, found: Recomputed) -> dict[str, Any]:
    return {
        "about": statement.about,
        "source": statement.source,
        "plan_as_published": statement.plan_words,
        "delta": statement.delta,
        "theirs": dict(statement.theirs),
        "ours": found.ours,
        "difference": found.differences,
        "epsilon_by_rdp": found.guarantee.epsilon_by_rdp,
        "why": statement.why,
        "unit": found.guarantee.unit,
        "adjacency": found.guarantee.adjacency,
        "assumptions": list(found.guarantee.assumptions),
        "plan": found.plan.as_json(),
    }


def _print(name: str, statement: PublishedStatement, found: Recomputed) -> None:
    console = Console()
    print_line(console, "statement", f"{name}: {statement.about}")
    print_line(console, "source", statement.source)
    print_line(console, "plan as published", statement.plan_words)
    print_line(console, "our plan", plan_in_words(found))
    if statement.delta is not None:
        print_line(console, "delta", f"{statement.delta:g}")
    for quantity, theirs in statement.theirs.items():
        print_line(console, f"{quantity}, theirs", f"{theirs:.6g}")
        difference = f"{found.differences[quantity]:+.2%}".replace("-0.00%", "+0.00%")
        ours = f"{rounded_up(found.ours[quantity], 6)} ({difference})"
        print_line(console, f"{quantity}, ours", ours)
    if found.guarantee.epsilon_by_rdp is not None:
        print_line(console, "epsilon by RDP, ours", rounded_up(found.guarantee.epsilon_by_rdp, 6))
    print_line(console, "why", statement.why)
    print_line(console, "unit", found.guarantee.unit)
    print_line(console, "adjacency", found.guarantee.adjacency)
    for number, assumption in enumerate(found.guarantee.assumptions):
        print_line(console, "" if number else "assumptions", f"- {assumption}")


def plan_in_words(found: Recomputed) -> str:
    """Describe the plan that ours is of: mechanism, rounds, noise, and who takes part when."""
    plan = found.plan
    noise = f"noise multiplier {plan.noise_multiplier:.6g} on sums of clip norm 1"
    return f"{plan.mechanism}, {plan.rounds:,} rounds or steps, {noise}; {found.guarantee.assumptions[0]}"


def _list(as_json: bool) -> None:
    if as_json:
        about = {
            name: {"about": one.about, "source": one.source, "theirs": dict(one.theirs), "delta": one.delta}
            for name, one in PUBLISHED_STATEMENTS.items()
        }
        print(json_text(about, indent=2))
        return
    console = Console()
    for name, one in PUBLISHED_STATEMENTS.items():
        numbers = ", ".join(f"{quantity} {value:.6g}" for quantity, value in one.theirs.items())
        at = "" if one.delta is None else f" at delta {one.delta:g}"
        print_line(console, name, f"{numbers}{at}: {one.about}")
