"""Pictures as files, with their numbers beside them."""

from pathlib import Path
from typing import Literal

from fedlm.fl_core.atomic_files import make_folder, write_atomically
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.simulations.laws.figures.figure import LawFigure
from fedlm.simulations.laws.figures.tables import Table
from fedlm.simulations.plot_style import settle, to_png

DataFormat = Literal["csv", "json"]


def write_law_figure(figure: LawFigure, table: Table, out: Path, data: DataFormat | None = None) -> list[Path]:
    """Draw a table into a PNG file, and write its numbers beside it where a form of these is named.

    Returns:
      The paths of what was written.

    Raises:
      ConfigurationError: the file's name does not end in .png.
    """
    check_picture_name(out)
    drawn = figure.draw(table)
    settle(drawn)
    make_folder(out.parent)
    write_atomically(out, to_png(drawn))
    if data is None:
        return [out]
    beside = out.with_suffix(f".{data}")
    write_atomically(beside, table.as_csv() if data == "csv" else table.as_json())
    return [out, beside]


def check_picture_name(out: Path) -> None:
    """Refuse a file name that does not end in .png, as a ConfigurationError."""
    if out.suffix.lower() != ".png":
        raise ConfigurationError(f"{setting('out')} is {str(out)!r}, but must be a file name that ends in .png")
