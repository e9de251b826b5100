"""The laws that come with the package, by which is planned where no others are given."""

from pathlib import Path

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.simulations.laws.laws_file import Laws, read_laws

SHIPPED_FILE = Path(__file__).parent / "shipped_laws.json"
"""Made by `python -m benchmarks.laws.ship`, where a version comes with one."""
ABOUT = "about"
"""Under this name the source of shipped laws has a sentence: what was measured, on what, and what they are good for."""


def shipped_laws() -> Laws:
    """Read the laws that come with the package.

    Raises:
      ConfigurationError: this version comes with none.
    """
    if not SHIPPED_FILE.exists():
        raise ConfigurationError(
            "this version comes with no laws to plan by; measure a grid with `fedlm laws run`, fit it with `fedlm laws "
            f"fit`, and give {setting('laws')} FILE"
        )
    return read_laws(SHIPPED_FILE)
