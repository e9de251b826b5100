"""Pages of results: their templates, and figures as files and as part of a page."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from matplotlib.figure import Figure

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.simulations.plot_style import settle, to_png, to_svg


def page_template(name: str) -> Template:
    """Open a template, which escapes what is put into it."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["rounded_up"] = rounded_up
    return environment.get_template(name)


def write_figure(figure: Figure, name: str, folder: Path) -> Markup:
    """Write a figure as a PNG file into a folder; returns the same as an element for a page."""
    settle(figure)
    write_atomically(folder / f"{name}.png", to_png(figure))
    # The drawings are our own markup, with names escaped by the drawing library.
    return Markup(to_svg(figure, name))
