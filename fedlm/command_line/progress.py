"""The live line of a command: what is done, its scores, its speed and the time left."""

import sys
import time
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up

if TYPE_CHECKING:
    from fedlm.simulations.comparisons.cells import Cell

_PLAIN_SECONDS = 15.0


class _Bar:
    """One bar on stderr, a context manager; where that is no terminal, a plain line now and then."""

    def __init__(self, name: str, unit: str = "round", total: int | None = None):
        console = Console(stderr=True)
        self._live = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not self._live,
        )
        self._task = self._progress.add_task(name, total=total, text="compiling")
        self._name, self._unit = name, unit
        self._started = self._printed = time.monotonic()
        self._first: tuple[float, int] | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def show(self, done: int, total: int, text: str) -> None:
        """Show that `done` units of `total` are finished; what was done at the first call was done before."""
        now = time.monotonic()
        if self._first is None:
            self._first = now, done
            self._progress.reset(self._task, total=total, completed=done - 1, text=text)
        self._progress.update(self._task, completed=done, text=text)
        if not self._live and (done == total or now - self._printed > _PLAIN_SECONDS):
            self._printed = now
            left = self._time_left(now, done, total)
            print(f"{self._name} {self._unit} {done}/{total} {text}, {left} left", file=sys.stderr, flush=True)

    def _time_left(self, now: float, done: int, total: int) -> str:
        """Say how long the rest will take, by what came after the first of it, which programs were compiled for."""
        began, before = self._first or (now, done)
        if done > before or done == total:
            return time_text((now - began) / max(done - before, 1) * (total - done))
        return "?"


def trained_part(summary: dict[str, Any]) -> str:
    """Say how many of a model's parameters a run has trained, where that is not all."""
    trained = summary.get("trained_parameters", summary["parameters"])
    return "" if trained == summary["parameters"] else f" with {trained:,} in adapters, which alone were trained"


def scores_in_words(summary: dict[str, Any], of_what: str = "") -> str:
    """Say what a run scored on the test clients, `of_what` being the targets in a few words; a score that is no finite
    number is said as such."""
    perplexity, accuracy = summary["test_perplexity"], summary["test_accuracy"]
    numbers = [
        "no finite number" if value is None else f"{value:.{digits}f}"
        for value, digits in ((perplexity, 2), (accuracy, 4))
    ]
    return f"test perplexity {of_what}{numbers[0]}, test accuracy {numbers[1]}"


class RoundProgress(_Bar):
    """Shows the rounds of one run, by the name of its model."""

    _scores = ""

    def update(self, row: dict[str, Any], rounds: int) -> None:
        """Show a finished round by its metrics, of so many rounds."""
        if row.get("heldout_perplexity"):
            self._scores = f"perplexity {row['heldout_perplexity']:.1f} accuracy {row['heldout_accuracy']:.3f} "
        self.show(row["round"] + 1, rounds, describe_round(row, self._scores))


class CellProgress(_Bar):
    """Shows the rounds of all cells of a comparison."""

    def __init__(self, total: int):
        super().__init__("comparing", total=total)
        self._total = total
        self._rounds: dict[Any, int] = {}

    def update(self, cell: "Cell", row: dict[str, Any]) -> None:
        """Show a finished round of a cell by its metrics."""
        self._rounds[cell] = row["round"] + 1
        name = f"{cell.experiment.model} ({cell.experiment.client_learning_rate:g}, seed {cell.experiment.seed})"
        self.show(sum(self._rounds.values()), self._total, f"{name} {describe_round(row, '')}")


class StepProgress(_Bar):
    """Shows the steps of central training, by the name of its model; a `pretraining.run.Observer`."""

    _numbers = ""

    def stepped(self, done: int, steps: int, tokens_per_second: float) -> None:
        self.show(done, steps, f"{tokens_per_second:,.0f} tokens/s {self._numbers}")

    def published(self, row: dict[str, Any]) -> None:
        names = {
            "train_loss": "loss {:.3f}",
            "heldout_perplexity": "held-out perplexity {:.1f}",
            "clipped_fraction": "clipped {:.0%}",
            "gradient_norm_p50": "median norm {:.2g}",
            "signal_to_noise": "signal/noise {:.2g}",
            # Unit, adjacency, delta and assumptions have no room in a line.
            "epsilon": "epsilon {} as `fedlm account ledger` states it",
            "mfu": "MFU {:.1%}",
        }
        found = {name: row[name] for name in names if row.get(name) is not None}
        if "epsilon" in found:
            found["epsilon"] = rounded_up(found["epsilon"], 3)
        shown = [names[name].format(value) for name, value in found.items()]
        self._numbers = f"[step {row['step'] + 1}: {', '.join(shown)}]"

    def noticed(self, message: str) -> None:
        self._progress.console.print(message, soft_wrap=True, markup=False)


class EvaluationProgress(_Bar):
    """Shows how much of an evaluation is done, in units named in the plural."""

    def update(self, done: int, total: int) -> None:
        """Show that so many units of all have been scored."""
        rate = done / max(time.monotonic() - self._started, 1e-9)
        self.show(done, total, f"{rate:,.0f} {self._unit}/s")


def describe_round(row: dict[str, Any], scores: str) -> str:
    """Put a round's metrics, and the last held-out scores, into one line."""
    loss = "no loss" if row["train_loss"] is None else f"loss {row['train_loss']:.3f}"
    rate = row["clients"] / max(row["seconds"], 1e-9)
    moved = bytes_text(row["bytes_up"] + row["bytes_down"])
    dropped = f" [dropped {row['clients_dropped']}]" if row["clients_dropped"] else ""
    return f"{loss} {scores}{rate:.{0 if rate >= 10 else 1}f} clients/s {moved}/round{dropped}"


def bytes_text(count: float) -> str:
    """Write a number of bytes for people, such as `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def time_text(seconds: float) -> str:
    """Write a duration for people, such as `3:05` or `1:02:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
