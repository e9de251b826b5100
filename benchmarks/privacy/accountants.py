"""The accountant beside those of others, at points over the range that it accepts.

    python -m venv ENV
    ENV/bin/pip install prv-accountant==0.2.0 opacus==1.6.0 torch==2.13.0
    python -m benchmarks.privacy.accountants --others ENV/bin/python

Where an epsilon of another accountant, which is said to be a bound, is beyond our bound from the other side, ball
arithmetic tells who is wrong. `--table` prints the committed numbers as the page on the accountant has them.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.privacy.accountants_of_others import ACCOUNTANTS
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.privacy.accounting.composition import epsilon_bounds
from fedlm.fl_core.privacy.accounting.losses.loss_pairs import DIRECTIONS
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_down, rounded_up
from fedlm.fl_core.privacy.accounting.release_events import GaussianEvent
from tests.support.ball_losses import deltas

RESULTS = Path(__file__).parent / "results" / "accountants.json"
HERE = [name for name in ACCOUNTANTS if name.startswith("dp-accounting")]
ELSEWHERE = [name for name in ACCOUNTANTS if name not in HERE]
BELOW = ("dp-accounting, optimistic",)
"""What is said to be no more than epsilon."""
FINER = (1, 2, 3)
"""Points that ball arithmetic computes with, more of them where it says too little."""
Point = tuple[float, float, int, float]

# Noise multiplier, probability, steps and delta.
POINTS: list[Point] = [
    (1.0, 0.01, 1000, 1e-6),
    (1.0, 0.01, 1000, 1e-15),
    (0.6143481, 4.08e-5, 100_000, 1e-12),
    (1.1, 256 / 60_000, 14_063, 1e-5),
    (0.6, 0.001, 10_000, 1e-9),
    (0.1, 1.1e-8, 1, 1e-8),
    (1.0, 0.1, 1, 0.038),
    (1.0, 1.0, 1, 1e-15),
    (20.0, 0.5, 100, 1e-5),
    (1.0, 0.9, 10, 1e-5),
    (0.5, 1e-6, 10_000, 1e-10),
    (5.0, 0.2, 2000, 1e-10),
    (3.0, 4096 / 50_000, 1000, 1e-5),
    (0.1, 0.1, 1, 1e-3),
]


def others(interpreter: str, names: Sequence[str]) -> list[dict[str, Any]]:
    script = Path(__file__).with_name("accountants_of_others.py")
    told = subprocess.run(
        [interpreter, script, *names], input=json.dumps(POINTS), stdout=subprocess.PIPE, check=True, text=True
    )
    return [json.loads(line) for line in told.stdout.splitlines()]


def ours(noise: float, probability: float, steps: int, delta: float) -> dict[str, Any]:
    start = time.process_time()
    upper, lower = epsilon_bounds([GaussianEvent(noise, steps, probability)], delta)
    return {"epsilon": [lower, upper], "seconds": round(time.process_time() - start, 2)}


def claims(name: str, answer: dict[str, Any]) -> tuple[float, float]:
    """Between which an accountant says that epsilon lies."""
    found = answer.get("epsilon")
    if found is None:
        return 0.0, math.inf
    if isinstance(found, list):
        return found[0], found[1]
    return (found, math.inf) if name in BELOW else (0.0, found)


def contradictions(point: Point, answers: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Name who claims what our bounds contradict, and say whether ball arithmetic proves that it is wrong."""
    noise, probability, steps, delta = point
    event = GaussianEvent(noise, steps, probability)
    lower, upper = answers["fedlm"]["epsilon"]
    found = {}
    for name, answer in answers.items():
        least, most = claims(name, answer)
        wrong = most if most < lower else least if least > upper else None
        if wrong is not None:
            found[name] = judged(event, delta, wrong)
    return found


def judged(event: GaussianEvent, delta: float, epsilon: float) -> str:
    for finer in FINER:
        balls = [deltas([event], direction, [epsilon], delta, finer=finer)[0] for direction in DIRECTIONS]
        if any(low > delta for low, _ in balls):
            return "proven too low"
        if all(high < delta for _, high in balls):
            return "proven too high"
    return "not proven"


def shown(name: str, answer: dict[str, Any]) -> str:
    if "epsilon" not in answer:
        return answer["none"].split(":")[0]
    least, most = claims(name, answer)
    if name in BELOW:
        return rounded_down(least, 5)
    if most == math.inf:
        return "infinite"
    return f"{rounded_down(least, 5)} to {rounded_up(most, 5)}" if least else rounded_up(most, 5)


def table(record: dict[str, Any]) -> str:
    """Show everybody's numbers, and which are wrong."""
    names = list(record["points"][0]["answers"])
    lines = [["noise", "q", "steps", "delta", *names], ["---"] * (4 + len(names))]
    for row in record["points"]:
        noise, probability, steps, delta = row["point"]
        wrong = {name: f" **{said}**" for name, said in row["contradicted"].items()}
        cells = [shown(name, answer) + wrong.get(name, "") for name, answer in row["answers"].items()]
        lines.append([f"{noise:g}", f"{probability:.3g}", f"{steps:,}", f"{delta:g}", *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--others", help="an interpreter whose environment has prv-accountant and Opacus")
    parser.add_argument("--table", action="store_true", help="print the committed numbers as a table")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers go")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.results.read_text(encoding="utf-8"))), end="")
        return
    if not arguments.others:
        parser.error("give --others, or --table")
    told = [others(sys.executable, HERE), others(arguments.others, ELSEWHERE)]
    answers = [
        {"fedlm": ours(*point), **here, **elsewhere}
        for point, here, elsewhere in zip(POINTS, *(rows for _, *rows in told), strict=True)
    ]
    record = {
        "machine": describe_machine(),
        "versions": {name: number for versions, *_ in told for name, number in versions.items()},
        "points": [
            {"point": point, "answers": row, "contradicted": contradictions(point, row)}
            for point, row in zip(POINTS, answers, strict=True)
        ],
    }
    write_atomically(arguments.results, json.dumps(record, indent=1) + "\n")
    print(table(record), end="")


if __name__ == "__main__":
    main()
