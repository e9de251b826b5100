"""Pages of the public names, and of the modules that one extends, made of their docstrings."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

import fedlm
from fedlm.command_line.described_options import first_sentence

FOLDER = Path(__file__).parents[1] / "reference" / "generated" / "python"
GROUPS = {
    "simulations.experiments": ("experiments", "Experiments"),
    "simulations.data": ("data", "Data"),
    "models": ("models", "Models"),
    "fl_core.privacy": ("privacy", "Privacy"),
    "fl_core.errors": ("errors", "Errors"),
    "fl_core": ("rounds", "Rounds and settings"),
    "simulations": ("evaluation", "Trained models and reports"),
    "": ("further", "Further names"),
}
"""Pages of public names by the beginning of the module that they come from: the longest that fits."""
EXTENDED = {
    "models": (
        "models.base",
        "models.layers.basic",
        "models.layers.parameter_uses",
        "models.losses",
        "models.families.masked_language",
    ),
    "rounds": (
        "fl_core.rounds.round_loop",
        "fl_core.rounds.aggregation",
        "fl_core.rounds.cohorts",
        "fl_core.client_algorithms.interface",
        "fl_core.updates.compressors",
    ),
    "privacy": (
        "fl_core.privacy.promise.plan",
        "fl_core.privacy.participation.limits",
        "fl_core.privacy.participation.sampling",
        "fl_core.privacy.mechanisms.interface",
    ),
    "data": ("simulations.data.client_text", "simulations.data.sources.base", "simulations.data.exports.base"),
}
"""Modules whose types one meets when one adds a thing of a kind, by the page that they are on."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before Sphinx looks for its sources, and lead type hints to the public names."""
    app.connect("config-inited", lambda app, config: write_pages(FOLDER))
    app.connect("missing-reference", find_public_name)
    app.connect("html-page-context", drop_dead_backlinks)
    app.connect("autodoc-skip-member", is_undescribed_field)
    return {"parallel_read_safe": True}


def write_pages(folder: Path) -> None:
    """Write the pages, but those that are as they were, so that Sphinx does not read them anew."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {f"{page}.md": "\n".join(lines(page, title)) + "\n" for page, title in GROUPS.values() if names_of(page)}
    for stale in {path.name for path in folder.iterdir()} - pages.keys():
        (folder / stale).unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def names_of(page: str) -> list[str]:
    """List the public names of a page."""
    return [name for name in fedlm.__all__ if page_of(name) == page]


def page_of(name: str) -> str:
    """Find the page of a public name."""
    home = fedlm._HOME_OF[name]
    longest = max((start for start in GROUPS if f"{home}.".startswith(f"{start}." if start else "")), key=len)
    return GROUPS[longest][0]


def lines(page: str, title: str) -> Iterator[str]:
    """Yield the lines of a page: what there is, each name of it, and the modules beneath."""
    names = names_of(page)
    yield from (f"# {title}", "", "| name | |", "| --- | --- |")
    for name in names:
        yield f"| [`fedlm.{name}`](#fedlm.{name}) | {summary(getattr(fedlm, name))} |"
    yield ""
    for name in names:
        yield from ("```{eval-rst}", *described(name, getattr(fedlm, name)), "```", "")
    for module in EXTENDED.get(page, ()):
        yield from (f"## Module `fedlm.{module}`", "", "```{eval-rst}")
        yield from (f".. automodule:: fedlm.{module}", "   :members:", "```", "")


def summary(value: Any) -> str:
    """Take the first sentence of what a name says of itself."""
    if isinstance(value, dict):
        return "A registry, by name."
    return first_sentence(inspect.getdoc(value) or "").replace("|", "\\|") + "."


def described(name: str, value: Any) -> Iterator[str]:
    """Yield the directive that describes a public name."""
    if inspect.isclass(value):
        yield from (f".. autoclass:: fedlm.{name}", "   :members:")
        if value.__bases__ not in ((object,), (tuple,)):
            yield "   :show-inheritance:"
    elif callable(value):
        yield f".. autofunction:: fedlm.{name}"
    else:
        home = importlib.import_module(f"fedlm.{fedlm._HOME_OF[name]}")
        yield from (f".. py:data:: fedlm.{name}", f"   :type: {type(value).__name__}", "")
        yield f"   Of ``{home.__name__}``: {', '.join(f'``{entry}``' for entry in value)}."


def find_public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """Lead a type hint that names a class by its module to the class's public name."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") != "py" or name not in fedlm.__all__:
        return None
    target = env.domains.python_domain.objects.get(f"fedlm.{name}")
    if target is None:
        return None
    return make_refnode(app.builder, node["refdoc"], target.docname, target.node_id, content)


def is_undescribed_field(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave out fields of named tuples of which there is only their number to say; None leaves others to autodoc."""
    return True if (getattr(member, "__doc__", None) or "").startswith("Alias for field number") else None


def drop_dead_backlinks(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Take those links out of a page of source code that lead to no description.

    viewcode knows one name of a module, but what is in it may be described by its public name, or by the module's.
    """
    if pagename.startswith("_modules/"):
        described = app.env.domains.python_domain.objects
        context["body"] = re.sub(
            r'<a class="viewcode-back" href="[^"#]*#([^"]*)">[^<]*</a>',
            lambda link: link[0] if link[1] in described else "",
            context["body"],
        )
