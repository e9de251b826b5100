"""What pictures are made of, read from files."""

from pathlib import Path

from fedlm.simulations.laws.figures.figure import Evidence
from fedlm.simulations.laws.figures.searching import TrainingSearch
from fedlm.simulations.laws.fitting_all import measurements_file
from fedlm.simulations.laws.laws_file import Laws, read_laws
from fedlm.simulations.laws.measurements import read_measurements


def read_evidence(laws: Path | None, measurements: Path | None) -> Evidence:
    """Read a file of laws and one of measurements, or the folder that it is in, as far as they are given.

    Raises:
      DataError: a file cannot be read, or is not what it should be.
    """
    return evidence_of(None if laws is None else read_laws(laws), measurements)


def evidence_of(laws: Laws | None, measurements: Path | None) -> Evidence:
    """Make evidence of laws that were read, and of a file of measurements. Raises DataError where that is none."""
    surface = laws.surface if laws else None
    return Evidence(
        search=None if surface is None else TrainingSearch(surface),
        forms=laws.forms if laws else {},
        measurements=None if measurements is None else read_measurements(measurements_file(measurements)),
    )
