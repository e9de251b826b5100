"""How a run ended: in words, and as the exit status of the command that trained it."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from fedlm.fl_core.runs.endings import DIVERGED, FINISHED, UNANSWERED
from fedlm.fl_core.runs.identity import SUMMARY_FILE

NO_GOOD = 3
"""Exit status of a command whose runs all ended without a good model; their summaries are written all the same."""


def say_no_good(console: Console, summary: dict[str, Any]) -> bool:
    """Say why the run of a summary ended without a good model; returns whether it did."""
    if summary["status"] == DIVERGED:
        after = "round" if "diverged_at_round" in summary else "step"
        where = f"{after} {summary[f'diverged_at_{after}']}"
        console.print(f"[red]diverged[/] at {where}: {escape(summary['diverged_because'])}", soft_wrap=True)
    if summary["status"] == UNANSWERED:
        console.print(
            f"[red]no client answered[/] in {summary['rounds']} rounds: the parameters are those of before the first",
            soft_wrap=True,
        )
    return summary["status"] != FINISHED


def say_privacy(console: Console, privacy: str) -> None:
    """Print a privacy statement, each of its parts on a line of its own."""
    console.print("\n  ".join(f"privacy: {escape(privacy)}".split("; ")), soft_wrap=True, highlight=False)


def exit_status(*statuses: str) -> int:
    """Return 0 where any of the runs with these statuses finished, or there are none; else `NO_GOOD`."""
    return NO_GOOD if statuses and FINISHED not in statuses else 0


def exit_status_in(folder: Path) -> int:
    """Return the exit status for a run that is over, by the summary in its folder."""
    return exit_status(json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))["status"])
