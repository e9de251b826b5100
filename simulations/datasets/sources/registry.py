"""The sources that `fedlm data import` knows by name."""

from simulations.datasets.sources.base import Source
from simulations.datasets.sources.jsonl import JsonLines
from simulations.datasets.sources.stdlib import StandardLibrary

SOURCES: dict[str, type[Source]] = {
    "stdlib": StandardLibrary,
    "jsonl": JsonLines,
}


def describe_source(source: type[Source]) -> str:
    """Return the first line of a source's docstring, without the full stop."""
    return (source.__doc__ or "").splitlines()[0].removesuffix(".")
