"""The sources that `fedlm data import` knows by name."""

from fedlm.simulations.data.sources.base import Source
from fedlm.simulations.data.sources.plays import Plays
from fedlm.simulations.data.sources.stackexchange.source import StackExchange
from fedlm.simulations.data.sources.stackoverflow.fedjax_source import StackOverflowFedjax
from fedlm.simulations.data.sources.stackoverflow.tff_source import StackOverflowTff
from fedlm.simulations.data.sources.standard_library import StandardLibrary
from fedlm.simulations.data.sources.tables.csv_tables import CsvTables
from fedlm.simulations.data.sources.tables.huggingface import HuggingFaceDataset
from fedlm.simulations.data.sources.tables.jsonl import JsonLines
from fedlm.simulations.data.sources.tables.parquet import ParquetTables
from fedlm.simulations.data.sources.text_files import TextFiles

SOURCES: dict[str, type[Source]] = {
    "stdlib": StandardLibrary,
    "jsonl": JsonLines,
    "text": TextFiles,
    "plays": Plays,
    "csv": CsvTables,
    "parquet": ParquetTables,
    "huggingface": HuggingFaceDataset,
    "stackoverflow-tff": StackOverflowTff,
    "stackoverflow-fedjax": StackOverflowFedjax,
    "stackexchange": StackExchange,
}
"""The sources of text by name.

Example:
  >>> describe_source(SOURCES["stdlib"])
  "English sentences of this machine's Python standard library, one module a client"
"""


def describe_source(source: type[Source]) -> str:
    """Return the first line of a source's docstring, without the full stop."""
    return (source.__doc__ or "").splitlines()[0].removesuffix(".")
