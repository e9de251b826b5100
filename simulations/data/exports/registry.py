"""The forms that `fedlm data export` knows by name."""

from fedlm.simulations.data.exports.base import Export
from fedlm.simulations.data.exports.fedjax import FedJaxExport
from fedlm.simulations.data.exports.parquet import ParquetExport
from fedlm.simulations.data.exports.tff import TffExport

EXPORTS: dict[str, type[Export]] = {
    "tff": TffExport,
    "fedjax": FedJaxExport,
    "parquet": ParquetExport,
}


def describe_export(export: type[Export]) -> str:
    """Return the first line of an export's docstring, without the full stop."""
    return (export.__doc__ or "").splitlines()[0].removesuffix(".")
