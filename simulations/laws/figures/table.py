"""The numbers of a picture: columns of equal length, as CSV or JSON for whoever draws them otherwise."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Progress = Callable[[int, int], None]
"""Told how many numbers of how many are there."""


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Table:
    """Columns by name, of equal length: float64 where they hold numbers, else object."""

    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def where(self, **values: Any) -> Self:
        """Keep the rows that have these values in the columns of these names."""
        kept = np.ones(len(self), bool)
        for name, value in values.items():
            kept &= self[name] == value
        return type(self)({name: column[kept] for name, column in self.columns.items()})

    def values(self, name: str) -> list[Any]:
        """List what a column has, each value once, in the order of the rows."""
        return list(dict.fromkeys(self[name].tolist()))

    def rows(self) -> list[dict[str, Any]]:
        """List the rows; a number that is not known is None."""
        columns = {name: [_plain(value) for value in column.tolist()] for name, column in self.columns.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def as_csv(self) -> str:
        """Write the rows as CSV; a number that is not known is empty."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    def as_json(self) -> str:
        """Write the rows as a JSON list of objects; a number that is not known is null."""
        return json.dumps(self.rows(), indent=1) + "\n"


def table_of(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Make a table of rows that have the same names."""
    rows = list(rows)
    names = list(rows[0]) if rows else []
    return Table({name: _column([row[name] for row in rows]) for name in names})


def _column(values: list[Any]) -> NDArray[Any]:
    numbers = all(isinstance(value, int | float | np.number) for value in values)
    return np.array(values, np.float64 if numbers else object)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def in_words(value: float) -> str:
    """Write a number for people in three digits; a dash where there is none."""
    if not math.isfinite(value):
        return "\N{EN DASH}"
    if value and not 1e-3 <= abs(value) < 1e4:
        digits, exponent = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{float(f'{value:.3g}'):,g}"
