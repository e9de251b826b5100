"""Timing contestants in turn on one task, and keeping what each of them said."""

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.simulation.comparing import best_of, loss_disagreements, pass_ratios, spread
from benchmarks.simulation.contestants import Contestant, ContestantError, idle_cpu_percent

IDLE_LIMIT_PERCENT = 2.0
BARE_LOOPS = ("bare_lanes", "bare_scan")


class Measurement:
    """The contestants of one task. A program that fails is left out from then on, and the others go on.

    Attributes:
      loss_before: of the parameters that every round starts from.
      problems: why programs were left out.
    """

    def __init__(self, clients: int, loss_before: float, engine: str = "engine", idle_seconds: float = 5.0):
        """Begin with no contestant.

        Args:
          clients: in the task's cohort.
          loss_before: of the parameters that every round starts from.
          engine: the contestant that the others are compared with.
          idle_seconds: how long `watch_idle` watches.
        """
        self._clients, self.loss_before = clients, loss_before
        self._engine, self._idle_seconds = engine, idle_seconds
        self._running: dict[str, Contestant] = {}
        self._paused: set[str] = set()
        self._variants: dict[str, dict[str, Any]] = {}
        self._rounds: dict[str, list[dict[str, Any]]] = {}
        self.problems: dict[str, str] = {}

    def start(self, program: str, launch: Callable[[], Contestant]) -> None:
        """Start a program and let it run its first rounds, which are not timed against the others."""
        with self._reporting(program):
            contestant = self._running[program] = launch()
            for number, variant in enumerate(contestant.ready["variants"]):
                name = _name(program, contestant, variant)
                with contestant.watch_memory() as samples:
                    first = contestant.run_round(variant)
                    since_start = contestant.age
                    contestant.run_round(variant)
                self._rounds[name] = []
                self._variants[name] = {
                    "program": program,
                    "configuration": contestant.ready["configuration"],
                    "versions": contestant.ready["versions"],
                    "seconds_to_first_round": round(since_start, 2) if number == 0 else None,
                    "seconds_of_first_round": round(first["seconds"], 2),
                    "peak_memory_mib": max(samples, default=0) >> 20,
                }

    def watch_idle(self) -> None:
        """See what programs do while nobody asks; one that is busy then is stopped while others have their turn."""
        names = list(self._running)
        percents = idle_cpu_percent([self._running[name] for name in names], self._idle_seconds)
        self._paused = {name for name, percent in zip(names, percents, strict=True) if percent > IDLE_LIMIT_PERCENT}
        of_program = dict(zip(names, percents, strict=True))
        for variant in self._variants.values():
            variant["idle_cpu_percent"] = round(of_program.get(variant["program"], 0.0), 2)
            variant["stopped_while_others_ran"] = variant["program"] in self._paused
        for name in self._paused:
            self._running[name].pause()

    def run_pass(self, backwards: bool) -> None:
        """Let each contestant run a round, the last program first where `backwards`."""
        for program in list(self._running)[:: -1 if backwards else 1]:
            with self._reporting(program):
                self._take_turn(program, self._running[program])
                if program in self._paused:
                    self._running[program].pause()

    def _take_turn(self, program: str, contestant: Contestant) -> None:
        contestant.resume()
        for variant in contestant.ready["variants"]:
            before = contestant.cpu_seconds()
            answer = contestant.run_round(variant)
            answer["cpu_seconds"] = contestant.cpu_seconds() - before
            self._rounds[_name(program, contestant, variant)].append(answer)

    @contextlib.contextmanager
    def _reporting(self, program: str) -> Iterator[None]:
        try:
            yield
        except (ContestantError, OSError) as error:
            self.problems[program] = str(error)
            if program in self._running:
                self._running.pop(program).close()

    def close(self) -> None:
        """End all programs."""
        while self._running:
            self._running.popitem()[1].close()

    def summary(self) -> dict[str, Any]:
        """Sum up what is known so far.

        Returns:
          A tree for JSON. Under `engine_over` a ratio of 2 says that the engine takes twice as many steps a second.
        """
        rates = {variant: [a["steps"] / a["seconds"] for a in answers] for variant, answers in self._rounds.items()}
        rates = {variant: values for variant, values in rates.items() if values}
        ratios = {variant: pass_ratios(rates.get(self._engine, []), values) for variant, values in rates.items()}
        return {
            "clients": self._clients,
            "loss_before": self.loss_before,
            "contestants": {variant: self._summary_of(variant) for variant in rates},
            "engine_over": {
                variant: {name: round(value, 4) for name, value in ratio._asdict().items()}
                for variant, ratio in ratios.items()
                if ratio and variant != self._engine
            },
            "best_bare_loop": best_of(rates, BARE_LOOPS),
            "loss_disagreements": self._disagreements(),
            "problems": self.problems,
        }

    def _summary_of(self, variant: str) -> dict[str, Any]:
        answers = self._rounds[variant]
        seconds = [answer["seconds"] for answer in answers]
        median, steps = statistics.median(seconds), answers[0]["steps"]
        return {
            **self._variants[variant],
            "steps": steps,
            "seconds": [round(value, 4) for value in seconds],
            "spread_of_seconds": [round(value, 4) for value in spread(seconds)],
            "steps_per_second": round(steps / median, 2),
            "clients_per_second": round(self._clients / median, 2),
            "cpu_seconds": round(statistics.median(answer["cpu_seconds"] for answer in answers), 3),
            "one_time_seconds": round(self._variants[variant]["seconds_of_first_round"] - median, 2),
            "loss_after": self._loss_after(variant),
        }

    def _loss_after(self, variant: str) -> float | None:
        losses = [answer["loss_after"] for answer in self._rounds[variant]]
        return None if not losses or None in losses else statistics.mean(losses)

    def losses_after(self) -> dict[str, float]:
        """Give the mean loss after a round of each contestant that averages."""
        losses = {variant: self._loss_after(variant) for variant in self._rounds}
        return {variant: loss for variant, loss in losses.items() if loss is not None}

    def _disagreements(self) -> dict[str, float]:
        return loss_disagreements(self.loss_before, self.losses_after(), self._engine)

    def warnings(self) -> Sequence[str]:
        """Say, line by line, which programs were left out, and which contestants did other work than the engine."""
        lines = [f"{program} is left out: {text}" for program, text in self.problems.items()]
        return lines + [
            f"{variant} does other work than the engine: its change of the loss is {part:.1%} off"
            for variant, part in self._disagreements().items()
        ]


def _name(program: str, contestant: Contestant, variant: str) -> str:
    return variant if len(contestant.ready["variants"]) > 1 else program
