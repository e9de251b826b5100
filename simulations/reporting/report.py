"""The report of a comparison."""

from pathlib import Path

from simulations.comparison import CellResult
from simulations.configuration import Comparison


def write_report(comparison: Comparison, results: list[CellResult], out: Path, command: str) -> Path:
    """Placeholder until the reporting package is complete."""
    return out / "report.html"
