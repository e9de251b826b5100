"""`fedlm account check`: whether a release's statement follows from the plan that it names."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.markup import escape

from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up

_DOES_NOT_HOLD = 1


@dataclass(frozen=True, kw_only=True)
class CheckCommand:
    """Recompute a release's statement from its plan alone, without the run.

    The exit status is 0 where every field follows from the plan, 1 where one does not, and 2 where the file is no
    statement. Who trained, on what, and whether by this plan, no statement can prove.
    """

    statement: tyro.conf.Positional[Path]
    """The statement.json of a release."""


def check(command: CheckCommand) -> int:
    """Check a statement, and say what does not follow."""
    from fedlm.fl_core.runs.statements.statement_check import UNCHECKED, check_statement
    from fedlm.fl_core.runs.statements.statement_reading import plain, read_statement

    record = read_statement(command.statement)
    found = check_statement(record)
    console = Console()
    name = escape(str(command.statement))
    if found.findings:
        console.print(f"[red]{name}: DOES NOT HOLD[/]", soft_wrap=True, highlight=False)
        for line in found.findings:
            console.print(f"- {escape(plain(line))}", soft_wrap=True, highlight=False)
        return _DOES_NOT_HOLD
    if not record["private"]:
        console.print(f"{name}: promises nothing, and says so", soft_wrap=True, highlight=False)
        return 0
    claimed = record["privacy_guarantee"]
    epsilon = "infinite" if claimed["epsilon"] is None else rounded_up(claimed["epsilon"])
    said = f"epsilon = {epsilon} at delta = {rounded_up(claimed['delta'])} follows from the plan"
    console.print(f"{name}: {said}", soft_wrap=True, highlight=False)
    console.print(f"not checked: {', '.join(UNCHECKED)}", soft_wrap=True, highlight=False)
    return 0
