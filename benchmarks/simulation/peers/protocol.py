"""The contestant's side of the line protocol: JSON lines in on standard input, JSON lines out on standard output.

First line out: `{"ready": true, "variants": [..], "versions": {..}, "configuration": ".."}`. Then, for each line
`{"variant": ".."}` in, one round is run and `{"seconds", "steps", "loss_after"}` comes out, or `{"error": ".."}`.
The program ends when its input does.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple, Protocol, TextIO


class RoundAnswer(NamedTuple):
    """What a contestant says of a round.

    Attributes:
      seconds: how long it took, from parameters in to averaged parameters out.
      steps: local SGD steps taken.
      loss_after: mean loss of the averaged model on the evaluation batch, in nats per token; None where nothing is
        averaged.
    """

    seconds: float
    steps: int
    loss_after: float | None


class Contestant(Protocol):
    """One way, or several variants of one way, to run a round.

    Attributes:
      variants: their names; a request names one.
      packages: installed packages whose versions are reported.
      configuration: how it was tuned, in words.
    """

    variants: Sequence[str]
    packages: Sequence[str]
    configuration: str

    def run_round(self, variant: str) -> RoundAnswer:
        """Run one round from the task's parameters.

        Args:
          variant: one of `variants`.

        Returns:
          What was measured.
        """
        ...


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Run a function and say how long it took.

    Args:
      run: must not return before its work is done.

    Returns:
      Seconds, and what it returned.
    """
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def private_standard_output() -> TextIO:
    """Keep standard output for the protocol: whatever libraries print goes to standard error from now on.

    Returns:
      Where the protocol's lines go.
    """
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return out


def serve(contestant: Contestant, requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more.

    Args:
      contestant: who runs the rounds.
      requests: lines of JSON.
      answers: where lines of JSON go.
    """
    _say(
        answers,
        ready=True,
        variants=list(contestant.variants),
        versions={name: version(name) for name in contestant.packages},
        configuration=contestant.configuration,
    )
    for line in requests:
        try:
            _say(answers, **contestant.run_round(json.loads(line)["variant"])._asdict())
        except Exception as error:
            traceback.print_exc()
            _say(answers, error=f"{type(error).__name__}: {error}")


def _say(answers: TextIO, **message: Any) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
