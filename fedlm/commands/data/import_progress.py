"""The progress of an import on a terminal: one bar a phase, with the rate and the time left."""

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


def _amount(count: float, unit: str) -> str:
    if unit == "bytes":
        return decimal(int(count))
    return f"{count:,.0f} {unit.removesuffix('s') if count == 1 else unit}"


class _Done(ProgressColumn):
    def render(self, task: Task) -> Text:
        unit = task.fields["unit"]
        if task.total is None:
            return Text(_amount(task.completed, unit), style="green")
        done = _amount(task.completed, unit if unit == "bytes" else "").strip()
        return Text(f"{done} of {_amount(task.total, unit)}", style="green")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{_amount(speed, task.fields['unit'])}/s" if speed else "", style="cyan")


class ImportProgress:
    """Bars of the phases of an import; a context manager."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            _Done(),
            _Rate(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "ImportProgress":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def update(self, phase: str, done: int, total: int | None, unit: str) -> None:
        """Show how far a phase is, as a `fedlm.simulations.data.sources.base.Progress`."""
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(phase, total=total, unit=unit)
        self._bars.update(self._tasks[phase], completed=done, total=total)
