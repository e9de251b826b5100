"""How statements are printed."""

from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.markup import escape

from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_down, rounded_up
from fedlm.fl_core.privacy.origins.publisher_claims import CLAIMS_FIELD
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD
from fedlm.fl_core.privacy.participation.realised import participation_in_words

_MARGIN = 25
_SHOWN = (
    "mechanism",
    "epsilon_budget",
    "epsilon",
    "epsilon_lower",
    "delta",
    "epsilon_by_rdp",
    "against_readers",
    "against_server",
    "rho",
    "sensitivity",
    "noise_multiplier",
    "noise_batch_ratio",
    "bands",
    "rounds",
    "unit",
    "adjacency",
    "truncated_batch_size",
    "planned_rounds",
    "interrupted_generations",
    "clip_norm",
)
_BOUNDS = {
    **dict.fromkeys(("epsilon_budget", "epsilon", "delta", "epsilon_by_rdp", "rho", "sensitivity"), rounded_up),
    "epsilon_lower": rounded_down,
}


def print_statement(statement: dict[str, Any]) -> None:
    """Print a statement for people, a line for each of its parts."""
    console = Console()
    if statement.get("not_private"):
        console.print(f"[red]NOT PRIVATE[/]: {statement['not_private']}")
    unlimited = statement["epsilon"] is None and not statement.get("not_private")
    shown = statement | ({"epsilon": "infinite"} if unlimited else {})
    if shown.get("against_server"):
        shown["against_readers"] = "of released models: epsilon and delta as above"
    for name in _SHOWN:
        if shown.get(name) is not None:
            print_line(console, name.replace("_", " "), _shown(name, shown[name]))
    if "participation" in statement:
        words = f"{participation_in_words(statement['participation'])}; counted without noise, not to be published"
        print_line(console, "realised", words)
    vocabularies = statement.get("vocabularies", [statement[ORIGIN_FIELD]] if ORIGIN_FIELD in statement else [])
    for vocabulary in vocabularies:
        print_line(console, "vocabulary", vocabulary["statement"])
    for training in statement.get("trainings", ()):
        plan = training["plan"]
        noise = f"{plan['mechanism']} noise, multiplier {plan['noise_multiplier']:.6g}" if plan else "no noise"
        text = f"{training['folder']}: fedlm {training['command']}, {training['steps']} releases at most, {noise}"
        print_line(console, "training", text)
    for claim in statement.get(CLAIMS_FIELD, ()):
        print_line(console, "claimed by a publisher", claim["statement"])
    for number, assumption in enumerate(statement["assumptions"]):
        print_line(console, "" if number else "assumptions", f"- {assumption}")


def _shown(name: str, value: Any) -> str:
    if name in _BOUNDS and isinstance(value, float):
        return _BOUNDS[name](value, 6)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def print_line(console: Console, name: str, text: str) -> None:
    """Print a name and a text, wrapped beside it on a terminal."""
    lines = wrap(text, max(console.width - _MARGIN - 2, 40)) if console.is_terminal else [text]
    for number, line in enumerate(lines):
        console.print(f"{'' if number else name:>{_MARGIN}}  {escape(line)}", soft_wrap=True, highlight=False)
