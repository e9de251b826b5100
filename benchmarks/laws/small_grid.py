"""The `small` grid of scaling laws, measured on the texts of four Stack Exchange sites: some four hours of one core.

    python -m benchmarks.laws.small_grid [DUMPS]

It goes on from `results/small`, whose table has the trainings that have finished, and can be stopped at any time.
"""

import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "small"
_DUMPS, _DATA = Path("../shared/data/stackexchange"), Path("runs/small-grid-data")
_VOCABULARY = "512"


def main() -> int:
    """Import the texts where that was not done, and measure what is left of the grid."""
    dumps = Path(sys.argv[1]) if len(sys.argv) > 1 else _DUMPS
    fedlm = [sys.executable, "-m", "fedlm"]
    if not (_DATA / "store.json").exists():
        words = ["--vocabulary-size", _VOCABULARY]
        subprocess.run([*fedlm, "data", "import", "stackexchange", str(dumps), "--out", str(_DATA), *words], check=True)
    run = [*fedlm, "laws", "run", "--preset", "small", "--data", str(_DATA), "--out", str(RESULTS)]
    return subprocess.run(run, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
