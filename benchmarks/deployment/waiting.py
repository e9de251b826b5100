"""What it costs that a round waits for all the clients that it has drawn, and what shares would be if it did not.

Times of answers are drawn from a seed, and nothing is timed: a fifth of the clients answer at once, and the others need
times of a log-normal distribution, or drop out. A round of 100 reports ends once all that were drawn have answered, or
at its deadline; beside it, one that ended with its hundredth report.

    python -m benchmarks.deployment.waiting
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from fedlm.fl_core.atomic_files import write_atomically

RESULTS = Path(__file__).parent / "results" / "waiting.json"
GOAL, QUICK, MEDIAN, SPREAD, ROUNDS = 100, 0.2, 60.0, 0.5, 2000
CASES = [
    (over_selection, drops, deadline)
    for over_selection, drops in ((1.0, 0.0), (1.3, 0.0), (1.3, 0.1), (1.3, 0.25))
    for deadline in (150.0, 600.0)
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers go")
    rows = [round_of(*case) for case in CASES]
    for row in rows:
        print(row)
    write_atomically(parser.parse_args().results, json.dumps(rows, indent=1) + "\n")


def round_of(over_selection: float, drops: float, deadline: float, rounds: int = ROUNDS) -> dict[str, Any]:
    """Say what a round comes to on average.

    Args:
      over_selection: clients that are drawn for each report that the round is to have.
      drops: part of the clients that do not answer at once and drop out.
      deadline: seconds after which reports are refused.
      rounds: how many are drawn.

    Returns:
      Seconds of a round, reports that count, and the part of them that clients have who answer at once: `all` where it
      waits for all, `goal` where it ended at the goal.
    """
    random, shape = np.random.default_rng(0), (rounds, math.ceil(GOAL * over_selection))
    quick = random.random(shape) < QUICK
    times = np.where(quick, 0.0, MEDIAN * random.lognormal(0.0, SPREAD, shape))
    times[~quick & (random.random(shape) < drops)] = math.inf
    ends = {
        "all": np.minimum(times.max(axis=1), deadline),
        "goal": np.minimum(np.sort(times, axis=1)[:, GOAL - 1], deadline),
    }
    row: dict[str, Any] = {"over_selection": over_selection, "drops": drops, "deadline": deadline}
    for rule, end in ends.items():
        counted = times <= end[:, None]
        row[rule] = {
            "seconds": round(float(end.mean()), 1),
            "reports": round(float(counted.sum(axis=1).mean()), 1),
            "quick": round(float((counted & quick).sum() / counted.sum()), 3),
        }
    return row


if __name__ == "__main__":
    main()
