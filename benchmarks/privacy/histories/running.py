"""Ten thousand random histories, and how many it takes to find each of some known faults.

python -m benchmarks.privacy.histories --count 10000 --faults all
"""

import argparse
import contextlib
import itertools
import json
import logging
import multiprocessing
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.privacy.histories.checks import Fault
from benchmarks.privacy.histories.data_sets import Stores
from benchmarks.privacy.histories.faults import FAULTS
from benchmarks.privacy.histories.seams import remember_epsilons
from benchmarks.privacy.histories.world import Operation, draw_history, run_history
from fedlm.fl_core.atomic_files import write_atomically

RESULTS = Path(__file__).parents[1] / "results"
_SHARE = 50  # histories that a process takes at once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="histories in all, of seeds from 0")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--replay", type=int, help="only this one, as few operations as show what is wrong")
    parser.add_argument(
        "--faults", nargs="*", choices=["all", *FAULTS], default=[], help="known faults to be found anew"
    )
    parser.add_argument("--most", type=int, default=2000, help="histories in which a known fault must be found")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    faults = list(FAULTS) if "all" in arguments.faults else arguments.faults
    _be_quiet()
    if arguments.replay is not None:
        with stores() as made, remember_epsilons():
            print(*shrunk(made, draw_history(arguments.replay)), sep="\n")
        return
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / "histories.json"
    record = json.loads(path.read_text()) if path.exists() else {"faults": {}, "histories": []}

    def keep() -> None:
        write_atomically(path, json.dumps(record | {"machine": describe_machine()}, indent=2) + "\n")

    done, commit = sum(part["count"] for part in record["histories"]), _commit()
    part: dict[str, Any] = {"commit": commit, "first_seed": done, "count": 0, "did": {}, "wrong": []}
    shares = [range(first, min(first + _SHARE, arguments.count)) for first in range(done, arguments.count, _SHARE)]
    if shares:
        record["histories"].append(part)
    searches = [(name, arguments.most) for name in faults]
    with multiprocessing.get_context("spawn").Pool(arguments.workers, _begin) as pool:
        searched, ran = pool.imap(_search, searches), pool.imap(_run_share, shares)
        for (name, _), found in zip(searches, searched, strict=True):
            record["faults"][name] = {"says": FAULTS[name].says, "commit": commit, "found_after": found}
            keep()
            print(f"{name}: found after {found}", flush=True)
        for share, (counts, wrong) in zip(shares, ran, strict=True):
            part["count"] += len(share)
            part["did"] = dict(sorted((Counter(part["did"]) + counts).items()))
            part["wrong"] += wrong
            # So that a run which is stopped goes on there.
            keep()
            print(f"{share.stop}: {len(part['wrong'])} wrong", flush=True)


@contextlib.contextmanager
def stores() -> Iterator[Stores]:
    """Import the data sets into a folder that is removed."""
    with tempfile.TemporaryDirectory(prefix="histories-") as folder:
        yield Stores(Path(folder))


def histories_until(made: Stores, fault: str, most: int) -> int | None:
    """Count the histories until a known fault is found; None where that are more than `most`."""
    with FAULTS[fault].put_in():
        return next((number + 1 for number in range(most) if run_history(made, draw_history(number))), None)


def shrunk(made: Stores, operations: Sequence[Operation]) -> list[Operation | Fault]:
    """Leave out operations as long as something is still wrong. Returns what is left, and what is wrong then."""
    left = list(operations)
    for size, _ in itertools.product((3, 2, 1), range(2)):
        start = 0
        while start < len(left):
            fewer = left[:start] + left[start + size :]
            if _wrong(made, fewer):
                left = fewer
            else:
                start += 1
    return [*left, *_wrong(made, left)]


def _wrong(made: Stores, operations: Sequence[Operation]) -> list[Fault]:
    try:
        return run_history(made, operations)
    except (IndexError, ValueError):
        return []  # nothing to do it to


_made: Stores | None = None


def _begin() -> None:
    global _made
    _be_quiet()
    folder = tempfile.mkdtemp(prefix="histories-")
    _made = Stores(Path(folder))
    remember_epsilons().__enter__()


def _search(fault: tuple[str, int]) -> int | None:
    assert _made is not None
    return histories_until(_made, *fault)


def _run_share(seeds: range) -> tuple[Counter[str], list[dict[str, Any]]]:
    assert _made is not None
    counts: Counter[str] = Counter()
    found = []
    for seed in seeds:
        wrong = run_history(_made, draw_history(seed), counts=counts)
        found += [{"seed": seed, **fault._asdict()} for fault in wrong]
    return counts, found


def _be_quiet() -> None:
    # The libraries of accounting say which orders they leave out.
    logging.disable(logging.WARNING)


def _commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
