"""The `small` grid of scaling laws, measured on the texts of four Stack Exchange sites: some four hours of one core.

    python -m benchmarks.laws.small_grid [DUMPS]

It goes on from `results/small`, whose table has the trainings that have finished, and can be stopped at any time.
"""

import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "small"
DATA = Path("runs/small-grid-data")
_DUMPS = Path("../shared/data/stackexchange")
_VOCABULARY = "512"
_FEDLM = [sys.executable, "-m", "fedlm"]


def main() -> int:
    """Import the texts where that was not done, and measure what is left of the grid."""
    import_texts()
    run = [*_FEDLM, "laws", "run", "--preset", "small", "--data", str(DATA), "--out", str(RESULTS)]
    return subprocess.run(run, check=False).returncode


def import_texts() -> None:
    """Import the dumps that the command line names into `DATA`, where that was not done."""
    dumps = Path(sys.argv[1]) if len(sys.argv) > 1 else _DUMPS
    if not (DATA / "store.json").exists():
        words = ["--vocabulary-size", _VOCABULARY]
        subprocess.run([*_FEDLM, "data", "import", "stackexchange", str(dumps), "--out", str(DATA), *words], check=True)


if __name__ == "__main__":
    sys.exit(main())
