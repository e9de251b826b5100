"""`fedlm runs`: what runs there are in a folder, and what of them can be removed."""

import math
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Column, Table

from fedlm.command_line.command import Command, Group
from fedlm.command_line.options import read_options
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.runs.recorded_runs import RecordedRun, find_runs, read_run

_RUNS = Path("runs")
_TABLE_WIDTH = 140
"""Characters below which runs are listed in lines."""
_INDENTED: dict[str, Any] = {"initial_indent": "  ", "subsequent_indent": "  "}


@dataclass(frozen=True, kw_only=True)
class ListCommand:
    """List every run in a folder and below it: simulations, cells of comparisons, deployments, central training.

    A run is running where a process holds its folder, and interrupted where the same command would go on with it.
    Perplexity and accuracy are those on the test clients, or on the held-out ones where a run has not ended.
    """

    folder: tyro.conf.Positional[Path] = _RUNS
    """Where to look."""
    sort: Literal["run", "kind", "model", "state", "done", "heldout", "test", "size", "date"] = "run"
    """By which column."""
    json: bool = False
    """Print one JSON object a line for each run."""


@dataclass(frozen=True, kw_only=True)
class CleanCommand:
    """Remove what runs do not need: checkpoints but the last, and what an interruption left half-written.

    The command only says what it would remove, unless you give --yes. A run can go on from its last checkpoint alone.
    If that one is damaged, the run has to begin anew. The command removes nothing of a running run, and no ledger or
    secret of a private run that might go on.
    """

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders with runs."""
    whole: bool = False
    """Remove whole runs. Name each by its own folder."""
    with_ledger: Annotated[bool, OnlyWith("whole")] = False
    """With --whole: remove a run even if this removes the record of the privacy that it has spent."""
    yes: bool = False
    """Remove it."""


@dataclass(frozen=True, kw_only=True)
class BackupCommand:
    """Copy the folder of a run, or of a server of several runs (`fedlm server`), while rounds go on.

    The copy has models, records and databases. A private run does not go on from it, since nobody knows what was
    released after it was made: there all planned rounds count as released, and the secret of the noise is left out. To
    train further, begin another run with its model (--init-from). A database on PostgreSQL is not in it.
    """

    folder: tyro.conf.Positional[Path]
    """Folder of the run, or of the server."""
    out: tyro.conf.Positional[Path]
    """Folder to make."""


def _backup(argv: list[str]) -> int:
    command = read_options(BackupCommand, argv, "fedlm runs backup")
    from fedlm.fl_core.deployment.backups import back_up

    for line in back_up(command.folder, command.out):
        print(line)
    print(f"{command.folder} is copied to {command.out}")
    return 0


def _list(argv: list[str]) -> int:
    command = read_options(ListCommand, argv, "fedlm runs list")
    found = [(run, _facts(run)) for run in find_runs(command.folder)]
    key = _SORT_KEYS[command.sort]
    known = [pair for pair in found if key(pair[1]) is not None]
    unknown = [pair for pair in found if key(pair[1]) is None]
    ordered = [*sorted(known, key=lambda pair: key(pair[1])), *unknown]
    if command.json:
        for _, facts in ordered:
            print(json_text(facts))
        return 0
    console = Console()
    rows = [_cells(run, facts, command.folder) for run, facts in ordered]
    if console.width < _TABLE_WIDTH:
        _print_in_lines(console, rows)
    else:
        console.print(_table(rows))
    return 0


def _facts(run: RecordedRun) -> dict[str, Any]:
    """Collect what is told of a run, as JSON has it."""
    scores = ("heldout_perplexity", "test_perplexity", "test_accuracy")
    return {
        "run": str(run.directory),
        **{name: getattr(run, name) for name in ("kind", "model", "state", "counter", "done", "asked")},
        **{name: _finite(run.score(name)) for name in scores},
        "bytes_up": sum(_finite(row.get("bytes_up")) or 0.0 for row in run.rows),
        "training_seconds": sum(_finite(row.get("seconds")) or 0.0 for row in run.rows),
        "privacy": run.privacy,
        "bytes": run.size,
        "changed": run.changed,
    }


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _table(rows: list[list[str]]) -> Table:
    wide = Column("privacy", overflow="fold")
    numbers = (Column(name, justify="right") for name in ("done", "perplexity", "accuracy", "size"))
    names = (Column(name, no_wrap=True) for name in ("model", "state"))
    table = Table(Column("run", overflow="fold"), "of", *names, *numbers, "date", wide, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _print_in_lines(console: Console, rows: list[list[str]]) -> None:
    """Print two lines a run, and what it promises, where a table's columns would be too narrow to read."""
    for name, kind, model, state, done, perplexity, accuracy, size, date, privacy in rows:
        scores = [f"{word} {score}" for word, score in (("perplexity", perplexity), ("accuracy", accuracy)) if score]
        console.print(f"[bold]{escape(name)}[/bold]", soft_wrap=True, highlight=False)
        for line in (
            f"{kind} of {model}, {state}, {done}; {', '.join(scores) or 'no scores'}; {size}, {date}",
            privacy,
        ):
            console.print(textwrap.fill(line, console.width, **_INDENTED), markup=False, highlight=False)


def _cells(run: RecordedRun, facts: dict[str, Any], folder: Path) -> list[str]:
    under = run.directory.relative_to(folder)
    perplexity, accuracy = facts["test_perplexity"], facts["test_accuracy"]
    heldout = perplexity is None
    if heldout:
        perplexity, accuracy = facts["heldout_perplexity"], run.score("heldout_accuracy")
    mark = " held-out" if heldout else ""
    return [
        str(run.directory if under == Path() else under),
        run.kind,
        run.model or "?",
        run.state,
        f"{run.done}/{'?' if run.asked is None else run.asked}",
        "" if perplexity is None else f"{perplexity:.4g}{mark}",
        "" if accuracy is None else f"{100 * accuracy:.2f} %",
        decimal(run.size),
        time.strftime("%Y-%m-%d", time.localtime(run.changed)),
        run.privacy,
    ]


_SORT_KEYS: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{name: lambda facts, name=name: facts[name] for name in ("run", "kind", "model", "state", "done")},  # type: ignore[misc]
    "heldout": lambda facts: facts["heldout_perplexity"],
    "test": lambda facts: facts["test_perplexity"],
    "size": lambda facts: facts["bytes"],
    "date": lambda facts: facts["changed"],
}


def _clean(argv: list[str]) -> int:
    command = read_options(CleanCommand, argv, "fedlm runs clean")
    from fedlm.fl_core.runs.cleaning import removable, remove, whole_runs

    if command.whole:
        runs = [read_run(folder) for folder in command.folders]
        named = {run.directory.resolve() for run in runs}
        beside = {folder.absolute().parent for folder in command.folders}
        others = [run for folder in beside for run in find_runs(folder) if run.directory.resolve() not in named]
        removals = whole_runs(runs, others, command.with_ledger)
    else:
        removals = [found for folder in command.folders for run in find_runs(folder) for found in removable(run)]
    console = Console()
    for removal in removals:
        console.print(f"{removal.path}: {removal.why}, {decimal(removal.size)}", soft_wrap=True, highlight=False)
    total = decimal(sum(removal.size for removal in removals))
    if not removals:
        print("nothing can be removed")
    elif command.yes:
        remove(removals)
        print(f"{total} removed")
    else:
        print(f"{total} can be removed; give --yes to remove it")
    return 0


_EXAMPLES = """For example:

  fedlm runs list runs
  fedlm runs backup runs/server backup
  fedlm runs clean runs"""


COMMAND = Group(
    "fedlm runs",
    "action",
    "Runs of any kind: list them, copy them while they go on, and remove what they do not need.",
    {
        "list": ("list the runs in a folder, of any kind", Command(ListCommand, _list)),
        "backup": ("copy a run or a server while it goes on", Command(BackupCommand, _backup)),
        "clean": ("remove what runs do not need", Command(CleanCommand, _clean)),
    },
    _EXAMPLES,
)
