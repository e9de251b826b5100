"""How long it takes to plan: the noise and loss of ten thousand configurations, its table made first, and a whole plan.

    python -m benchmarks.laws.planning

The laws are the made-up ones of the tests, in the sizes of McKenna et al. 2025. Run it when nothing else runs.
"""

import json
import time

from benchmarks.machine import describe_machine
from fedlm.simulations.laws.planning.central_planner import Budget, Planner, make_plan
from tests.support.synthetic_laws import surface_of

_BUDGET = Budget(examples=1e8, epsilon=4.0, delta=1e-8, compute=1e21)


def main() -> None:
    """Measure, and print one JSON object."""
    start = time.perf_counter()
    planner = Planner(surface_of(), length=512)
    found = planner.configurations(_BUDGET)
    first = time.perf_counter() - start
    again = time.perf_counter()
    planner.configurations(_BUDGET)
    again = time.perf_counter() - again
    start = time.perf_counter()
    make_plan(Planner(surface_of(), length=512), _BUDGET)
    whole = time.perf_counter() - start
    result = {
        "configurations": len(found.loss),
        "seconds": round(first, 2),
        "seconds_with_the_table": round(again, 4),
        "seconds_of_a_whole_plan": round(whole, 2),
    }
    print(json.dumps(result | {"machine": describe_machine()}, indent=1))


if __name__ == "__main__":
    main()
