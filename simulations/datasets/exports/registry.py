"""The forms that `fedlm data export` knows by name."""

from simulations.datasets.exports.base import Export
from simulations.datasets.exports.fedjax import FedJaxExport
from simulations.datasets.exports.parquet import ParquetExport
from simulations.datasets.exports.tff import TffExport

EXPORTS: dict[str, type[Export]] = {
    "tff": TffExport,
    "fedjax": FedJaxExport,
    "parquet": ParquetExport,
}


def describe_export(export: type[Export]) -> str:
    """Return the first line of an export's docstring, without the full stop."""
    return (export.__doc__ or "").splitlines()[0].removesuffix(".")
