"""How fast the input pipeline of central training makes batches: sequences cut, batches drawn, words masked.

Tokens are places in sequences, padding included, a second of wall-clock time and a second of processor time (all
threads together). Run it when nothing else runs:

    fedlm data import stdlib --out runs/stdlib
    python -m benchmarks.data.pretraining_pipeline --data runs/stdlib
"""

import argparse
import json
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.machine import describe_machine
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.pretraining.masking import MaskedWords
from fedlm.simulations.pretraining.pipeline import Transform, logical_batches
from fedlm.simulations.pretraining.privacy_units import Units, open_units
from fedlm.simulations.pretraining.sampling import Batches, PoissonBatches, ShuffledBatches, TruncatedPoissonBatches

LENGTH = 64
BATCH = 256
STEPS = 200
UNITS = (("example", "none", 1), ("example", "packed", 1), ("user", "packed", 4))
RESULTS = Path(__file__).parent / "results" / "pretraining_pipeline.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="token store")
    parser.add_argument("--repeats", type=int, default=5, help="how often each is timed")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the JSON file to write")
    arguments = parser.parse_args()
    store = TokenStore.open(arguments.data)
    with TemporaryDirectory() as cache:
        measured = {
            f"unit {unit}, packing {packing}, K = {most}": measure(
                open_units(store, "train", LENGTH, unit, packing, most, 0, Path(cache)), store, arguments.repeats
            )
            for unit, packing, most in UNITS
        }
    results = {
        "machine": {**describe_machine(), "grain": version("grain")},
        "length": LENGTH,
        "batch": BATCH,
        "steps": STEPS,
        "repeats": arguments.repeats,
        "tokens_per_second": measured,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


def measure(units: Units, store: TokenStore, repeats: int) -> dict:
    """Time each sampling, with and without masking; medians of all repeats, which run in turn."""
    drawn: dict[str, Batches] = {
        "Poisson": PoissonBatches(units, BATCH, 0),
        "truncated Poisson": TruncatedPoissonBatches(units, BATCH, 0, BATCH * 5 // 4),
        "shuffled": ShuffledBatches(units, BATCH, 0),
    }
    masked = MaskedWords(store.vocabulary_size, 0)
    transforms: dict[str, Transform | None] = {"": None, ", masked": masked}
    runs: dict[str, list[tuple[float, float]]] = {}
    for _ in range(repeats):
        for name, batches in drawn.items():
            for suffix, transform in transforms.items():
                runs.setdefault(name + suffix, []).append(rates(units, batches, transform))
    return {
        name: {
            "wall": round(statistics.median(wall for wall, _ in timed)),
            "processor": round(statistics.median(processor for _, processor in timed)),
        }
        for name, timed in runs.items()
    }


def rates(units: Units, batches: Batches, transform: Transform | None) -> tuple[float, float]:
    """Return tokens per second of wall-clock and of processor time."""
    wall, processor = time.perf_counter(), time.process_time()
    tokens = sum(batch.positions for batch in logical_batches(units, batches, 0, STEPS, BATCH, transform=transform))
    return tokens / (time.perf_counter() - wall), tokens / (time.process_time() - processor)


if __name__ == "__main__":
    main()
