"""The sources that `fedlm data import` knows by name."""

from simulations.datasets.sources.base import Source
from simulations.datasets.sources.csv_tables import CsvTables
from simulations.datasets.sources.huggingface import HuggingFaceDataset
from simulations.datasets.sources.jsonl import JsonLines
from simulations.datasets.sources.parquet import ParquetTables
from simulations.datasets.sources.stackexchange import StackExchange
from simulations.datasets.sources.stackoverflow_fedjax import StackOverflowFedjax
from simulations.datasets.sources.stackoverflow_tff import StackOverflowTff
from simulations.datasets.sources.stdlib import StandardLibrary
from simulations.datasets.sources.text_files import TextFiles

SOURCES: dict[str, type[Source]] = {
    "stdlib": StandardLibrary,
    "jsonl": JsonLines,
    "text": TextFiles,
    "csv": CsvTables,
    "parquet": ParquetTables,
    "huggingface": HuggingFaceDataset,
    "stackoverflow-tff": StackOverflowTff,
    "stackoverflow-fedjax": StackOverflowFedjax,
    "stackexchange": StackExchange,
}


def describe_source(source: type[Source]) -> str:
    """Return the first line of a source's docstring, without the full stop."""
    return (source.__doc__ or "").splitlines()[0].removesuffix(".")
