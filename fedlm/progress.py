"""The live line of a run: round, loss, scores, clients a second, bytes and time left."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_PLAIN_SECONDS = 15.0


class RoundProgress:
    """Shows the rounds of one run on stderr; a context manager.

    On a terminal it is a live line, elsewhere a plain line every 15 seconds and at the last round.
    """

    def __init__(self, name: str):
        """Prepare the line.

        Args:
          name: of what is trained.
        """
        console = Console(stderr=True)
        self._live = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[scores]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not self._live,
        )
        self._task = self._progress.add_task(name, total=None, scores="compiling")
        self._name = name
        self._scores = ""
        self._started = self._printed = time.monotonic()
        self._first_round: int | None = None

    def __enter__(self) -> "RoundProgress":
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def update(self, row: dict[str, Any], rounds: int) -> None:
        """Show a finished round.

        Args:
          row: its metrics.
          rounds: how many there are in all.
        """
        if self._first_round is None:
            self._first_round = row["round"]
        if row.get("heldout_perplexity"):
            self._scores = f"perplexity {row['heldout_perplexity']:.1f} accuracy {row['heldout_accuracy']:.3f} "
        done = row["round"] + 1
        text = describe_round(row, self._scores)
        if self._live:
            self._progress.update(self._task, total=rounds, completed=done, scores=text)
        elif done == rounds or time.monotonic() - self._printed > _PLAIN_SECONDS:
            self._printed = time.monotonic()
            rate = (self._printed - self._started) / (done - self._first_round)
            left = time_text(rate * (rounds - done))
            print(f"{self._name} round {done}/{rounds} {text}, {left} left", file=sys.stderr, flush=True)


def describe_round(row: dict[str, Any], scores: str) -> str:
    """Put a round's numbers into a few words.

    Args:
      row: its metrics.
      scores: the last held-out scores, as text.

    Returns:
      One line.
    """
    loss = "no loss" if row["train_loss"] is None else f"loss {row['train_loss']:.3f}"
    rate = row["clients"] / max(row["seconds"], 1e-9)
    moved = bytes_text(row["bytes_up"] + row["bytes_down"])
    dropped = f" [dropped {row['clients_dropped']}]" if row["clients_dropped"] else ""
    return f"{loss} {scores}{rate:.0f} clients/s {moved}/round{dropped}"


def bytes_text(count: float) -> str:
    """Write a number of bytes for people.

    Args:
      count: bytes.

    Returns:
      Such as `1.5 MB`.
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def time_text(seconds: float) -> str:
    """Write a duration for people.

    Args:
      seconds: not negative.

    Returns:
      Such as `3:05` or `1:02:03`.
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
