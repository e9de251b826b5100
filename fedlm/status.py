"""`fedlm status`: show where a deployment stands."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class StatusCommand:
    """Show where a deployment stands: its rounds, its clients, its scores and the privacy spent."""

    folder: tyro.conf.Positional[Path]
    """Folder of the run, the --out of `fedlm serve`; the server may be running or not."""
    database: str | None = None
    """URL of the state, where it is not in the folder."""


def main(argv: list[str]) -> int:
    """Run `fedlm status`.

    Args:
      argv: its options.

    Returns:
      The exit status.
    """
    command = tyro.cli(StatusCommand, args=argv, prog="fedlm status")
    from fl_core.serving.status import read_status

    status, console = read_status(command.folder, command.database), Console()
    counts = status.clients
    console.print(
        f"{len(status.rows)} rounds released; {counts.known} clients known, {counts.recent} seen within the hour, "
        f"{counts.participated} took part in a round"
    )
    console.print(_funnel(status.attempts))
    if status.rows:
        console.print(_latest(status.rows))
    console.print(f"privacy spent: {escape(status.spent)}", soft_wrap=True)
    if status.planned is not None:
        console.print(f"privacy planned: {escape(status.planned)}", soft_wrap=True)
    return 0


def _funnel(attempts: list[Any]) -> Table:
    names = (
        "round",
        "began",
        "seconds",
        "selected",
        "reported",
        "refused",
        "declined",
        "lost",
        "silent",
        "MB down",
        "MB up",
    )
    table = Table("", *names)
    for one in attempts:
        silent = max(one.selected - one.reported - one.refused - one.declined - one.lost, 0)
        began = time.strftime("%H:%M:%S", time.localtime(one.started))
        counts = (one.selected, one.reported, one.refused, one.declined, one.lost, silent)
        moved = (f"{one.bytes_down / 1e6:.3g}", f"{one.bytes_up / 1e6:.3g}")
        table.add_row(one.outcome, str(one.round_number), began, f"{one.seconds:.1f}", *map(str, counts), *moved)
    return table


def _latest(rows: list[dict[str, Any]]) -> str:
    last = rows[-1]
    scored: dict[str, Any] = next((row for row in reversed(rows) if row.get("heldout_loss") is not None), {})
    loss = "none" if last["train_loss"] is None else f"{last['train_loss']:.3f}"
    text = f"clients' training loss in round {last['round']}: {loss}"
    if scored:
        text += (
            f"; held-out perplexity {scored['heldout_perplexity']:.2f}, accuracy {scored['heldout_accuracy']:.4f} "
            f"after round {scored['round']}"
        )
    return text
